#include "cli/line_reader.hpp"

#include <editline/readline.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "cli/terminal.hpp"

namespace lockstep::cli {
namespace {

// The editor hands its line to a plain function; there is one terminal.
struct Edited {
  bool done = false;
  std::optional<std::string> line;
};
Edited edited;

void take_line(char* text) {
  const std::unique_ptr<char, decltype(&std::free)> owned(text, &std::free);
  edited.done = true;
  if (owned == nullptr) return;
  edited.line = owned.get();
  if (!edited.line->empty()) ::add_history(owned.get());
}

}  // namespace

LineReader::LineReader(const InterruptScope& interrupts) : interrupts_(interrupts), terminal_(stdin_is_terminal()) {
  if (!terminal_) return;
  std::setlocale(LC_CTYPE, "");  // the editor counts columns of characters, not bytes
  ::rl_outstream = stderr;       // standard output is for answers
  ::rl_catch_signals = 0;        // the scope's handlers stay; the editor's would pass signals on to the whole group
}

Result<std::optional<std::string>> LineReader::next() {
  if (terminal_) return edited_line();
  return plain_line();
}

LineReader::Ready LineReader::wait() const {
  for (;;) {
    if (interrupts_.requested()) return Ready::Interrupted;
    std::array<pollfd, 2> waits{pollfd{STDIN_FILENO, POLLIN, 0}, pollfd{InterruptScope::descriptor(), POLLIN, 0}};
    if (::poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) return Ready::End;
    if (interrupts_.requested()) return Ready::Interrupted;
    if ((waits[0].revents & POLLIN) != 0) return Ready::Input;
    if (waits[0].revents != 0) return Ready::End;  // the terminal or the writer has gone
  }
}

std::optional<std::string> LineReader::edited_line() {
  edited = {};
  ::rl_callback_handler_install("> ", take_line);
  Ready ready = Ready::Input;
  while (!edited.done && (ready = wait()) == Ready::Input) ::rl_callback_read_char();
  ::rl_callback_handler_remove();  // also puts the terminal back
  if (!edited.done || !edited.line) write_stderr("\n");
  return std::move(edited.line);
}

Result<std::optional<std::string>> LineReader::plain_line() {
  std::size_t searched = 0;
  for (;;) {
    const std::size_t end = buffer_.find('\n', searched);
    if (end != std::string::npos || (ended_ && !buffer_.empty())) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end == std::string::npos ? end : end + 1);
      return std::optional(std::move(line));
    }
    if (ended_) return std::optional<std::string>();
    searched = buffer_.size();
    if (searched > kMaxLineBytes) {
      return fail(ErrorKind::Limit, "standard input: a line is longer than {} bytes", kMaxLineBytes);
    }
    const Ready ready = wait();
    if (ready == Ready::Interrupted) return std::optional<std::string>();
    std::array<char, 65536> bytes{};
    const ssize_t count = ready == Ready::End ? 0 : ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR && errno != EAGAIN) {
      return fail(ErrorKind::Io, "standard input: cannot read: {}", std::strerror(errno));
    }
    if (count == 0) ended_ = true;
    if (count > 0) buffer_.append(bytes.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace lockstep::cli
