// One line of JSON per request: what happened, never what was said.
#pragma once

#include <memory>
#include <string>

#include "base/result.hpp"
#include "server/http/http_server.hpp"

namespace lockstep::server {

/// {"time", "id", "remote", "method", "path", "status", "seconds", "bytes_in", "bytes_out", "gone", ...notes}. Lines
/// are written whole, from any thread. The query, the headers and the bodies are not logged.
class AccessLog {
 public:
  /// Appends to `path`; "-" is standard error. Errors: Io.
  static Result<std::unique_ptr<AccessLog>> open(const std::string& path);

  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;
  ~AccessLog();
  void write(const HttpRecord& record);

 private:
  AccessLog(int descriptor, bool owned) : descriptor_(descriptor), owned_(owned) {}
  int descriptor_;
  bool owned_;
};

/// The line without its end.
[[nodiscard]] std::string access_line(const HttpRecord& record, std::string_view time);

}  // namespace lockstep::server
