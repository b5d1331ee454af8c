#include <openssl/rand.h>

#include <array>
#include <boost/asio/post.hpp>
#include <ctime>

#include "server/http/session.hpp"

namespace lockstep::server {
namespace {

std::string_view reason_phrase(int status) {
  if (status == 499) return "Client Closed Request";
  const auto phrase = boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(status));
  return {phrase.data(), phrase.size()};
}

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 40> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return {text.data(), size};
}

/// A header's value must not start another header.
void append_header(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out += ": ";
  for (const char c : value) out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  out += "\r\n";
}

}  // namespace

std::string random_id() {
  std::array<unsigned char, 12> bytes{};
  if (::RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) std::abort();  // no randomness, no service
  std::string out;
  for (const unsigned char byte : bytes) out += fmt::format("{:02x}", byte);
  return out;
}

LiveExchange::LiveExchange(std::shared_ptr<Session> session, std::shared_ptr<HttpShared> shared,
                           asio::any_io_executor executor, HttpRequest request, BodyShare share)
    : shared_(std::move(shared)),
      executor_(std::move(executor)),
      session_(std::move(session)),
      request_(std::move(request)),
      share_(std::move(share)) {
  record_.id = random_id();
  record_.bytes_in = request_.body.size();
  const std::lock_guard lock(shared_->mutex);
  ++shared_->active;
}

void LiveExchange::drop_body() {
  request_.body = {};
  share_.release();
}

void LiveExchange::start_stream(const HttpResponse& head) {
  if (!session_ || streaming_ || complete_) return;
  streaming_ = true;
  chunked_ = !http_10_;
  if (http_10_) keep_alive_ = false;
  if (shared_->draining.load()) keep_alive_ = false;
  record_.status = head.status;
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", head.status, reason_phrase(head.status));
  append_header(out, "date", http_date());
  append_header(out, "content-type", head.content_type);
  append_header(out, "x-request-id", record_.id);
  append_header(out, "x-content-type-options", "nosniff");
  for (const auto& [name, value] : head.headers) append_header(out, name, value);
  for (const auto& [name, value] : shared_->handler.extra_headers(request_)) append_header(out, name, value);
  append_header(out, "connection", keep_alive_ ? "keep-alive" : "close");
  if (chunked_) append_header(out, "transfer-encoding", "chunked");
  out += "\r\n";
  session_->send(out);
}

void LiveExchange::write(std::string_view piece) {
  if (!session_ || !streaming_ || complete_ || piece.empty()) return;
  session_->send(chunked_ ? fmt::format("{:x}\r\n{}\r\n", piece.size(), piece) : std::string(piece));
}

void LiveExchange::end_stream() {
  if (!session_ || !streaming_ || complete_) return;
  complete_ = true;
  const std::shared_ptr<Session> session = session_;
  if (chunked_) {
    session->send("0\r\n\r\n");
  } else if (!session->writing_) {
    session->finish_response();
  }
}

void LiveExchange::respond(HttpResponse response) {
  if (!session_ || streaming_ || complete_) return;
  complete_ = true;
  if (shared_->draining.load()) keep_alive_ = false;
  record_.status = response.status;
  if (!response.error.empty()) note("error", response.error);
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_phrase(response.status));
  append_header(out, "date", http_date());
  if (!response.body.empty()) append_header(out, "content-type", response.content_type);
  if (response.status != 204) append_header(out, "content-length", std::to_string(response.body.size()));
  append_header(out, "x-request-id", record_.id);
  append_header(out, "x-content-type-options", "nosniff");
  for (const auto& [name, value] : response.headers) append_header(out, name, value);
  for (const auto& [name, value] : shared_->handler.extra_headers(request_)) append_header(out, name, value);
  append_header(out, "connection", keep_alive_ ? "keep-alive" : "close");
  out += "\r\n";
  if (request_.method != "HEAD") out += response.body;
  session_->send(out);
}

void LiveExchange::every(double seconds, std::function<void()> callback) {
  if (!session_ || seconds <= 0) return;
  tick_ = std::move(callback);
  tick_seconds_ = seconds;
  ticker_.emplace(executor_);
  tick();
}

void LiveExchange::tick() {
  ticker_->expires_after(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(tick_seconds_)));
  ticker_->async_wait([self = shared_from_this()](const ErrorCode& error) {
    if (error || !self->session_ || self->complete_) return;
    self->tick_();
    if (self->session_ && !self->complete_) self->tick();
  });
}

void LiveExchange::post(std::function<void()> function) {
  if (shared_->stopped.load()) return;  // nobody would ever run it
  asio::post(executor_, std::move(function));
}

void LiveExchange::detach(bool gone) {
  if (!session_) return;
  const std::shared_ptr<Session> keep = std::move(session_);
  session_.reset();
  if (ticker_) ticker_->cancel();
  record_.request = &request_;
  record_.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  record_.gone = gone;
  if (gone && gone_) gone_();
  gone_ = sent_ = tick_ = {};
  shared_->handler.record(record_);
  const std::lock_guard lock(shared_->mutex);
  if (--shared_->active == 0) shared_->changed.notify_all();
}

}  // namespace lockstep::server
