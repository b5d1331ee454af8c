// The largest values of a row in the canon's order: value descending, then id ascending (docs/numerics.md N5).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "decode/params.hpp"

namespace lockstep::decode {

struct Candidate {
  float value;
  TokenId id;
};

/// True when `a` comes before `b`. +0 and -0 are equal values.
[[nodiscard]] inline bool before(const Candidate& a, const Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

/// Puts the first `count` candidates of the order, sorted by it, into `out`; fewer when fewer values are above -inf.
/// `values` holds no NaN; `maxima` are its block maxima (decode/distribution_passes.hpp). `scratch` is working memory.
///
/// Without a sort of the row: `count` different blocks each have a value at or above the count-th largest maximum, so
/// only values at or above that bound, in blocks that reach it, can be among the first `count`.
void select_top(std::span<const float> values, std::span<const float> maxima, std::size_t count,
                std::vector<float>& scratch, std::vector<Candidate>& out);

/// The id of the first candidate of the order. At least one value is above -inf.
[[nodiscard]] TokenId select_first(std::span<const float> values, std::span<const float> maxima);

}  // namespace lockstep::decode
