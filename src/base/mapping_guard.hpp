// A watch over mapped files. Where a file has been cut short, or its disk does not answer, the system ends a process
// that reads the map (SIGBUS). Under a watch the pages from that place to the end of the map become zeros instead and
// the map is marked as lost, so that whoever reads it can find out afterwards and give the error a name.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.hpp"

namespace lockstep {

struct WatchedRange;

/// One watched range. Movable; the watch ends with the object, which must be before the range is unmapped.
class MappingGuard {
 public:
  /// Watches a private, read-only map, which begins at a page. The first call installs the handler of SIGBUS for the
  /// whole process; faults outside watched ranges are passed on to the handler that was there before, or to the
  /// system. Errors: Limit when too many ranges are watched.
  static Result<MappingGuard> watch(std::span<const std::byte> map);

  MappingGuard() = default;
  MappingGuard(MappingGuard&& other) noexcept;
  MappingGuard& operator=(MappingGuard&& other) noexcept;
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;
  ~MappingGuard() { release(); }

  void release() noexcept;
  /// True once a page has been replaced by zeros, or after mark_lost(): for good.
  [[nodiscard]] bool lost() const;
  void mark_lost() const;

 private:
  explicit MappingGuard(WatchedRange* range) : range_(range) {}

  WatchedRange* range_ = nullptr;
};

}  // namespace lockstep
