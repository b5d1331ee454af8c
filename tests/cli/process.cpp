#include "cli/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <stdexcept>

extern char** environ;

namespace lockstep::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
    read_end = ends[0];
    write_end = ends[1];
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_read();
    close_write();
  }
  void close_read() { close_one(read_end); }
  void close_write() { close_one(write_end); }

 private:
  static void close_one(int& descriptor) {
    if (descriptor >= 0) ::close(descriptor);
    descriptor = -1;
  }
};

/// Pointers into strings, ended by a null pointer, as exec wants them.
std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& text : strings) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    bool replaced = false;
    for (const auto& [name, value] : changes) replaced = replaced || text.starts_with(name + "=");
    if (!replaced) out.push_back(text);
  }
  for (const auto& [name, value] : changes) out.push_back(name + "=" + value);
  return out;
}

void redirect_output(Output output, Pipe& out) {
  switch (output) {
    case Output::Captured:
    case Output::BrokenPipe:
      ::dup2(out.write_end, STDOUT_FILENO);
      break;
    case Output::Full:
      ::dup2(::open("/dev/full", O_WRONLY | O_CLOEXEC), STDOUT_FILENO);
      break;
    case Output::Closed:
      ::close(STDOUT_FILENO);
      break;
  }
}

/// Appends what is there to read; closes the end at end of file.
void drain(int& descriptor, std::string& text) {
  std::array<char, 65536> buffer{};
  const ssize_t n = ::read(descriptor, buffer.data(), buffer.size());
  if (n > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(n));
  } else if (n == 0 || errno != EINTR) {
    ::close(descriptor);
    descriptor = -1;
  }
}

/// Feeds the input and collects both outputs until both are closed; false when the deadline passes first.
bool exchange(Pipe& in, Pipe& out, Pipe& err, const Command& command, Outcome& outcome) {
  const auto deadline = Clock::now() + command.timeout;
  std::size_t sent = 0;
  while (out.read_end >= 0 || err.read_end >= 0) {
    if (sent == command.input.size()) in.close_write();
    std::array<pollfd, 3> waits{pollfd{out.read_end, POLLIN, 0}, pollfd{err.read_end, POLLIN, 0},
                                pollfd{in.write_end, POLLOUT, 0}};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0 || ::poll(waits.data(), waits.size(), static_cast<int>(left)) == 0) return false;
    if (waits[0].revents != 0) drain(out.read_end, outcome.out);
    if (waits[1].revents != 0) drain(err.read_end, outcome.err);
    if (waits[2].revents == 0) continue;
    const ssize_t n = ::write(in.write_end, command.input.data() + sent, command.input.size() - sent);
    if (n < 0 && errno != EINTR && errno != EAGAIN) in.close_write();
    if (n > 0) sent += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

Outcome run_process(const Command& command) {
  std::vector<std::string> arguments = command.arguments;
  std::vector<std::string> environment = environment_with(command.environment);
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> envp = pointers(environment);
  Pipe in;
  Pipe out;
  Pipe err;
  if (command.output == Output::BrokenPipe) out.close_read();
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    ::dup2(in.read_end, STDIN_FILENO);
    ::dup2(err.write_end, STDERR_FILENO);
    redirect_output(command.output, out);
    if (!command.directory.empty() && ::chdir(command.directory.c_str()) != 0) ::_exit(126);
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  in.close_read();
  out.close_write();
  err.close_write();
  // A program that does not read its input is not this program's SIGPIPE.
  const auto previous = std::signal(SIGPIPE, SIG_IGN);
  ::fcntl(in.write_end, F_SETFL, O_NONBLOCK);
  Outcome outcome;
  if (!exchange(in, out, err, command, outcome)) {
    outcome.timed_out = true;
    ::kill(child, SIGKILL);
  }
  std::signal(SIGPIPE, previous);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  return outcome;
}

Outcome run_lockstep(std::vector<std::string> arguments, std::string input) {
  arguments.insert(arguments.begin(), LOCKSTEP_BINARY);
  return run_process({.arguments = std::move(arguments), .input = std::move(input)});
}

}  // namespace lockstep::test
