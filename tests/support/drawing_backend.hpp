// A backend that draws tokens where another one only has logits: as a device would, in plain loops.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "numerics/canon_math.hpp"
#include "support/forwarding_backend.hpp"

namespace lockstep::test {

/// The draw of one row (docs/numerics.md N9); the end of it is the code that devices run.
inline backend::Drawn drawn_from(const float* row, const backend::DrawRequest& request) {
  const auto n = static_cast<std::size_t>(request.vocab);
  if (!std::all_of(row, row + n, numerics::is_finite)) return {};
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = row[i] * request.scale;
  std::vector<std::int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  const std::size_t most = std::min(n, static_cast<std::size_t>(std::max(request.top_k, 1)));
  const auto value = [&](std::int32_t id) { return values[static_cast<std::size_t>(id)]; };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(most), order.end(),
                    [&](std::int32_t a, std::int32_t b) { return value(a) != value(b) ? value(a) > value(b) : a < b; });
  const float largest = value(order[0]);
  if (!numerics::is_finite(largest)) return {};
  if (request.top_k == 0) return {1.0, order[0], 0};
  std::array<double, 32> lanes{};
  for (std::size_t i = 0; i < n; ++i) lanes[i % 32] += static_cast<double>(numerics::canon_exp(values[i] - largest));
  for (std::size_t width = 16; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  kernels::DrawTable table{};
  table.count = static_cast<std::int32_t>(most);
  for (std::size_t i = 0; i < most; ++i) {
    table.ids[i] = order[i];
    table.exps[i] = numerics::canon_exp(value(order[i]) - largest);
  }
  constexpr int kLanes = kernels::kDrawLanes;
  for (int lane = 0; lane < kLanes; ++lane) table.divide(lanes[0], lane);
  table.cut(request.top_p, request.min_p);
  for (int lane = 0; lane < kLanes; ++lane) table.list(request.min_p, lane);
  table.add();
  for (int lane = 0; lane < kLanes; ++lane) table.normalise(lane);
  table.accumulate();
  int place = kernels::kMostCandidates;
  for (int lane = 0; lane < kLanes; ++lane) place = std::min(place, table.find(request.uniform, lane));
  return {table.listed_p[place], table.listed_ids[place], 0};
}

class DrawingBackend : public ForwardingBackend {
 public:
  explicit DrawingBackend(std::unique_ptr<backend::Backend> inner, std::int64_t vocabulary = std::int64_t{1} << 20)
      : ForwardingBackend(std::move(inner)), vocabulary_(vocabulary) {}

  [[nodiscard]] std::int64_t draw_vocabulary() const override { return vocabulary_; }
  void draw(const float* logits, std::int64_t width, std::span<const backend::DrawRequest> requests,
            std::span<backend::Drawn> out) override {
    std::vector<float> row(static_cast<std::size_t>(width));
    for (std::size_t i = 0; i < requests.size(); ++i) {
      inner_->read(row.data(), reinterpret_cast<const std::byte*>(logits + requests[i].row * width),
                   row.size() * sizeof(float));
      out[i] = drawn_from(row.data(), requests[i]);
    }
  }

 private:
  std::int64_t vocabulary_;
};

}  // namespace lockstep::test
