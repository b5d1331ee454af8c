// Rotation, stored keys, index scores and attention against docs/numerics.md N5 and against plain softmax in double.
#include "kernels/cases.hpp"
#include "kernels/reference.hpp"
#include "numerics/canon_math.hpp"

namespace lockstep::kernels::test {
namespace {

constexpr ElementType kStateTypes[] = {ElementType::F32, ElementType::BF16};

/// Norm of a head and NeoX rotation of its first 2 * half values, in double; `error` receives bounds per value.
std::vector<double> norm_rope_exact(std::span<const float> x, std::span<const float> weight, const Rotation& rotation,
                                    std::vector<double>& error) {
  const double mean = dot_exact(x, x) / static_cast<double>(x.size());
  const double inverse = 1 / std::sqrt(mean + static_cast<double>(1e-6F));
  std::vector<double> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * inverse * weight[i];
  const double share = (static_cast<double>(x.size()) / 64 + 10) * kRoundoff;
  std::vector<double> out = y;
  error.assign(x.size(), 0);
  for (std::size_t i = 0; i < x.size(); ++i) error[i] = share * std::abs(y[i]) + 4 * kTiniest;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rotation.half); ++i) {
    const std::size_t j = i + static_cast<std::size_t>(rotation.half);
    out[i] = y[i] * rotation.cos[i] - y[j] * rotation.sin[i];
    out[j] = y[j] * rotation.cos[i] + y[i] * rotation.sin[i];
    error[i] = error[j] = 1.5 * share * (std::abs(y[i]) + std::abs(y[j])) + 8 * kTiniest;
  }
  return out;
}

TEST(Attention, NormAndRotation) {
  for_seeds(150, [](Random& random) {
    const std::int64_t n = random.between(1, 160);
    const auto x = random.values(n, random.pick(kFiniteStyles));
    const auto weight = random.values(n, Style::Normal);
    const OwnedRotation rotation(random, random.between(0, n / 2));
    std::vector<double> error;
    const auto exact = norm_rope_exact(x, weight, rotation.view, error);
    auto out = untouched(n);
    law().norm_rope(x.data(), weight.data(), n, 1e-6F, rotation.view, out.data());
    for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_LE(std::abs(out[i] - exact[i]), error[i]) << i;
  });
}

TEST(Attention, RotationHasTheOperationsOfThePage) {
  for_seeds(100, [](Random& random) {
    const std::int64_t n = random.between(2, 160);
    const auto x = random.values(n, random.pick(kFiniteStyles));
    const auto weight = random.values(n, Style::Normal);
    const OwnedRotation rotation(random, random.between(1, n / 2));
    auto expected = untouched(n);
    law().norm_rope(x.data(), weight.data(), n, 1e-6F, {nullptr, nullptr, 0}, expected.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(rotation.view.half); ++i) {
      float& first = expected[i];
      float& second = expected[i + static_cast<std::size_t>(rotation.view.half)];
      const float down = second * rotation.sin[i];
      const float up = first * rotation.sin[i];
      first = std::fma(first, rotation.cos[i], -down);
      second = std::fma(second, rotation.cos[i], up);
    }
    auto out = untouched(n);
    law().norm_rope(x.data(), weight.data(), n, 1e-6F, rotation.view, out.data());
    expect_equal(Bits().add(out), Bits().add(expected), "rotated");
  });
}

TEST(Attention, PooledKeyIsTheMeanThenNormThenRotation) {
  for_seeds(150, [](Random& random) {
    const std::int64_t n = random.between(1, 140);
    const std::int64_t ratio = random.between(1, 8);
    const auto raw = random.values(ratio * n, Style::Normal);
    const auto weight = random.values(n, Style::Normal);
    const OwnedRotation rotation(random, random.between(0, n / 2));
    // The mean by the page: a sequential sum, one division.
    std::vector<float> mean(raw.begin(), raw.begin() + n);
    for (std::int64_t r = 1; r < ratio; ++r) {
      for (std::int64_t i = 0; i < n; ++i)
        mean[static_cast<std::size_t>(i)] += raw[static_cast<std::size_t>(r * n + i)];
    }
    for (float& x : mean) x /= static_cast<float>(ratio);
    auto expected = untouched(n);
    law().norm_rope(mean.data(), weight.data(), n, 1e-6F, rotation.view, expected.data());
    auto out = untouched(n);
    law().pool_index_key(raw.data(), ratio, weight.data(), n, 1e-6F, rotation.view, out.data());
    expect_equal(Bits().add(out), Bits().add(expected), "pooled key");
  });
}

TEST(Attention, StoredElementsAreRoundedOnceAndReadBackExactly) {
  for_seeds(100, [](Random& random) {
    const std::int64_t n = random.between(1, 100);
    const auto x = random.values(n, random.pick(kStyles));
    for (const ElementType type : kStateTypes) {
      std::vector<std::byte> stored(static_cast<std::size_t>(n) * element_size(type) + 1, std::byte{0x5a});
      law().narrow(x.data(), n, type, stored.data());
      EXPECT_EQ(stored.back(), std::byte{0x5a});
      auto back = untouched(n);
      law().widen(stored.data(), n, type, back.data());
      std::vector<float> expected;
      for (const float value : x) {
        const bool narrow = type == ElementType::BF16;
        expected.push_back(narrow ? numerics::bf16_to_float(numerics::float_to_bf16(value)) : value);
      }
      expect_equal(Bits().add(back), Bits().add(expected), "stored");
    }
  });
}

/// The nearest of all halves, the even one of two: what rounding means, found by search.
std::uint16_t nearest_half(float x) {
  std::uint16_t best = 0;
  double distance = std::numeric_limits<double>::infinity();
  for (std::uint32_t bits = 0; bits <= 0x7c00U; ++bits) {
    // Beyond the largest half rounding goes on as if the next power of two existed.
    const double value =
        bits == 0x7c00U ? 65536.0 : static_cast<double>(numerics::half_to_float(static_cast<std::uint16_t>(bits)));
    const double d = std::abs(value - std::abs(static_cast<double>(x)));
    if (d < distance || (d == distance && bits % 2 == 0)) {
      distance = d;
      best = static_cast<std::uint16_t>(bits);
    }
  }
  return static_cast<std::uint16_t>(best | (std::signbit(x) ? 0x8000U : 0U));
}

TEST(Attention, HalvesAreStoredRounded) {
  const auto stored = [](float x) {
    std::uint16_t bits = 0;
    law().narrow(&x, 1, ElementType::F16, reinterpret_cast<std::byte*>(&bits));
    return bits;
  };
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {  // every half is its own nearest one
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = numerics::half_to_float(half);
    if (std::isnan(value)) {
      EXPECT_EQ(stored(value) & 0x7e00U, 0x7e00U);
    } else {
      ASSERT_EQ(stored(value), half);
    }
  }
  std::vector<float> values{65519.9F, 65520.0F, 1e9F,       0x1p-14F, 0x1.ffcp-15F,
                            0x1p-24F, 0x1p-25F, 0x1.8p-24F, 0x1p-30F, -0.0F};
  for_seeds(20, [&](Random& random) {
    for (const float x : random.values(4, Style::Wide)) values.push_back(x);
  });
  for (const float x : values) {
    ASSERT_TRUE(std::abs(x) > 1e5F || stored(x) == nearest_half(x)) << x;
  }
  EXPECT_EQ(stored(std::numeric_limits<float>::infinity()), 0x7c00U);
  EXPECT_EQ(stored(-1e30F), 0xfc00U);
}

/// Keys, values or pooled keys of a page table, found by the layout that kernels.hpp describes.
std::vector<float> stored_row(const PagedKeys& keys, std::size_t offset, std::int64_t page, std::int64_t row,
                              std::int64_t n) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < n; ++i) out.push_back(element_float(keys.pages[page] + offset, keys.type, row * n + i));
  return out;
}
std::vector<float> stored_key(const PagedKeys& keys, std::size_t offset, std::int64_t position, std::int64_t kv_head) {
  return stored_row(keys, offset, position / kPageTokens, position % kPageTokens * keys.kv_heads + kv_head,
                    keys.head_dim);
}

TEST(Attention, IndexScoresSumTheHeadsInOrder) {
  for_seeds(100, [](Random& random) {
    const std::int64_t ratio = std::int64_t{1} << random.between(0, 4);
    const std::int64_t dim = random.between(1, 140);
    const std::int64_t pages = random.between(1, 3);
    const std::int64_t heads = random.between(1, 6);
    const OwnedPages keys(random, pages, 1, 1, dim, ratio, random.pick(kStateTypes), random.pick(kFiniteStyles));
    const auto q = random.values(heads * dim, Style::Normal);
    const std::int64_t per_page = kPageTokens / ratio;
    const std::int64_t groups = pages * per_page;
    const std::int64_t begin = random.between(0, groups - 1);
    auto scores = untouched(groups);
    law().index_scores(keys.view, q.data(), heads, begin, groups, scores.data());
    const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
    for (std::int64_t g = 0; g < groups; ++g) {
      const float got = scores[static_cast<std::size_t>(g)];
      if (g < begin) {
        EXPECT_EQ(got, kUntouched);
        continue;
      }
      const auto key = stored_row(keys.view, keys.view.index_offset, g / per_page, g % per_page, dim);
      float sum = 0.0F;
      double exact = 0;
      double error = 0;
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::span<const float> head(q.data() + h * dim, static_cast<std::size_t>(dim));
        sum += std::max(0.0F, fold32_dot_reference(head, key));
        exact += std::max(0.0, dot_exact(head, key)) / std::sqrt(static_cast<double>(dim));
        error +=
            (fold32_error(head, key) + 10 * kRoundoff * dot_magnitude(head, key)) / std::sqrt(static_cast<double>(dim));
      }
      EXPECT_EQ(got, sum * scale) << g;
      EXPECT_LE(std::abs(got - exact), error + kTiniest) << g;
    }
  });
}

TEST(Attention, IndexScoresKeepNan) {
  Random random(1);
  const OwnedPages keys(random, 1, 1, 1, 32, 4, ElementType::F32, Style::Normal);
  auto q = random.values(64, Style::Normal);
  q[40] = std::numeric_limits<float>::quiet_NaN();  // in the second of two heads
  for (const Kernels* k : available_kernels()) {
    std::vector<float> scores(16);
    k->index_scores(keys.view, q.data(), 2, 0, 16, scores.data());
    for (const float score : scores) EXPECT_NE(score, score) << k->name;
  }
}

struct AttentionCase {
  explicit AttentionCase(Random& random)
      : dim(random.chance(3) ? 64 : random.between(1, 140)),
        kv_heads(random.between(1, 3)),
        heads(random.between(1, 5)),
        pages(random.between(1, 4)),
        keys(random, pages, kv_heads, dim, 1, 4, random.pick(kStateTypes), Style::Normal),
        q(random.values(heads * dim, Style::Normal)),
        positions(ascending_subset(random, pages * kPageTokens, random.between(1, pages * kPageTokens))),
        kv_head(random.between(0, kv_heads - 1)) {
    for (float& x : q) x *= random.chance(2) ? 3.0F : 0.3F;
  }

  [[nodiscard]] std::span<const float> query(std::int64_t head) const {
    return {q.data() + head * dim, static_cast<std::size_t>(dim)};
  }
  [[nodiscard]] std::vector<float> run() const {
    auto out = untouched(heads * dim + 1);
    auto scratch = untouched(attention_scratch(heads, dim) + 1);
    law().attend(keys.view, kv_head, q.data(), heads, positions.data(), static_cast<std::int64_t>(positions.size()),
                 out.data(), scratch.data());
    EXPECT_EQ(out.back(), kUntouched);
    EXPECT_EQ(scratch.back(), kUntouched);
    out.pop_back();
    return out;
  }

  std::int64_t dim, kv_heads, heads, pages;
  OwnedPages keys;
  std::vector<float> q;
  std::vector<std::int32_t> positions;
  std::int64_t kv_head;
};

TEST(Attention, IsCloseToSoftmaxInDouble) {
  for_seeds(80, [](Random& random) {
    const AttentionCase c(random);
    const auto out = c.run();
    const double scale = 1 / std::sqrt(static_cast<double>(c.dim));
    for (std::int64_t h = 0; h < c.heads; ++h) {
      std::vector<double> scores;
      double score_error = 0;
      for (const std::int32_t position : c.positions) {
        const auto key = stored_key(c.keys.view, c.keys.view.keys_offset, position, c.kv_head);
        scores.push_back(dot_exact(c.query(h), key) * scale);
        score_error = std::max(
            score_error, scale * (fold32_error(c.query(h), key) + 4 * kRoundoff * dot_magnitude(c.query(h), key)));
      }
      const double top = *std::max_element(scores.begin(), scores.end());
      std::vector<double> expected(static_cast<std::size_t>(c.dim), 0.0);
      double sum = 0;
      double largest = 0;
      for (std::size_t j = 0; j < scores.size(); ++j) {
        const auto value = stored_key(c.keys.view, c.keys.view.values_offset, c.positions[j], c.kv_head);
        const double p = std::exp(scores[j] - top);
        sum += p;
        for (std::size_t i = 0; i < value.size(); ++i) {
          expected[i] += p * value[i];
          largest = std::max(largest, std::abs(static_cast<double>(value[i])));
        }
      }
      // Every weight errs by its score's error and a few roundoffs; sums add one roundoff a key, merges a few a block.
      const double share = 2 * score_error + (2 * static_cast<double>(scores.size()) + 20) * kRoundoff;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const double got = out[static_cast<std::size_t>(h * c.dim) + i];
        EXPECT_LE(std::abs(got - expected[i] / sum), share * largest) << "head " << h << ", value " << i;
      }
    }
  });
}

/// N5 for one head: blocks of 64 keys, each with its own maximum, merged in ascending order.
std::vector<float> attention_reference(const AttentionCase& c, std::int64_t head) {
  const auto dim = static_cast<std::size_t>(c.dim);
  const float scale = 1.0F / std::sqrt(static_cast<float>(c.dim));
  float m = 0;
  float l = 0;
  std::vector<float> o(dim);
  for (std::size_t start = 0; start < c.positions.size(); start += 64) {
    const std::size_t end = std::min(start + 64, c.positions.size());
    std::vector<float> p;
    for (std::size_t j = start; j < end; ++j) {
      const auto key = stored_key(c.keys.view, c.keys.view.keys_offset, c.positions[j], c.kv_head);
      p.push_back(fold32_dot_reference(c.query(head), key) * scale);
    }
    const float block_m = *std::max_element(p.begin(), p.end());
    for (float& x : p) x = numerics::canon_exp(x - block_m);
    const float block_l = fold32_reference(p.size(), [&](std::size_t i, float lane) { return lane + p[i]; });
    std::vector<float> block_o(dim, 0.0F);
    for (std::size_t j = start; j < end; ++j) {
      const auto value = stored_key(c.keys.view, c.keys.view.values_offset, c.positions[j], c.kv_head);
      for (std::size_t i = 0; i < dim; ++i) block_o[i] = std::fma(p[j - start], value[i], block_o[i]);
    }
    if (start == 0) {
      m = block_m;
      l = block_l;
      o = block_o;
      continue;
    }
    const float top = std::max(m, block_m);
    const float f = numerics::canon_exp(m - top);
    const float g = numerics::canon_exp(block_m - top);
    const float new_l = block_l * g;
    l = std::fma(l, f, new_l);
    for (std::size_t i = 0; i < dim; ++i) {
      const float added = block_o[i] * g;
      o[i] = std::fma(o[i], f, added);
    }
    m = top;
  }
  for (float& x : o) x /= l;
  return o;
}

TEST(Attention, BlocksAndMergesHaveTheOrderOfThePage) {
  for_seeds(60, [](Random& random) {
    const AttentionCase c(random);
    const auto out = c.run();
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const auto got = std::vector<float>(out.begin() + h * c.dim, out.begin() + (h + 1) * c.dim);
      expect_equal(Bits().add(got), Bits().add(attention_reference(c, h)), "head " + std::to_string(h));
    }
  });
}

TEST(Attention, NonFiniteKeysReachTheOutput) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const std::size_t where : {0U, 70U, 99U}) {
      Random random(3);
      OwnedPages keys(random, 2, 1, 32, 1, 4, ElementType::F32, Style::Normal);
      const std::vector<float> ones(32, 1.0F);
      const std::size_t page = where / 64;
      std::byte* row = keys.memory[page].data() + keys.view.keys_offset + (where % 64) * 32 * 4;
      std::memcpy(row, &bad, 4);
      std::vector<std::int32_t> positions(100);
      std::iota(positions.begin(), positions.end(), 0);
      for (const Kernels* k : available_kernels()) {
        auto out = untouched(32);
        auto scratch = untouched(attention_scratch(1, 32));
        k->attend(keys.view, 0, ones.data(), 1, positions.data(), 100, out.data(), scratch.data());
        for (const float x : out) EXPECT_NE(x, x) << k->name << ", key " << where;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels::test
