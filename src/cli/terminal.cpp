#include "cli/terminal.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/printable.hpp"

namespace lockstep::cli {
namespace {

int first_stdout_error = 0;

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
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) return stdout_failure();
  return {};
}

void write_stderr(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void complain(std::string_view message) {
  write_stderr(fmt::format("lockstep: {}\n", printable(message)));
}

Status flush_stdout() {
  if (first_stdout_error != 0) return stdout_failure();
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return stdout_failure();
  return {};
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
