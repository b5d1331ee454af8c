// Runs a program with given arguments and input, and collects what it does.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

/// Where the program's standard output goes.
enum class Output {
  Captured,
  Full,        ///< /dev/full: every write fails with ENOSPC
  Closed,      ///< the descriptor is closed
  BrokenPipe,  ///< a pipe whose reader has gone
};

struct Command {
  std::vector<std::string> arguments;                                 ///< argv[0] is the program's path
  std::string input = {};                                             ///< standard input, then end of file
  std::vector<std::pair<std::string, std::string>> environment = {};  ///< added to or replacing the caller's
  Output output = Output::Captured;
  std::chrono::seconds timeout{60};
  std::string directory = {};  ///< working directory, empty for the caller's
};

struct Outcome {
  int exit_code = -1;  ///< -1 when it was ended by a signal
  int signal = 0;
  bool timed_out = false;  ///< it was killed after Command::timeout
  std::string out, err;
};

Outcome run_process(const Command& command);

/// run_process() on the `lockstep` executable with these arguments.
Outcome run_lockstep(std::vector<std::string> arguments, std::string input = {});

}  // namespace lockstep::test
