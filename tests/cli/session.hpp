// A program that a test talks to while it runs: over a terminal or over pipes.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::test {

enum class Talk {
  Terminal,  ///< a pseudo terminal is all three standard streams
  Pipes,     ///< standard input stays open; both outputs arrive in one stream
  NoOutput,  ///< as Pipes, but standard output is a full pipe that nobody reads
  NoErrors,  ///< as Pipes, but standard error is one
};

class Session {
 public:
  /// Starts `lockstep` with these arguments.
  Session(Talk talk, std::vector<std::string> arguments);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  void send(std::string_view text) const;
  /// Waits for `text` in what has not been matched yet; false after 30 seconds or at the end of the output.
  bool expect(std::string_view text);
  void signal(int number) const;
  /// Waits for the end: the exit code, or minus the signal that ended it.
  int wait();
  /// Whether the terminal has line editing and echo of its own on, as a shell leaves it to a program.
  [[nodiscard]] bool cooked() const;
  [[nodiscard]] const std::string& output() const { return output_; }

 private:
  bool read_more();

  pid_t child_ = -1;
  int input_ = -1, out_ = -1, full_ = -1;
  std::string output_;
  std::size_t matched_ = 0;
};

}  // namespace lockstep::test
