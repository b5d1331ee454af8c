// One line of JSON per request: what happened, never what was said.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
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
  /// Lines that could not be written, and why the last one could not. Any thread.
  [[nodiscard]] std::uint64_t errors() const;
  [[nodiscard]] std::string last_error() const;

 private:
  AccessLog(int descriptor, bool owned) : descriptor_(descriptor), owned_(owned) {}
  const int descriptor_;
  const bool owned_;
  mutable std::mutex mutex_;
  std::uint64_t errors_ = 0;
  std::string last_error_;
  bool torn_ = false;  ///< the last line in the file has no end
};

/// The line without its end.
[[nodiscard]] std::string access_line(const HttpRecord& record, std::string_view time);

}  // namespace lockstep::server
