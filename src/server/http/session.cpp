#include "server/http/session.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>

namespace lockstep::server {
namespace {

namespace http = boost::beast::http;

constexpr std::size_t kLowMark = std::size_t{64} << 10;  ///< unsent bytes below which on_sent() is called
constexpr std::size_t kAhead = std::size_t{64} << 10;    ///< read of next requests while one is answered
constexpr std::size_t kLingerBytes = std::size_t{4} << 20;
constexpr double kLingerSeconds = 2;

std::string lower(boost::beast::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return out;
}

std::string address_of(const Tcp::socket& socket) {
  ErrorCode failed;
  const Tcp::endpoint end = socket.remote_endpoint(failed);
  return failed ? "" : fmt::format("{}:{}", end.address().to_string(failed), end.port());
}

/// Path and query of a request's target. One with a scheme and an authority, as for a proxy, is as good as a path, and
/// its authority counts instead of the header Host (RFC 9112, 3.2.2).
void set_target(std::string_view target, HttpRequest& request) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    target.remove_prefix(scheme.size());
    const std::size_t end = std::min(target.find_first_of("/?"), target.size());
    for (auto& [name, value] : request.headers) {
      if (name == "host" && end > 0) value = std::string(target.substr(0, end));
    }
    target.remove_prefix(end);
    break;
  }
  const std::size_t mark = target.find('?');
  request.path = std::string(target.substr(0, mark));
  if (request.path.empty()) request.path = "/";
  if (mark != std::string_view::npos) request.query = std::string(target.substr(mark + 1));
}

HttpFailure too_large(const HttpOptions& options) {
  return {413, "body_too_large",
          fmt::format("the request's body is larger than the limit of {} bytes", options.body_bytes)};
}

/// The client has said its last. Without TLS's own end, which many leave out, its connection just ends.
bool at_end(const ErrorCode& error) {
  return error == asio::error::eof || error == asio::ssl::error::stream_truncated;
}

HttpFailure not_http(const ErrorCode& error) {
  return {400, "invalid_http", fmt::format("not HTTP/1.1: {}", error.message())};
}

}  // namespace

Session::Session(Tcp::socket socket, std::shared_ptr<HttpShared> shared)
    : shared_(std::move(shared)), stream_(std::move(socket), shared_->tls), timer_(stream_.get_executor()) {
  remote_ = address_of(stream_.socket());
  shared_->connections.fetch_add(1);
}

Session::~Session() {
  shared_->connections.fetch_sub(1);
  const std::lock_guard lock(shared_->mutex);
  shared_->sessions.erase(this);
}

void Session::join_server() {
  const std::lock_guard lock(shared_->mutex);
  shared_->sessions.emplace(this, weak_from_this());
}

void Session::start() {
  join_server();
  asio::post(stream_.get_executor(), [self = shared_from_this()] {
    if (!self->stream_.is_tls()) return self->read_header();
    self->deadline(self->shared_->options.header_seconds);
    self->stream_.async_handshake([self](const ErrorCode& error) { error ? self->close() : self->read_header(); });
  });
}

void Session::turn_away() {
  join_server();
  asio::post(stream_.get_executor(), [self = shared_from_this()] {
    self->close_after_ = true;
    if (self->stream_.is_tls()) return self->close();  // not worth a hand-shake
    self->refuse({503, "too_many_connections",
                  fmt::format("all {} connections are in use", self->shared_->options.connections), 1});
  });
}

void Session::close_soon() {
  asio::post(stream_.get_executor(), [self = shared_from_this()] {
    self->close_after_ = true;
    if (!self->current_ && self->phase_ == Phase::Idle) self->close();
  });
}

void Session::close_now() {
  asio::post(stream_.get_executor(), [self = shared_from_this()] { self->gone(); });
}

void Session::read_header() {
  if (phase_ == Phase::Closed) return;
  wants_request_ = false;
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(shared_->options.header_bytes));
  parser_->body_limit(shared_->options.body_bytes);
  deadline(phase_ == Phase::Idle ? shared_->options.idle_seconds : shared_->options.header_seconds);
  skip_empty_lines();
}

/// Empty lines before a request are no part of it (RFC 9112, 2.2): some clients send one behind a body.
void Session::skip_empty_lines() {
  const auto next = [this] {
    return std::string_view(static_cast<const char*>(buffer_.data().data()), buffer_.size());
  };
  while (next().starts_with("\r\n")) buffer_.consume(2);
  if (next().empty() || next() == "\r") {
    return stream_.async_read_some(buffer_.prepare(4096),
                                   [self = shared_from_this()](const ErrorCode& error, std::size_t count) {
                                     if (error) return self->on_header(error);
                                     self->buffer_.commit(count);
                                     if (self->phase_ != Phase::Header && self->phase_ != Phase::Idle) return;
                                     self->skip_empty_lines();
                                   });
  }
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](const ErrorCode& error, std::size_t) { self->on_header(error); });
}

void Session::on_header(const ErrorCode& error) {
  if (phase_ != Phase::Header && phase_ != Phase::Idle) return;  // the deadline has answered
  if (error == http::error::header_limit) {
    return refuse(
        {431, "header_too_large",
         fmt::format("the request's header is larger than the limit of {} bytes", shared_->options.header_bytes)});
  }
  if (error == http::error::body_limit) return refuse(too_large(shared_->options));
  if (error == http::error::end_of_stream || error == http::error::partial_message) return close();
  if (error && error.category() == make_error_code(http::error::bad_method).category()) return refuse(not_http(error));
  if (error) return close();
  phase_ = Phase::Body;
  HttpRequest request = take_head();
  const std::size_t hosts = parser_->get().count(http::field::host);
  if (hosts > 1 || (hosts == 0 && parser_->get().version() >= 11)) {
    return refuse(
        {400, "invalid_http", hosts > 1 ? "the request has several Host headers" : "the request has no Host header"});
  }
  // Two ways to find the body's end are how requests are smuggled past proxies.
  if (!request.header("transfer-encoding").empty() && !request.header("content-length").empty()) {
    return refuse({400, "invalid_http", "the request has both Content-Length and Transfer-Encoding"});
  }
  const std::string_view coding = request.header("transfer-encoding");
  if (!coding.empty() && !boost::beast::iequals(parser_->get()[http::field::transfer_encoding], "chunked")) {
    return refuse({501, "unsupported_encoding", "the only Transfer-Encoding is chunked"});
  }
  const bool expects = !request.header("expect").empty() && parser_->get().version() >= 11;  // older ones cannot
  if (expects && !boost::beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    return refuse({417, "expectation_failed", "the only expectation that can be met is 100-continue"});
  }
  if (std::optional<HttpResponse> response = shared_->handler.refuse(request)) {
    make_exchange(std::move(request), false);
    return current_->respond(*std::move(response));
  }
  deadline(shared_->options.body_seconds);
  if (!expects) return read_body();
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(stream_, asio::buffer(kContinue.data(), kContinue.size()),
                    [self = shared_from_this()](const ErrorCode& failed, std::size_t) {
                      failed ? self->close() : self->read_body();
                    });
}

void Session::read_body() {
  if (parser_->is_done()) return take_request();
  http::async_read_some(stream_, buffer_, *parser_,
                        [self = shared_from_this()](const ErrorCode& error, std::size_t) { self->on_body(error); });
}

void Session::on_body(const ErrorCode& error) {
  if (phase_ != Phase::Body) return;
  if (error == http::error::buffer_overflow) {
    return refuse({431, "header_too_large", "a chunk's extension or the trailer is too large"});
  }
  if (error == http::error::body_limit) return refuse(too_large(shared_->options));
  if (error && error.category() == make_error_code(http::error::bad_method).category() &&
      error != http::error::end_of_stream && error != http::error::partial_message) {
    return refuse(not_http(error));
  }
  if (error) return close();
  const HttpOptions& options = shared_->options;
  const std::size_t most =
      std::max(options.body_bytes, options.all_bodies_bytes > 0 ? options.all_bodies_bytes : 8 * options.body_bytes);
  if (!share_.grow(shared_->bodies, parser_->get().body().size(), most)) {
    return refuse({503, "too_many_bodies",
                   fmt::format("the bodies of all requests under way are larger than the limit of {} bytes", most), 1});
  }
  read_body();
}

void Session::take_request() {
  HttpRequest request = take_head();
  request.body = std::move(parser_->get().body());
  make_exchange(std::move(request), parser_->get().keep_alive());
  current_->http_10_ = parser_->get().version() < 11;
  parser_.reset();
  timer_.expires_at(Clock::time_point::max());
  watch();
  answer();
}

HttpRequest Session::take_head() const {
  const auto& message = parser_->get();
  HttpRequest request;
  request.method = std::string(message.method_string());
  for (const auto& field : message) request.headers.emplace_back(lower(field.name_string()), field.value());
  set_target({message.target().data(), message.target().size()}, request);
  request.remote = remote_;
  return request;
}

void Session::make_exchange(HttpRequest request, bool keep_alive) {
  phase_ = Phase::Answer;
  current_ = std::make_shared<LiveExchange>(shared_from_this(), shared_, stream_.get_executor(), std::move(request),
                                            std::move(share_));
  current_->keep_alive_ = keep_alive && !close_after_;
}

void Session::answer() {
  const std::shared_ptr<LiveExchange> exchange = current_;
  try {
    shared_->handler.handle(exchange);
  } catch (const std::exception&) {
    exchange->respond(shared_->handler.failure(exchange->request(), failed_request()));
  }
}

void Session::refuse(HttpFailure failure) {
  HttpRequest request;
  request.remote = remote_;
  if (parser_) request = take_head();
  if (parser_) parser_->get().body() = {};
  share_.release();
  make_exchange(std::move(request), false);
  current_->respond(shared_->handler.failure(current_->request(), std::move(failure)));
}

/// Reads while a response is under way, because only a read notices that the client has gone. What comes belongs to the
/// next requests; a client that has sent so much of them is watched no longer.
void Session::watch() {
  if (watching_ || buffer_.size() >= kAhead) return;
  watching_ = true;
  stream_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](const ErrorCode& error, std::size_t n) {
    self->watching_ = false;
    if (self->phase_ == Phase::Closed) return;
    if (self->phase_ == Phase::Linger) {
      // This read gets the end of the connection, and read_rest() does not.
      if (error) self->close();
      return;
    }
    const bool called_off = error == asio::error::operation_aborted && self->wants_request_;
    // A client that says no more while it is sent the end of its response: whether it gets it, writing tells.
    if (at_end(error) && self->current_ && self->current_->complete_) return;
    if (error && !called_off) return self->gone();
    self->buffer_.commit(n);
    if (!self->wants_request_) return self->watch();
    self->phase_ = Phase::Header;
    self->read_header();
  });
}

void Session::send(std::string_view bytes) {
  if (phase_ == Phase::Closed) return;
  outgoing_ += bytes;
  if (current_) current_->unsent_.fetch_add(bytes.size());
  if (writing_) return;
  writing_ = true;
  sending_.swap(outgoing_);
  write_more();
}

void Session::write_more() {
  deadline(shared_->options.stall_seconds);
  stream_.async_write_some(
      asio::buffer(sending_.data() + sent_, sending_.size() - sent_),
      [self = shared_from_this()](const ErrorCode& error, std::size_t count) { self->on_written(error, count); });
}

void Session::on_written(const ErrorCode& error, std::size_t count) {
  if (phase_ == Phase::Closed) return;
  if (error) return gone();
  sent_ += count;
  if (current_) {
    current_->unsent_.fetch_sub(count);
    current_->record_.bytes_out += count;
    if (current_->unsent_.load() < kLowMark && current_->sent_) current_->sent_();
  }
  if (phase_ == Phase::Closed) return;
  if (sent_ < sending_.size()) return write_more();
  sending_.clear();
  sent_ = 0;
  if (!outgoing_.empty()) {
    sending_.swap(outgoing_);
    return write_more();
  }
  writing_ = false;
  timer_.expires_at(Clock::time_point::max());
  if (current_ && current_->complete_) finish_response();
}

void Session::finish_response() {
  const std::shared_ptr<LiveExchange> done = std::move(current_);
  current_.reset();
  const bool keep = done->keep_alive_ && !close_after_ && !shared_->draining.load();
  done->detach(false);
  if (!keep) return end_sending();
  phase_ = Phase::Idle;
  if (!watching_) return read_header();
  wants_request_ = true;
  deadline(shared_->options.idle_seconds);
  // Nothing more need come of a request that is here.
  if (buffer_.size() > 0) stream_.socket().cancel();
}

void Session::gone() {
  const std::shared_ptr<LiveExchange> left = std::move(current_);
  current_.reset();
  close();
  if (left) left->detach(true);
}

/// After the last response. With TLS its end is said first, so that the client knows that nothing was cut off.
void Session::end_sending() {
  if (phase_ == Phase::Closed) return;
  phase_ = Phase::Linger;
  deadline(kLingerSeconds);
  if (!stream_.is_tls()) return linger();
  stream_.async_shutdown([self = shared_from_this()](const ErrorCode&) { self->linger(); });
}

/// Closing while the client still sends would make its system drop the response. So it may send a little more.
void Session::linger() {
  if (phase_ == Phase::Closed) return;
  ErrorCode ignored;
  stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
  // Not into buffer_, where the read of watch() may still put something.
  rest_.resize(16384);
  read_rest();
}

void Session::read_rest() {
  stream_.socket().async_read_some(asio::buffer(rest_),
                                   [self = shared_from_this()](const ErrorCode& error, std::size_t count) {
                                     if (self->phase_ == Phase::Closed) return;
                                     self->lingered_ += count;
                                     if (error || self->lingered_ > kLingerBytes) return self->close();
                                     self->read_rest();
                                   });
}

void Session::close() {
  if (phase_ == Phase::Closed) return;
  phase_ = Phase::Closed;
  timer_.cancel();
  ErrorCode ignored;
  stream_.socket().close(ignored);
}

void Session::deadline(double seconds) {
  timer_.expires_after(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
  timer_.async_wait([self = shared_from_this()](const ErrorCode& error) {
    // A wait that ended just before it was replaced is not an error.
    if (!error && self->timer_.expiry() <= Clock::now()) self->on_deadline();
  });
}

void Session::on_deadline() {
  if (phase_ == Phase::Closed) return;
  // A client that began a request is told; what stalls in the middle of a response is only closed.
  const bool unfinished = phase_ == Phase::Body || (phase_ != Phase::Answer && buffer_.size() > 0);
  if (!unfinished || phase_ == Phase::Linger || stream_.is_tls()) return gone();
  stream_.socket().cancel();
  refuse({408, "request_timeout", "the request took too long to arrive"});
}

}  // namespace lockstep::server
