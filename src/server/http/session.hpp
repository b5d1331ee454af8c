// One connection: requests one after the other, each with its response. Only http/*.cpp include this (Boost.Beast).
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "server/http/http_server.hpp"

namespace lockstep::server {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;
using Tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;

class Session;

/// What the sessions of a server share. Sessions and exchanges keep it alive, so the context outlives them.
struct HttpShared {
  HttpShared(HttpOptions given, HttpHandler& handling) : options(std::move(given)), handler(handling) {}

  asio::io_context context;
  const HttpOptions options;
  HttpHandler& handler;
  std::optional<asio::ssl::context> tls;
  std::atomic<std::size_t> connections{0};
  std::atomic<std::size_t> bodies{0};  ///< bytes of the large ones that are kept
  std::atomic<bool> draining{false}, stopped{false};

  std::mutex mutex;
  std::condition_variable changed;
  std::size_t active = 0;  ///< responses under way
  std::map<Session*, std::weak_ptr<Session>> sessions;
};

/// What the body of one request takes of the memory for the bodies of all. Small ones are free, so that they come
/// through whatever others send; their number is bounded by that of the connections.
class BodyShare {
 public:
  static constexpr std::size_t kSmall = std::size_t{64} << 10;

  BodyShare() = default;
  BodyShare(BodyShare&& other) noexcept : all_(other.all_), bytes_(std::exchange(other.bytes_, 0)) {}
  BodyShare& operator=(BodyShare&& other) noexcept {
    std::swap(all_, other.all_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;
  ~BodyShare() { release(); }

  /// False when a body of so many bytes does not fit any more. `all` outlives this.
  bool grow(std::atomic<std::size_t>& all, std::size_t bytes, std::size_t most) {
    all_ = &all;
    if (bytes <= kSmall || bytes <= bytes_) return true;
    const std::size_t more = bytes - bytes_;
    bytes_ = bytes;
    return all.fetch_add(more) + more <= most;
  }
  void release() {
    if (all_ != nullptr) all_->fetch_sub(std::exchange(bytes_, 0));
  }

 private:
  std::atomic<std::size_t>* all_ = nullptr;
  std::size_t bytes_ = 0;
};

/// A TCP or TLS stream. Models AsyncReadStream and AsyncWriteStream.
class AnyStream {
 public:
  using executor_type = Tcp::socket::executor_type;

  AnyStream(Tcp::socket socket, std::optional<asio::ssl::context>& tls) {
    if (tls) {
      tls_.emplace(std::move(socket), *tls);
    } else {
      plain_.emplace(std::move(socket));
    }
  }
  executor_type get_executor() { return socket().get_executor(); }
  Tcp::socket& socket() { return tls_ ? tls_->next_layer() : *plain_; }
  [[nodiscard]] bool is_tls() const { return tls_.has_value(); }

  template <class Handler>
  void async_handshake(Handler&& handler) {
    tls_->async_handshake(asio::ssl::stream_base::server, std::forward<Handler>(handler));
  }
  /// Says that nothing more will come, and waits for the client to say so. Only with TLS.
  template <class Handler>
  void async_shutdown(Handler&& handler) {
    tls_->async_shutdown(std::forward<Handler>(handler));
  }
  template <class Buffers, class Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (tls_) {
      tls_->async_read_some(buffers, std::forward<Handler>(handler));
    } else {
      plain_->async_read_some(buffers, std::forward<Handler>(handler));
    }
  }
  template <class Buffers, class Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (tls_) {
      tls_->async_write_some(buffers, std::forward<Handler>(handler));
    } else {
      plain_->async_write_some(buffers, std::forward<Handler>(handler));
    }
  }

 private:
  std::optional<Tcp::socket> plain_;
  std::optional<asio::ssl::stream<Tcp::socket>> tls_;
};

/// The exchange of a session's current request. Detached from it, it ignores everything.
class LiveExchange final : public Exchange, public std::enable_shared_from_this<LiveExchange> {
 public:
  LiveExchange(std::shared_ptr<Session> session, std::shared_ptr<HttpShared> shared, asio::any_io_executor executor,
               HttpRequest request, BodyShare share);

  [[nodiscard]] const HttpRequest& request() const override { return request_; }
  void drop_body() override;
  void respond(HttpResponse response) override;
  void start_stream(const HttpResponse& head) override;
  void write(std::string_view piece) override;
  void end_stream() override;
  void on_gone(std::function<void()> callback) override { gone_ = std::move(callback); }
  void on_sent(std::function<void()> callback) override { sent_ = std::move(callback); }
  void every(double seconds, std::function<void()> callback) override;
  void post(std::function<void()> function) override;
  [[nodiscard]] std::size_t unsent() const override { return unsent_.load(); }
  void note(std::string_view key, OrderedJson value) override { record_.notes[std::string(key)] = std::move(value); }
  [[nodiscard]] const std::string& id() const override { return record_.id; }

 private:
  friend class Session;
  void tick();
  /// Ends the exchange: bookkeeping, and the callback when the client has gone.
  void detach(bool gone);

  std::shared_ptr<HttpShared> shared_;  // first in, last out: the executor belongs to its context
  asio::any_io_executor executor_;
  std::shared_ptr<Session> session_;
  HttpRequest request_;
  BodyShare share_;
  HttpRecord record_;
  Clock::time_point begin_ = Clock::now();
  std::atomic<std::size_t> unsent_{0};
  bool streaming_ = false, chunked_ = false, complete_ = false, keep_alive_ = false, http_10_ = false;
  std::function<void()> gone_, sent_, tick_;
  std::optional<asio::steady_timer> ticker_;
  double tick_seconds_ = 0;
};

class Session final : public std::enable_shared_from_this<Session> {
 public:
  Session(Tcp::socket socket, std::shared_ptr<HttpShared> shared);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  /// Starts on the session's own sequence.
  void start();
  /// Answers 503 and closes: too many connections.
  void turn_away();
  /// Closes now, or after the response under way. Any thread.
  void close_soon();
  void close_now();

 private:
  friend class LiveExchange;
  enum class Phase { Header, Idle, Body, Answer, Linger, Closed };

  /// Lets the server find this session when it ends.
  void join_server();
  void read_header();
  void skip_empty_lines();
  void on_header(const ErrorCode& error);
  void read_body();
  void on_body(const ErrorCode& error);
  void take_request();
  [[nodiscard]] HttpRequest take_head() const;
  void answer();
  void refuse(HttpFailure failure);
  void make_exchange(HttpRequest request, bool keep_alive);

  void watch();
  void send(std::string_view bytes);
  void write_more();
  void on_written(const ErrorCode& error, std::size_t count);
  void finish_response();
  void gone();
  void end_sending();
  void linger();
  void read_rest();
  void close();

  void deadline(double seconds);
  void on_deadline();

  std::shared_ptr<HttpShared> shared_;
  AnyStream stream_;
  asio::steady_timer timer_;
  /// Bounded, because the parser keeps a chunk's extension and the trailer of a body in it until they are whole.
  boost::beast::flat_buffer buffer_{std::size_t{256} << 10};
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  BodyShare share_;
  std::shared_ptr<LiveExchange> current_;
  std::string remote_;
  std::string sending_, outgoing_;
  std::string rest_;  ///< where what comes after the last response goes
  std::size_t sent_ = 0, lingered_ = 0;
  Phase phase_ = Phase::Header;
  bool writing_ = false, watching_ = false, wants_request_ = false, close_after_ = false;
};

/// 12 random bytes as hex.
[[nodiscard]] std::string random_id();

}  // namespace lockstep::server
