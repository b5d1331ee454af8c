// Memory of a fixed size that is asked for once and becomes resident page by page as it is written.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <type_traits>

#include "base/result.hpp"

namespace lockstep::backend {

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};

template <class T>
using MemoryBlock = std::unique_ptr<T[], FreeMemory>;

/// `count` zeroed elements of a type for which zero bytes are a value. Errors: Limit.
template <class T>
Result<MemoryBlock<T>> zeroed_block(std::size_t count) {
  static_assert(std::is_trivially_copyable_v<T>);
  void* memory = std::calloc(count, sizeof(T));
  if (memory == nullptr) {
    return fail(ErrorKind::Limit, "cannot allocate {} bytes of memory", count * sizeof(T));
  }
  return MemoryBlock<T>(static_cast<T*>(memory));
}

/// `bytes` bytes, a multiple of `alignment`. Errors: Limit.
inline Result<MemoryBlock<std::byte>> aligned_block(std::size_t alignment, std::size_t bytes) {
  void* memory = std::aligned_alloc(alignment, bytes);
  if (memory == nullptr) return fail(ErrorKind::Limit, "cannot allocate {} bytes of memory", bytes);
  return MemoryBlock<std::byte>(static_cast<std::byte*>(memory));
}

}  // namespace lockstep::backend
