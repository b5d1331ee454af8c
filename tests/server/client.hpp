// A blocking HTTP client that can also misbehave.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"

namespace lockstep::test {

struct Reply {
  int status = 0;                              ///< 0: the connection ended before there was one
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;                            ///< chunks joined
  [[nodiscard]] OrderedJson json() const { return OrderedJson::parse(body, nullptr, false); }
};

/// One server-sent event.
struct SseEvent {
  std::string name, data;
};

class Connection {
 public:
  explicit Connection(std::uint16_t port);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  /// False when the server has closed the connection.
  bool send(std::string_view bytes);
  /// The next whole response; waits at most 30 s.
  Reply receive(bool head = false);
  /// Whatever comes next; empty at the end of the connection.
  std::string receive_some();
  /// Reads until `text` has come; false when the connection ends first.
  bool receive_until(std::string_view text);
  void close();
  /// Ends only this half: the server may still send.
  void end_sending();
  /// Makes the system buffer little, so that a slow reader is felt.
  void shrink_buffers();

 private:
  bool fill();
  int socket_ = -1;
  std::string buffer_;
};

using Pairs = std::vector<std::pair<std::string, std::string>>;

[[nodiscard]] std::string request_text(std::string_view method, std::string_view path, std::string_view body = {},
                                       const Pairs& headers = {});
/// One request on a connection of its own.
Reply ask(std::uint16_t port, std::string_view method, std::string_view path, std::string_view body = {},
          const Pairs& headers = {});
/// The events of a stream; comments are left out.
[[nodiscard]] std::vector<SseEvent> sse_events(std::string_view body);

}  // namespace lockstep::test
