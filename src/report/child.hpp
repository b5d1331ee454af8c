// A server as a child process that never outlives its parent, and requests to it over the loopback interface.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace lockstep::report {

/// Time and waiting; tests have their own.
class Waiter {
 public:
  Waiter() = default;
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  virtual ~Waiter() = default;
  /// Seconds of a steady clock.
  virtual double now() = 0;
  /// As poll(2), at most `seconds`. False when the user interrupted.
  virtual bool wait(std::span<pollfd> descriptors, double seconds) = 0;
};

/// The real one. `interrupt` is a descriptor that is readable once the user interrupted, or -1.
class SystemWaiter : public Waiter {
 public:
  explicit SystemWaiter(int interrupt) : interrupt_(interrupt) {}
  double now() override;
  bool wait(std::span<pollfd> descriptors, double seconds) override;

 private:
  int interrupt_;
};

struct ChildCommand {
  std::vector<std::string> arguments;                            ///< the first is the program's path
  std::vector<std::pair<std::string, std::string>> environment;  ///< replaces the caller's variables
  std::vector<std::string> without;                              ///< variables that the child does not get
};

class Child {
 public:
  /// Starts a process in a group of its own, so that a terminal's Ctrl-C reaches the parent alone. Standard input and
  /// output are /dev/null, standard error is read here. The kernel kills the child when this thread ends. Errors: Io.
  static Result<Child> start(const ChildCommand& command);

  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  /// Kills what still runs.
  ~Child();

  [[nodiscard]] pid_t id() const { return id_; }
  /// The first line of standard error, from its beginning on, that contains `text`. Errors: Limit after `seconds`;
  /// Usage when the child ended with code 2, Internal when otherwise, with its last line; Cancelled.
  Result<std::string> expect_line(std::string_view text, double seconds, Waiter& waiter);
  /// SIGTERM, then SIGKILL after `seconds` (or an interrupt), then waits for the end.
  void stop(double seconds, Waiter& waiter);

  /// One HTTP request to 127.0.0.1; the response's body. Errors: Internal (not 200, with the body's beginning; the
  /// child ended), Limit (`seconds`, a body of more than 64 MiB), Io, Cancelled.
  Result<std::string> request(std::uint16_t port, std::string_view method, std::string_view path,
                              std::string_view headers, std::string_view body, double seconds, Waiter& waiter);

 private:
  Child(pid_t id, int errors) : id_(id), errors_(errors) {}
  /// Takes what there is to read of standard error without waiting; false at its end.
  bool take_output();
  [[nodiscard]] tl::unexpected<Error> ended();
  void reap();

  pid_t id_ = -1;
  int errors_ = -1;
  int status_ = 0;
  bool output_ended_ = false;
  std::string output_;
};

}  // namespace lockstep::report
