#include "cli/terminal.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/printable.hpp"
#include "cli/interrupt.hpp"

namespace lockstep::cli {
namespace {

int first_stdout_error = 0;
std::string unsent;  // of standard output

constexpr std::size_t kMostUnsent = std::size_t{1} << 16;
constexpr std::size_t kPiece = 4096;  // a pipe that poll() calls writable takes this much without blocking
constexpr int kForEver = -1;
constexpr int kAfterInterruptMs = 50;  // for a reader that is only slow
constexpr int kComplaintMs = 1000;

enum class Sent { All, Interrupted, TimedOut, Failed };

/// Waits at most `patience_ms` for room in what is behind the descriptor, and not at all for a reader that takes
/// nothing once the user has interrupted. Without a look at the signals a blocked write() would swallow the first of
/// them.
Sent wait_for_room(int descriptor, int patience_ms) {
  for (;;) {
    const bool asked = InterruptScope::asked();
    std::array<pollfd, 2> waits{pollfd{descriptor, POLLOUT, 0},
                                pollfd{asked ? -1 : InterruptScope::descriptor(), POLLIN, 0}};
    const int count = ::poll(waits.data(), waits.size(), asked ? kAfterInterruptMs : patience_ms);
    if (waits[0].revents != 0) return Sent::All;  // an error is found by write()
    if (count == 0) return asked ? Sent::Interrupted : Sent::TimedOut;
  }
}

/// Failed leaves the reason in errno.
Sent send(int descriptor, std::string_view text, int patience_ms) {
  while (!text.empty()) {
    const Sent room = wait_for_room(descriptor, patience_ms);
    if (room != Sent::All) return room;
    const ssize_t count = ::write(descriptor, text.data(), std::min(text.size(), kPiece));
    if (count < 0 && errno != EINTR && errno != EAGAIN) return Sent::Failed;
    if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
  }
  return Sent::All;
}

Status stdout_failure() {
  if (first_stdout_error == 0) first_stdout_error = errno != 0 ? errno : EIO;
  return fail(ErrorKind::Io, "standard output: cannot write: {}", std::strerror(first_stdout_error));
}

const char* escape(Style style) {
  switch (style) {
    case Style::Bold:
      return "\x1b[1m";
    case Style::Dim:
      return "\x1b[2m";
    case Style::Red:
      return "\x1b[31m";
    case Style::Green:
      return "\x1b[32m";
    case Style::Yellow:
      return "\x1b[33m";
    case Style::Cyan:
      return "\x1b[36m";
  }
  return "";
}

}  // namespace

bool is_terminal(Stream stream) {
  return ::isatty(stream == Stream::Out ? STDOUT_FILENO : STDERR_FILENO) == 1;
}

bool stdin_is_terminal() {
  return ::isatty(STDIN_FILENO) == 1;
}

bool use_colour(Stream stream) {
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  const char* term = std::getenv("TERM");
  if (term == nullptr || std::string_view(term) == "dumb") return false;
  return is_terminal(stream);
}

std::string styled(std::string_view text, Style style, Stream stream) {
  if (!use_colour(stream)) return std::string(text);
  return fmt::format("{}{}\x1b[0m", escape(style), text);
}

int terminal_width() {
  constexpr int kDefault = 80;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefault;
  return size.ws_col;
}

Status write_stdout(std::string_view text) {
  if (first_stdout_error != 0) return stdout_failure();
  unsent += text;
  if (unsent.size() < kMostUnsent && !is_terminal(Stream::Out)) return {};
  return flush_stdout();
}

Status flush_stdout() {
  if (first_stdout_error != 0) return stdout_failure();
  const std::string text = std::exchange(unsent, {});
  errno = 0;
  switch (send(STDOUT_FILENO, text, kForEver)) {
    case Sent::Failed:
      return stdout_failure();
    case Sent::Interrupted:
    case Sent::TimedOut:
      return fail(ErrorKind::Cancelled, "interrupted");
    case Sent::All:
      break;
  }
  return {};
}

void write_stderr(std::string_view text) {
  send(STDERR_FILENO, text, kForEver);
}

void complain(std::string_view message) {
  send(STDERR_FILENO, fmt::format("lockstep: {}\n", printable(message)), kComplaintMs);
}

int stdout_error() {
  return first_stdout_error;
}

void reserve_standard_streams() {
  // open() returns the lowest free number, so each closed descriptor is filled before the next one is looked at.
  constexpr int kModes[] = {O_WRONLY, O_RDONLY, O_RDWR};
  for (int descriptor = 0; descriptor < 3; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) != -1 || errno != EBADF) continue;
    if (::open("/dev/null", kModes[descriptor]) < 0) std::abort();
  }
}

}  // namespace lockstep::cli
