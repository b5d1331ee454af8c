#include "server/access_log.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>

namespace lockstep::server {
namespace {

/// 2026-01-31T12:34:56.789Z
std::string now_text() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:03d}Z", std::string_view(text.data(), size), millis);
}

}  // namespace

Result<std::unique_ptr<AccessLog>> AccessLog::open(const std::string& path) {
  if (path == "-") return std::unique_ptr<AccessLog>(new AccessLog(STDERR_FILENO, false));
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640);
  if (descriptor < 0) return fail(ErrorKind::Io, "{}: cannot open the access log: {}", path, std::strerror(errno));
  return std::unique_ptr<AccessLog>(new AccessLog(descriptor, true));
}

AccessLog::~AccessLog() {
  if (owned_) ::close(descriptor_);
}

void AccessLog::write(const HttpRecord& record) {
  const std::string text = access_line(record, now_text());
  const std::lock_guard lock(mutex_);
  const std::string line = fmt::format("{}{}\n", torn_ ? "\n" : "", text);
  // A log that cannot be written must not cost an answer; one write() of an O_APPEND file stays in one piece. Standard
  // error, which others share, cannot be opened so that it never blocks.
  pollfd room{descriptor_, POLLOUT, 0};
  const bool ready = ::poll(&room, 1, 0) != 0;
  const ssize_t written = ready ? ::write(descriptor_, line.data(), line.size()) : -1;
  if (written == static_cast<ssize_t>(line.size())) {
    torn_ = false;
    return;
  }
  ++errors_;
  last_error_ = fmt::format("the access log: cannot write: {}", std::strerror(!ready        ? EAGAIN
                                                                              : written < 0 ? errno
                                                                                            : ENOSPC));
  torn_ = torn_ || written > 0;
}

std::uint64_t AccessLog::errors() const {
  const std::lock_guard lock(mutex_);
  return errors_;
}

std::string AccessLog::last_error() const {
  const std::lock_guard lock(mutex_);
  return last_error_;
}

std::string access_line(const HttpRecord& record, std::string_view time) {
  OrderedJson line = {{"time", time}, {"id", record.id}};
  line["remote"] = record.request->remote;
  line["method"] = record.request->method;
  line["path"] = record.request->path.substr(0, 256);
  line["status"] = record.status;
  line["seconds"] = record.seconds;
  line["bytes_in"] = record.bytes_in;
  line["bytes_out"] = record.bytes_out;
  line["gone"] = record.gone;
  for (const auto& [key, value] : record.notes.items()) line[key] = value;
  return line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace lockstep::server
