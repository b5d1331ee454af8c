#include "cli/session.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <stdexcept>

namespace lockstep::test {
namespace {

constexpr int kPatienceMs = 30000;

/// A pipe that takes nothing more: what reads it and what writes it.
std::array<int, 2> full_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) throw std::runtime_error("no pipe");
  ::fcntl(ends[1], F_SETPIPE_SZ, 4096);
  const std::array<char, 4096> bytes{};
  while (::write(ends[1], bytes.data(), bytes.size()) > 0) {
  }
  ::fcntl(ends[1], F_SETFL, 0);
  return ends;
}

[[noreturn]] void become(std::vector<std::string>& arguments) {
  // A test runner in the background may have been started with some of them ignored.
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, SIG_DFL);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::setenv("TERM", "dumb", 1);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

}  // namespace

Session::Session(Talk talk, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), LOCKSTEP_BINARY);
  if (talk == Talk::Terminal) {
    child_ = ::forkpty(&input_, nullptr, nullptr, nullptr);
    if (child_ == 0) become(arguments);
    out_ = input_;
  } else {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    const std::array<int, 2> full = full_pipe();
    child_ = ::fork();
    if (child_ == 0) {
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(talk == Talk::NoOutput ? full[1] : out[1], STDOUT_FILENO);
      ::dup2(talk == Talk::NoErrors ? full[1] : out[1], STDERR_FILENO);
      become(arguments);
    }
    full_ = full[0];
    ::close(full[1]);
    ::close(in[0]);
    ::close(out[1]);
    input_ = in[1];
    out_ = out[0];
  }
  if (child_ < 0) throw std::runtime_error("cannot start the program");
}

Session::~Session() {
  if (child_ > 0) {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  ::close(input_);
  if (out_ != input_) ::close(out_);
  if (full_ >= 0) ::close(full_);
}

void Session::send(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t n = ::write(input_, text.data(), text.size());
    if (n < 0 && errno != EINTR) return;
    if (n > 0) text.remove_prefix(static_cast<std::size_t>(n));
  }
}

bool Session::read_more() {
  pollfd wait{out_, POLLIN, 0};
  if (::poll(&wait, 1, kPatienceMs) <= 0) return false;
  std::array<char, 65536> bytes{};
  const ssize_t n = ::read(out_, bytes.data(), bytes.size());  // a terminal whose program has gone gives EIO
  if (n > 0) output_.append(bytes.data(), static_cast<std::size_t>(n));
  return n > 0;
}

bool Session::expect(std::string_view text) {
  for (;;) {
    const std::size_t found = output_.find(text, matched_);
    if (found != std::string::npos) {
      matched_ = found + text.size();
      return true;
    }
    if (!read_more()) return false;
  }
}

void Session::signal(int number) const {
  ::kill(child_, number);
}

int Session::wait() {
  while (read_more()) {
  }
  int status = 0;
  const bool ended = ::waitpid(child_, &status, 0) == child_;
  child_ = -1;
  if (!ended) return -1000;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

bool Session::cooked() const {
  termios settings{};
  if (::tcgetattr(input_, &settings) != 0) return false;
  return (settings.c_lflag & ICANON) != 0 && (settings.c_lflag & ECHO) != 0;
}

}  // namespace lockstep::test
