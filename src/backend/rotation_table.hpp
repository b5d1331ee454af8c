// Rotation angles of positions, the same bits on every machine (docs/numerics.md N1).
#pragma once

#include <cstdint>
#include <vector>

#include "artifact/config.hpp"

namespace lockstep::backend {

/// cos and sin [positions, rotary_dim / 2] in host memory. Grows geometrically, so that a long sequence does not pay
/// for each page.
class RotationTable {
 public:
  /// Makes angles for positions below `positions`; true when the table has grown.
  bool extend(const artifact::ModelConfig& config, std::int64_t positions);
  void clear();

  [[nodiscard]] std::int64_t positions() const { return positions_; }
  [[nodiscard]] const std::vector<float>& cos() const { return cos_; }
  [[nodiscard]] const std::vector<float>& sin() const { return sin_; }

 private:
  std::vector<float> cos_, sin_;
  std::int64_t positions_ = 0;
};

}  // namespace lockstep::backend
