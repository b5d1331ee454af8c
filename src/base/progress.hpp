// A progress bar on standard error, drawn only on a terminal and only once the work has taken a while.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace lockstep {

/// What is counted decides how amounts are printed.
enum class ProgressUnit : std::uint8_t { Bytes, Items };

/// One line "label  42 %  1.2 GB of 3.0 GB  310 MB/s  ETA 6 s", redrawn in place. Silent when standard error is not a
/// terminal. Not thread safe.
class Progress {
 public:
  Progress(std::string label, std::uint64_t total, ProgressUnit unit);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  void add(std::uint64_t amount) { set(done_ + amount); }
  void set(std::uint64_t done);

 private:
  void draw();
  std::string label_;
  std::uint64_t total_, done_ = 0;
  ProgressUnit unit_;
  bool enabled_, drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

/// "1.23 GB", "456 B": decimal units, three digits.
[[nodiscard]] std::string format_bytes(double bytes);

}  // namespace lockstep
