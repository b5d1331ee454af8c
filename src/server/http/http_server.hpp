// HTTP/1.1 over TCP or TLS (Boost.Beast), with the limits that keep a server alive among strangers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.hpp"
#include "server/http/exchange.hpp"

namespace lockstep::server {

struct HttpOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;  ///< 0: one that is free
  int threads = 4;
  std::string tls_certificate, tls_key;  ///< PEM files; both or none
  std::size_t header_bytes = std::size_t{16} << 10;
  std::size_t body_bytes = std::size_t{32} << 20;
  std::size_t all_bodies_bytes = 0;  ///< of all requests under way; 0: eight times body_bytes
  std::size_t connections = 512;
  double header_seconds = 15;  ///< to send a request's header, TLS hand-shake included
  double body_seconds = 60;    ///< to send its body
  double idle_seconds = 75;    ///< between requests of a connection
  double stall_seconds = 60;   ///< without any progress of a response that the client should take
};

/// A request that has been answered, for the access log and the metrics.
struct HttpRecord {
  const HttpRequest* request = nullptr;  ///< its body is not to be looked at
  std::string id;
  int status = 0;  ///< 0: the client went away before there was one
  std::uint64_t bytes_in = 0, bytes_out = 0;
  double seconds = 0;
  bool gone = false;  ///< the client left before the response was complete
  OrderedJson notes = OrderedJson::object();
};

/// A request that HTTP itself forbids, or that the server cannot take.
struct HttpFailure {
  int status = 400;
  std::string code;     ///< machine-readable
  std::string message;  ///< one line
  std::int64_t retry_after_seconds = 0;
};

/// What an exception is to the client. It was out of memory, most likely; its message could quote the request.
inline HttpFailure failed_request() {
  return {500, "internal_error", "the server failed on this request"};
}

/// What answers requests. Called from several threads; must not throw.
class HttpHandler {
 public:
  HttpHandler() = default;
  HttpHandler(const HttpHandler&) = delete;
  HttpHandler& operator=(const HttpHandler&) = delete;
  virtual ~HttpHandler() = default;

  /// Looks at a request before its body is read; a response here is the end of it.
  virtual std::optional<HttpResponse> refuse(const HttpRequest& request) = 0;
  /// Answers now or later, through the exchange.
  virtual void handle(const std::shared_ptr<Exchange>& exchange) = 0;
  /// Headers that every response to this request gets.
  virtual Headers extra_headers(const HttpRequest& request) = 0;
  /// The response to such a request, of which there may be no more than the client's address.
  virtual HttpResponse failure(const HttpRequest& request, HttpFailure failure) = 0;
  virtual void record(const HttpRecord& record) = 0;
};

class HttpServer {
 public:
  /// Listens and starts the threads. `handler` must outlive the server. Errors: Io (address, port), Invalid
  /// (certificate).
  static Result<std::unique_ptr<HttpServer>> start(const HttpOptions& options, HttpHandler& handler);

  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  virtual ~HttpServer() = default;

  [[nodiscard]] virtual std::uint16_t port() const = 0;
  [[nodiscard]] virtual std::size_t connections() const = 0;
  /// Whether it listens on an address that only this machine can reach.
  [[nodiscard]] virtual bool loopback() const = 0;
  /// Closes connections after the response under way; new ones are still taken.
  virtual void drain() = 0;
  /// Waits until no response is under way, at most `seconds`. True when that is so.
  virtual bool wait_idle(double seconds) = 0;
  /// Closes everything and joins the threads. Not from a handler.
  virtual void stop() = 0;

 protected:
  HttpServer() = default;
};

}  // namespace lockstep::server
