#include "decode/distribution_order.hpp"

#include <algorithm>
#include <functional>
#include <limits>

#include "decode/distribution_passes.hpp"

namespace lockstep::decode {
namespace {

constexpr float kLowest = std::numeric_limits<float>::lowest();

/// A value that the first `count` candidates all reach; the lowest finite number when the blocks are too few to tell.
float lower_bound(std::span<const float> maxima, std::size_t count, std::vector<float>& scratch) {
  if (count == 0 || count > maxima.size()) return kLowest;
  scratch.assign(maxima.begin(), maxima.end());
  const auto nth = scratch.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(scratch.begin(), nth, scratch.end(), std::greater<>());
  return std::max(*nth, kLowest);  // -inf marks a masked token
}

}  // namespace

void select_top(std::span<const float> values, std::span<const float> maxima, std::size_t count,
                std::vector<float>& scratch, std::vector<Candidate>& out) {
  out.clear();
  const float bound = lower_bound(maxima, count, scratch);
  for (std::size_t block = 0; block < maxima.size(); ++block) {
    if (maxima[block] < bound) continue;
    const std::size_t end = std::min((block + 1) * kMaximaBlock, values.size());
    for (std::size_t i = block * kMaximaBlock; i < end; ++i) {
      if (values[i] >= bound) out.push_back({values[i], static_cast<TokenId>(i)});
    }
  }
  if (out.size() > count) {
    std::nth_element(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(count), out.end(), before);
    out.resize(count);
  }
  std::sort(out.begin(), out.end(), before);
}

TokenId select_first(std::span<const float> values, std::span<const float> maxima) {
  const auto block = static_cast<std::size_t>(std::max_element(maxima.begin(), maxima.end()) - maxima.begin());
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(block * kMaximaBlock);
  return static_cast<TokenId>(std::find(begin, values.end(), maxima[block]) - values.begin());
}

}  // namespace lockstep::decode
