// The command line's frame: parsing, help, exit codes (docs/cli.md).
#pragma once

namespace lockstep::cli {

/// Exit codes, part of the documented interface.
inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitBrokenPipe = 141;  ///< 128 + SIGPIPE: the reader of standard output has gone
// Work that a signal ended: 128 + the signal (InterruptScope::signal()): 129, 130 or 143.

/// Runs the program and returns its exit code. Messages go to standard error, one line each.
int run_app(int argc, char** argv);

}  // namespace lockstep::cli
