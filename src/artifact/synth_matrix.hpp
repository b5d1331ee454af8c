// One matrix stack of a synthetic model as the planes that a pack has of it, made slice by slice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "artifact/model_view.hpp"
#include "artifact/quantization.hpp"
#include "base/thread_pool.hpp"

namespace lockstep::artifact {

class SynthMatrix {
 public:
  struct Plane {
    std::string tensor;
    std::uint64_t bytes = 0;
  };

  /// `rows` counts those of all matrices of the stack. Without a precision the matrix is dense bf16.
  SynthMatrix(const std::string& module, std::int64_t rows, std::int64_t cols, std::optional<Precision> precision,
              std::uint64_t seed);

  /// MODULE.weight, and for affine ones MODULE.scales and MODULE.biases, in this order.
  [[nodiscard]] const std::vector<Plane>& planes() const { return planes_; }

  /// What a device needs to make the planes.
  [[nodiscard]] SynthSource source() const;

  /// Bytes [offset, offset + out.size()) of a plane; both even.
  void fill(std::size_t plane, std::uint64_t offset, std::span<std::byte> out) const;
  /// The same by all threads of a pool.
  void fill(std::size_t plane, std::uint64_t offset, std::span<std::byte> out, ThreadPool& pool) const;

 private:
  std::vector<Plane> planes_;
  std::optional<Precision> precision_;
  float deviation_;
  std::uint64_t weight_key_, scale_key_;
};

}  // namespace lockstep::artifact
