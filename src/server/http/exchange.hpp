// One HTTP request and its response, as routes see them. What speaks HTTP is behind this interface
// (http/http_server.hpp); tests put something simpler there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.hpp"

namespace lockstep::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method, path, query;  ///< path without the query, as the client wrote it
  Headers headers;                  ///< names in lower case
  std::string body;
  std::string remote;  ///< address and port of the client

  /// The value of the first header of that name (in lower case), or nothing.
  [[nodiscard]] std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  Headers headers;
  std::string body;
  std::string error;  ///< an error's code, for the access log
};

/// Everything but post() and unsent() is called from the exchange's own sequence: from within the handler, or from a
/// function given to post(). After the response is complete, or the client has gone, calls have no effect.
class Exchange {
 public:
  Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  virtual ~Exchange() = default;

  [[nodiscard]] virtual const HttpRequest& request() const = 0;
  /// The request's body is not needed any more.
  virtual void drop_body() = 0;

  /// The whole response.
  virtual void respond(HttpResponse response) = 0;
  /// A response in pieces: the head (its body is not used), pieces, the end.
  virtual void start_stream(const HttpResponse& head) = 0;
  virtual void write(std::string_view piece) = 0;
  virtual void end_stream() = 0;

  /// Called once if the client goes away before the response is complete.
  virtual void on_gone(std::function<void()> callback) = 0;
  /// Called whenever sending has caught up with most of what was written.
  virtual void on_sent(std::function<void()> callback) = 0;
  /// Called every `seconds` while the response is not complete.
  virtual void every(double seconds, std::function<void()> callback) = 0;

  /// Runs a function in the exchange's sequence. Any thread.
  virtual void post(std::function<void()> function) = 0;
  /// Bytes written but not yet handed to the system. Any thread.
  [[nodiscard]] virtual std::size_t unsent() const = 0;

  /// Facts for the access log: never what a user wrote or got.
  virtual void note(std::string_view key, OrderedJson value) = 0;
  /// The id in the header x-request-id.
  [[nodiscard]] virtual const std::string& id() const = 0;
};

}  // namespace lockstep::server
