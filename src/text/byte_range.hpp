// A stretch of bytes of a text.
#pragma once

#include <cstddef>

namespace lockstep::text {

/// Bytes [begin, end) of a text.
struct ByteRange {
  std::size_t begin = 0, end = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

}  // namespace lockstep::text
