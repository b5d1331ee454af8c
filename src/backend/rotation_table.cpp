#include "backend/rotation_table.hpp"

#include <algorithm>

#include "numerics/double_math.hpp"

namespace lockstep::backend {

bool RotationTable::extend(const artifact::ModelConfig& config, std::int64_t positions) {
  if (positions <= positions_) return false;
  // Angles are formed in double from position * theta^(-2i/d) and rounded once.
  const std::int64_t target =
      std::min(std::max<std::int64_t>({positions, 2 * positions_, 1024}), std::max(positions, config.max_positions));
  const std::int64_t half = config.rotary_dim / 2;
  cos_.resize(static_cast<std::size_t>(target * half));
  sin_.resize(cos_.size());
  const double log_theta = numerics::canon_log64(config.rope_theta);
  for (std::int64_t i = 0; i < half; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.rotary_dim);
    const double frequency = numerics::canon_exp64(exponent * log_theta);
    for (std::int64_t p = positions_; p < target; ++p) {
      const numerics::SinCos angle = numerics::canon_sincos64(static_cast<double>(p) * frequency);
      cos_[static_cast<std::size_t>(p * half + i)] = static_cast<float>(angle.cos);
      sin_[static_cast<std::size_t>(p * half + i)] = static_cast<float>(angle.sin);
    }
  }
  positions_ = target;
  return true;
}

void RotationTable::clear() {
  cos_.clear();
  sin_.clear();
  positions_ = 0;
}

}  // namespace lockstep::backend
