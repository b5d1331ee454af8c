// How fast a backend's device moves its own memory: what decoding, which reads weights, is compared with.
#pragma once

#include <cstddef>

#include "backend/backend.hpp"

namespace lockstep::backend {

/// Copies between two blocks of device memory.
class CopyTest {
 public:
  /// Allocates two blocks of `bytes`, which should be several times the last cache. Errors: Limit.
  static Result<CopyTest> create(Backend& backend, std::size_t bytes);
  /// Bytes read and written per second, over several copies in a row. Errors: those of the device.
  Result<double> run();

 private:
  CopyTest(Backend& backend, BufferPtr from, BufferPtr to)
      : backend_(&backend), from_(std::move(from)), to_(std::move(to)) {}
  Backend* backend_;
  BufferPtr from_, to_;
};

}  // namespace lockstep::backend
