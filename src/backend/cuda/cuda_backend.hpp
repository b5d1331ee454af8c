// The CUDA backend's front door. Without CUDA in the build the same functions exist and say so (stub.cpp).
#pragma once

#include <memory>
#include <span>

#include "backend/backend.hpp"
#include "backend/ngram/ngram_store.hpp"

namespace lockstep::backend {

struct CudaOptions {
  int device = 0;
  bool graphs = true;  ///< repeated steps as CUDA graphs; LOCKSTEP_CUDA_GRAPH=0 switches them off
  NgramOptions ngram;  ///< Auto: choose_place() by what is free, with other_bytes of other weights
  std::uint64_t table_chunk = std::uint64_t{256} << 20;  ///< bytes of the n-gram table in one piece of memory
  bool draw = true;  ///< tokens are drawn on the device; LOCKSTEP_CUDA_SAMPLE=0 leaves them to the host
};

/// Whether this program was built with CUDA.
[[nodiscard]] bool cuda_built();

/// Opens a device. Errors: Unsupported without CUDA in the build, without a driver, or for an architecture before
/// compute capability 8.0 or with less than 227 KiB of shared memory a block; Usage for a device number that does not
/// exist.
Result<std::unique_ptr<Backend>> create_cuda_backend(const CudaOptions& options);

/// Row `row` of matrix `index` of a CUDA backend's stack, as numbers (docs/numerics.md N3), read from where it lies on
/// the device: for checks. `out` has a value for every column. Errors: those of Backend::allocate() and of the device.
Status read_cuda_row(Backend& backend, const Matrix& matrix, std::int64_t index, std::int64_t row,
                     std::span<float> out);

}  // namespace lockstep::backend
