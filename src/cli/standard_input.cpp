#include "cli/standard_input.hpp"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "text/utf8.hpp"

namespace lockstep::cli {

Result<std::string> read_stdin(std::size_t max_bytes, const InterruptScope& interrupts) {
  std::string text;
  std::array<char, 65536> buffer;
  while (true) {
    // A signal between a look at the flag and a blocking read would be lost; the descriptor stays readable.
    std::array<pollfd, 2> waits{pollfd{STDIN_FILENO, POLLIN, 0}, pollfd{InterruptScope::descriptor(), POLLIN, 0}};
    ::poll(waits.data(), waits.size(), -1);
    LOCKSTEP_TRY(interrupts.check());
    if (waits[0].revents == 0) continue;
    const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail(ErrorKind::Io, "standard input: cannot read: {}", std::strerror(errno));
    if (count == 0) return text;
    if (static_cast<std::size_t>(count) > max_bytes - text.size()) {
      return fail(ErrorKind::Limit, "standard input: more than the limit of {} bytes", max_bytes);
    }
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

Status check_utf8(std::string_view text, std::string_view what) {
  const std::size_t bad = text::first_invalid_utf8(text);
  if (bad == text.size()) return {};
  return fail(ErrorKind::Invalid, "{}: not valid UTF-8 at byte {}", what, bad);
}

}  // namespace lockstep::cli
