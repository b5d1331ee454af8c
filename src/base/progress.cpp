#include "base/progress.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
constexpr auto kQuietTime = 500ms;  // short work shows no bar
constexpr auto kRedraw = 100ms;

/// A terminal that takes nothing, or has gone, loses the line: work never waits for its progress to be seen.
void show(const std::string& text) {
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&room, 1, 0) == 1) static_cast<void>(::write(STDERR_FILENO, text.data(), text.size()));
}

std::string amount(double value, ProgressUnit unit) {
  return unit == ProgressUnit::Bytes ? format_bytes(value) : fmt::format("{:.0f}", value);
}

}  // namespace

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 5> units{"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  // The limits are where rounding to three digits reaches the next power of ten.
  while (bytes >= 999.5 && unit + 1 < units.size()) {
    bytes /= 1000.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} B", bytes);
  const int digits = bytes >= 99.95 ? 0 : (bytes >= 9.995 ? 1 : 2);
  return fmt::format("{:.{}f} {}", bytes, digits, units.at(unit));
}

Progress::Progress(std::string label, std::uint64_t total, ProgressUnit unit)
    : label_(std::move(label)),
      total_(std::max<std::uint64_t>(total, 1)),
      unit_(unit),
      enabled_(::isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

Progress::~Progress() {
  if (drawn_) show("\r\x1b[K");
}

void Progress::set(std::uint64_t done) {
  done_ = std::min(done, total_);
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - start_ < kQuietTime || now - last_ < kRedraw) return;
  last_ = now;
  draw();
}

void Progress::draw() {
  const double seconds = std::chrono::duration<double>(last_ - start_).count();
  const double rate = static_cast<double>(done_) / seconds;
  const double left = rate > 0 ? static_cast<double>(total_ - done_) / rate : 0;
  const char* per = unit_ == ProgressUnit::Bytes ? "/s" : " a second";
  show(fmt::format("\r\x1b[K{}  {:.0f} %  {} of {}  {}{}  ETA {:.0f} s", label_,
                   100.0 * static_cast<double>(done_) / static_cast<double>(total_),
                   amount(static_cast<double>(done_), unit_), amount(static_cast<double>(total_), unit_),
                   amount(rate, unit_), per, left));
  drawn_ = true;
}

}  // namespace lockstep
