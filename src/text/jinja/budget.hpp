// Steps and memory of one rendering.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/result.hpp"
#include "text/jinja/limits.hpp"

namespace lockstep::text::jinja {

class Budget;

/// Bytes taken from a budget, given back on destruction. A default one holds nothing (constants of the program).
class Charge {
 public:
  Charge() = default;
  Charge(Budget* budget, std::size_t bytes) : budget_(budget), bytes_(bytes) {}
  Charge(Charge&& other) noexcept : budget_(std::exchange(other.budget_, nullptr)), bytes_(other.bytes_) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  inline ~Charge();

 private:
  Budget* budget_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Counts what a rendering uses. It outlives every value that the rendering makes.
class Budget {
 public:
  explicit Budget(const TemplateLimits& limits) : steps_left_(limits.max_steps), bytes_left_(limits.max_memory_bytes) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  /// Uses up `steps` of work. Errors: Limit.
  Status spend(std::uint64_t steps) {
    if (steps > steps_left_) {
      steps_left_ = 0;
      return fail(ErrorKind::Limit, "the template takes too many steps");
    }
    steps_left_ -= steps;
    return {};
  }

  /// Work that is proportional to a text or a list that is copied or searched.
  Status spend_bytes(std::size_t bytes) { return spend(1 + bytes / 64); }

  [[nodiscard]] bool fits(std::size_t bytes) const { return bytes <= bytes_left_; }

  /// Takes memory. Errors: Limit.
  Result<Charge> charge(std::size_t bytes) {
    if (bytes > bytes_left_) return fail(ErrorKind::Limit, "the template takes too much memory");
    bytes_left_ -= bytes;
    return Charge(this, bytes);
  }

 private:
  friend class Charge;
  std::uint64_t steps_left_;
  std::size_t bytes_left_;
};

inline Charge::~Charge() {
  if (budget_ != nullptr) budget_->bytes_left_ += bytes_;
}

}  // namespace lockstep::text::jinja
