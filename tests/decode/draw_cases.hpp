// Rows of logits, ways to draw from them, and what the host draws.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "decode/distribution.hpp"
#include "decode/reference.hpp"
#include "decode/sampler.hpp"

namespace lockstep::decode::testing {

/// Some rows of one width, each with its request.
struct DrawCase {
  std::int64_t width = 0;
  std::vector<float> logits;
  std::vector<backend::DrawRequest> requests;
  std::vector<backend::Drawn> expected;  ///< of the host
};

/// What a row has that a draw must not stumble over.
inline void spoil(std::mt19937_64& random, std::span<float> row, std::size_t vocab) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const auto somewhere = [&]() -> float& { return row[random() % vocab]; };
  switch (random() % 16) {
    case 0:
      somewhere() = pick(random, {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()});
      return;
    case 1:
      for (std::size_t i = random() % 4; i < 4; ++i) somewhere() = pick(random, {3e38F, 2e38F, 1e36F, -3e38F});
      return;
    case 2:
      std::fill(row.begin(), row.end(), pick(random, {0.0F, -0.0F, 7.5F, -3e38F}));
      return;
    case 3:  // all candidates in one place, in either order
      for (std::size_t i = 0; i < std::min<std::size_t>(vocab, 80); ++i) {
        row[i] = 30.0F + 0.01F * static_cast<float>(random() % 2 == 0 ? i : 80 - i);
      }
      return;
    case 4:
      for (float& x : row) x *= 1e-42F;  // denormal
      return;
    case 5:  // a token that is nearly certain, or two
      for (std::size_t i = random() % 2; i < 2; ++i) somewhere() = 60.0F;
      return;
    default:
      return;
  }
}

inline SamplerParams draw_params(std::mt19937_64& random) {
  SamplerParams params;
  params.temperature = pick(random, {0.0, 1e-4, 0.3, 0.7, 1.0, 1.0, 1.7, 40.0, 1e200});
  params.top_k = pick<std::int64_t>(random, {1, 2, 5, 20, 20, 20, 40, 63, 64});
  params.top_p = pick(random, {1.0, 1.0, 0.95, 0.95, 0.5, 0.9999, 0.0, 1e-9});
  params.min_p = pick(random, {0.0, 0.0, 0.05, 0.5, 1.0});
  params.seed = random();
  return params;
}

inline double draw_uniform(std::mt19937_64& random, const SamplerParams& params) {
  if (random() % 4 == 0) return pick(random, {0.0, 0.5, 1.0 - 0x1p-53, 0x1p-53});
  return Sampler(params).uniform(random() % 1000);
}

/// The host's draw for one row.
inline backend::Drawn host_draw(std::span<const float> row, const SamplerParams& params, std::int64_t vocab, double u) {
  RowScratch scratch;
  Distribution distribution;
  const RowContext context{.token_number = 0, .vocab = vocab, .counts = nullptr, .allowed = {}};
  if (!make_distribution(row, params, context, scratch, distribution)) return {};
  const Choice choice = distribution.greedy ? Choice{distribution.ids[0], 1.0} : choose(distribution, u);
  return {choice.probability, choice.id, 0};
}

inline DrawCase draw_case(std::uint64_t seed, std::size_t vocab, std::size_t rows) {
  std::mt19937_64 random(seed);
  DrawCase test;
  const std::size_t width = vocab + random() % 40;
  test.width = static_cast<std::int64_t>(width);
  for (std::size_t i = 0; i < rows; ++i) {
    std::vector<float> row = random_row(random, width);
    const std::size_t usable = vocab - random() % std::min<std::size_t>(vocab, 3);
    spoil(random, row, usable);
    std::fill(row.begin() + static_cast<std::ptrdiff_t>(usable), row.end(),
              pick(random, {1e30F, std::numeric_limits<float>::quiet_NaN()}));  // padding, never looked at
    const SamplerParams params = draw_params(random);
    backend::DrawRequest request;
    request.vocab = static_cast<std::int32_t>(usable);
    request.row = static_cast<std::int32_t>(i);
    if (!params.greedy()) {
      request.scale = static_cast<float>(1.0 / params.temperature);
      request.top_k = static_cast<std::int32_t>(params.top_k);
      request.top_p = params.top_p;
      request.min_p = params.min_p;
      request.uniform = draw_uniform(random, params);
    }
    test.expected.push_back(host_draw(row, params, request.vocab, request.uniform));
    test.logits.insert(test.logits.end(), row.begin(), row.end());
    test.requests.push_back(request);
  }
  return test;
}

/// What a backend draws, which must be what the host draws.
inline void expect_host_draws(backend::Backend& backend, const DrawCase& test) {
  const backend::BufferPtr logits = backend.allocate(test.logits.size() * sizeof(float)).value();
  backend.write(logits->data(), test.logits.data(), test.logits.size() * sizeof(float));
  std::vector<backend::Drawn> drawn(test.requests.size());
  backend.draw(logits->floats(), test.width, test.requests, drawn);
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    const backend::DrawRequest& r = test.requests[i];
    ASSERT_EQ(drawn[i].id, test.expected[i].id)
        << "row " << i << ", vocab " << r.vocab << ", top_k " << r.top_k << ", top_p " << r.top_p << ", min_p "
        << r.min_p << ", scale " << r.scale << ", u " << r.uniform;
    ASSERT_EQ(std::bit_cast<std::uint64_t>(drawn[i].probability),
              std::bit_cast<std::uint64_t>(test.expected[i].probability))
        << "row " << i << ": " << drawn[i].probability << ", host " << test.expected[i].probability;
  }
}

/// Widths below, at and above those of a device's blocks.
inline std::size_t draw_vocab(std::uint64_t seed) {
  constexpr std::array<std::size_t, 14> kSizes{1, 2, 31, 64, 255, 256, 257, 511, 512, 513, 2048, 2049, 5000, 20'011};
  return kSizes[seed % kSizes.size()];
}

}  // namespace lockstep::decode::testing
