#include "report/child.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#include "base/printable.hpp"

namespace lockstep::report {
namespace {

/// What is kept of a child's output; the rest is dropped from the front.
constexpr std::size_t kMaxOutput = std::size_t{256} << 10;

std::vector<std::string> environment_of(const ChildCommand& command) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    const bool replaced = std::ranges::any_of(command.environment, [&](const auto& one) { return one.first == name; });
    if (!replaced && std::ranges::find(command.without, name) == command.without.end()) out.push_back(text);
  }
  for (const auto& [name, value] : command.environment) out.push_back(fmt::format("{}={}", name, value));
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (std::string& text : strings) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

/// In the child, after fork(): only what is safe there.
[[noreturn]] void become(char* const* arguments, char* const* environment, int errors, int nothing, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it ended before the line above
  // What this program ignores, or was told to ignore, is not the child's: it is ended with SIGTERM.
  for (const int signal : {SIGPIPE, SIGXFSZ, SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(nothing, STDOUT_FILENO);
  ::dup2(errors, STDERR_FILENO);
  ::execve(arguments[0], arguments, environment);
  constexpr std::string_view kFailed = "the program cannot be executed\n";
  static_cast<void>(::write(STDERR_FILENO, kFailed.data(), kFailed.size()));
  ::_exit(127);
}

std::string last_line(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return printable(text.substr(text.rfind('\n') + 1), 500);
}

}  // namespace

double SystemWaiter::now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool SystemWaiter::wait(std::span<pollfd> descriptors, double seconds) {
  std::vector<pollfd> all(descriptors.begin(), descriptors.end());
  all.push_back({interrupt_, POLLIN, 0});  // poll() leaves out negative descriptors
  const int milliseconds = static_cast<int>(std::clamp(seconds * 1000 + 0.999, 0.0, 1e9));
  if (::poll(all.data(), all.size(), milliseconds) < 0 && errno != EINTR) return false;
  std::copy(all.begin(), all.end() - 1, descriptors.begin());
  return all.back().revents == 0;
}

Result<Child> Child::start(const ChildCommand& command) {
  std::vector<std::string> arguments = command.arguments;
  std::vector<std::string> environment = environment_of(command);
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> envp = pointers(environment);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail(ErrorKind::Io, "pipe: {}", std::strerror(errno));
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const pid_t parent = ::getpid();
  const pid_t id = nothing < 0 ? -1 : ::fork();
  if (id == 0) become(argv.data(), envp.data(), ends[1], nothing, parent);
  const int error = errno;
  if (nothing >= 0) ::close(nothing);
  ::close(ends[1]);
  if (id < 0) {
    ::close(ends[0]);
    return fail(ErrorKind::Io, "cannot start {}: {}", command.arguments[0], std::strerror(error));
  }
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return Child(id, ends[0]);
}

Child::Child(Child&& other) noexcept
    : id_(std::exchange(other.id_, -1)),
      errors_(std::exchange(other.errors_, -1)),
      status_(other.status_),
      output_ended_(other.output_ended_),
      output_(std::move(other.output_)) {}

Child::~Child() {
  reap();
  if (errors_ >= 0) ::close(errors_);
}

void Child::reap() {
  if (id_ < 0) return;
  ::kill(id_, SIGKILL);
  while (::waitpid(id_, &status_, 0) < 0 && errno == EINTR) {
  }
  id_ = -1;
}

bool Child::take_output() {
  std::array<char, 4096> buffer{};
  while (!output_ended_) {
    const ssize_t count = ::read(errors_, buffer.data(), buffer.size());
    if (count > 0) {
      output_.append(buffer.data(), static_cast<std::size_t>(count));
      if (output_.size() > kMaxOutput) output_.erase(0, output_.size() - kMaxOutput);
    } else if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
      return true;
    } else {
      output_ended_ = true;
    }
  }
  return false;
}

tl::unexpected<Error> Child::ended() {
  reap();  // standard error is closed: it has ended, or will do nothing more that anyone sees
  const std::string line = last_line(output_);
  std::string how = "was killed";
  if (WIFEXITED(status_)) how = fmt::format("ended with code {}", WEXITSTATUS(status_));
  if (WIFSIGNALED(status_) && WTERMSIG(status_) != SIGKILL) how = fmt::format("ended by signal {}", WTERMSIG(status_));
  const bool usage = WIFEXITED(status_) && WEXITSTATUS(status_) == 2;
  return fail(usage ? ErrorKind::Usage : ErrorKind::Internal, "the server {}{}{}", how, line.empty() ? "" : ": ", line);
}

Result<std::string> Child::expect_line(std::string_view text, double seconds, Waiter& waiter) {
  const double deadline = waiter.now() + seconds;
  while (true) {
    const bool open = take_output();
    for (std::size_t at = 0; at < output_.size();) {
      const std::size_t end = output_.find('\n', at);
      if (end == std::string::npos) break;
      const std::string line = output_.substr(at, end - at);
      if (line.find(text) != std::string::npos) return line;
      at = end + 1;
    }
    if (!open) return ended();
    const double left = deadline - waiter.now();
    if (left <= 0) {
      return fail(ErrorKind::Limit, "the server did not say '{}' within {:.0f} s; its last line: {}", text, seconds,
                  last_line(output_));
    }
    std::array<pollfd, 1> waits{pollfd{errors_, POLLIN, 0}};
    if (!waiter.wait(waits, left)) return fail(ErrorKind::Cancelled, "interrupted");
  }
}

void Child::stop(double seconds, Waiter& waiter) {
  if (id_ < 0) return;
  ::kill(id_, SIGTERM);
  const double deadline = waiter.now() + seconds;
  while (take_output()) {
    std::array<pollfd, 1> waits{pollfd{errors_, POLLIN, 0}};
    const double left = deadline - waiter.now();
    if (left <= 0 || !waiter.wait(waits, left)) break;
  }
  reap();
}

}  // namespace lockstep::report
