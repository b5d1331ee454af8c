// Random inputs of the kernels, and the comparison of their results over all tables.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/kernels.hpp"
#include "kernels/cpu/packed.hpp"
#include "numerics/bits.hpp"

namespace lockstep::kernels::test {

/// What random numbers look like.
enum class Style {
  Normal,   ///< around 1
  Wide,     ///< exponents from 2^-40 to 2^40
  Tiny,     ///< denormals, and numbers whose products are
  Huge,     ///< around 1e30: sums and squares overflow
  Zeros,    ///< half of them zeros of either sign
  Special,  ///< now and then an infinity, a NaN, a zero or the largest number
};
inline constexpr Style kStyles[] = {Style::Normal, Style::Wide, Style::Tiny, Style::Huge, Style::Zeros, Style::Special};
inline constexpr Style kFiniteStyles[] = {Style::Normal, Style::Wide, Style::Tiny, Style::Zeros};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}

  /// Uniform over low..high, both included.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  template <class T, std::size_t N>
  T pick(const T (&options)[N]) {
    return options[engine_() % N];
  }
  bool chance(int one_in) { return between(1, one_in) == 1; }

  float value(Style style) {
    switch (style) {
      case Style::Normal:
        return uniform() + uniform() + uniform();
      case Style::Wide:
        return std::ldexp(uniform(), static_cast<int>(between(-40, 40)));
      case Style::Tiny:
        return std::ldexp(uniform(), static_cast<int>(between(-150, -60)));
      case Style::Huge:
        return uniform() * 1e30F;
      case Style::Zeros:
        return chance(2) ? (chance(2) ? 0.0F : -0.0F) : value(Style::Normal);
      case Style::Special:
        return chance(64) ? pick(kSpecials) : value(Style::Normal);
    }
    return 0;
  }

  std::vector<float> values(std::int64_t n, Style style) {
    std::vector<float> out(static_cast<std::size_t>(n));
    std::generate(out.begin(), out.end(), [&] { return value(style); });
    return out;
  }
  std::vector<float> positive(std::int64_t n, float low, float high) {
    std::vector<float> out(static_cast<std::size_t>(n));
    std::generate(out.begin(), out.end(), [&] { return low + (high - low) * (0.5F + 0.5F * uniform()); });
    return out;
  }

  /// n numbers as elements of `type`.
  std::vector<std::byte> elements(std::int64_t n, ElementType type, Style style) {
    std::vector<std::byte> out;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t bits = type == ElementType::F16 ? half(style) : numerics::float_bits(value(style));
      const std::uint32_t stored = type == ElementType::BF16 ? bits >> 16 : bits;
      for (std::size_t byte = 0; byte < element_size(type); ++byte) {
        out.push_back(static_cast<std::byte>(stored >> (8 * byte)));
      }
    }
    return out;
  }

  std::vector<std::uint8_t> bytes(std::int64_t n) {
    std::vector<std::uint8_t> out(static_cast<std::size_t>(n));
    std::generate(out.begin(), out.end(), [&] { return static_cast<std::uint8_t>(between(0, 255)); });
    return out;
  }

  std::mt19937_64& engine() { return engine_; }

 private:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  static constexpr float kSpecials[] = {0.0F,  -0.0F,  kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(),
                                        1e30F, -1e30F, 1e-40F,    3.4e38F,    -3.4e38F};

  float uniform() { return static_cast<float>(static_cast<std::int64_t>(engine_() >> 40) - (1 << 23)) * 0x1p-23F; }

  /// Bits of a binary16 number.
  std::uint32_t half(Style style) {
    const std::int64_t low = style == Style::Tiny ? 0 : (style == Style::Huge ? 29 : (style == Style::Wide ? 1 : 10));
    const std::int64_t high = style == Style::Tiny ? 0 : (style == Style::Huge || style == Style::Wide ? 30 : 16);
    const std::int64_t exponent = style == Style::Special && chance(64) ? 31 : between(low, high);
    const auto bits = static_cast<std::uint32_t>(between(0, 1) << 15 | exponent << 10 | between(0, 1023));
    return style == Style::Zeros && chance(2) ? bits & 0x8000U : bits;
  }

  std::mt19937_64 engine_;
};

/// Results of one kernel as 32-bit words. Every NaN is the same NaN: its sign and payload are nobody's promise.
class Bits {
 public:
  Bits& add(std::span<const float> values) {
    for (const float x : values) words_.push_back(x == x ? numerics::float_bits(x) : 0x7fc00000U);
    return *this;
  }
  Bits& add(float value) { return add(std::span<const float>(&value, 1)); }
  template <class T>
  Bits& add_integers(const std::vector<T>& values) {
    for (const T x : values) words_.push_back(static_cast<std::uint32_t>(static_cast<std::int64_t>(x)));
    return *this;
  }
  [[nodiscard]] const std::vector<std::uint32_t>& words() const { return words_; }

 private:
  std::vector<std::uint32_t> words_;
};

inline void expect_equal(const Bits& got, const Bits& want, std::string_view what) {
  ASSERT_EQ(got.words().size(), want.words().size()) << what;
  const auto [a, b] = std::mismatch(got.words().begin(), got.words().end(), want.words().begin());
  if (a == got.words().end()) return;
  ADD_FAILURE() << what << ": word " << a - got.words().begin() << " of " << got.words().size() << " is "
                << std::bit_cast<float>(*a) << " (0x" << std::hex << *a << "), expected " << std::bit_cast<float>(*b)
                << " (0x" << *b << ")";
}

/// The table that is the law.
inline const Kernels& law() {
  return *find_kernels("scalar");
}

/// Runs `body`, a function of a table that gives Bits, with every table and expects what the law gives.
template <class Body>
void expect_same_on_all(Body body) {
  const Bits expected = body(law());
  for (const Kernels* table : available_kernels()) expect_equal(body(*table), expected, table->name);
}

/// Runs body(Random&) with `count` seeds, each in the trace of its failures.
template <class Body>
void for_seeds(unsigned count, Body body) {
  for (unsigned seed = 0; seed < count && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    body(random);
  }
}

/// A number that no kernel writes, to see what it left alone.
inline constexpr float kUntouched = -12345.678F;

inline std::vector<float> untouched(std::int64_t n) {
  return std::vector<float>(static_cast<std::size_t>(n), kUntouched);
}

/// An affine matrix and its memory. The planes may start at odd addresses, as they do in mapped files.
struct OwnedAffine {
  OwnedAffine(Random& random, std::int64_t rows, int bits, int group, std::int64_t groups, ElementType type,
              Style style)
      : codes(random.bytes(rows * groups * group * bits / 8 + 1)),
        scales(random.elements(rows * groups, type, style)),
        biases(random.elements(rows * groups, type, style)) {
    const bool odd = random.chance(2);
    codes.resize(codes.size() - (odd ? 0U : 1U));
    if (odd) scales.insert(scales.begin(), std::byte{0});
    const std::size_t skip = odd ? 1 : 0;
    view = {codes.data() + skip, scales.data() + skip, biases.data(), type, rows, groups * group, bits, group};
  }
  OwnedAffine(const OwnedAffine&) = delete;
  OwnedAffine& operator=(const OwnedAffine&) = delete;

  std::vector<std::uint8_t> codes;
  std::vector<std::byte> scales, biases;
  AffineMatrix view;
};

/// A matrix in the layout of the vector tables, made by `table`.
struct OwnedPacked {
  OwnedPacked(const Kernels& table, const AffineMatrix& matrix) {
    const bool wide = matrix.scale_type != ElementType::BF16;
    const std::int64_t blocks = packed_blocks(matrix.rows);
    const std::int64_t block_bytes = matrix.cols / matrix.group * packed_group_bytes(matrix.bits, matrix.group, wide);
    bytes.resize(static_cast<std::size_t>(blocks * block_bytes), std::byte{0xee});
    // In two parts, as two threads would.
    table.pack_blocks(matrix, 0, blocks / 2, bytes.data());
    table.pack_blocks(matrix, blocks / 2, blocks, bytes.data() + blocks / 2 * block_bytes);
    view = {bytes.data(), matrix.rows, matrix.cols, matrix.bits, matrix.group, wide};
  }
  OwnedPacked(const OwnedPacked&) = delete;
  OwnedPacked& operator=(const OwnedPacked&) = delete;

  std::vector<std::byte> bytes;
  PackedMatrix view;
};

/// Activations and their quantised form.
struct OwnedRows {
  OwnedRows(const std::vector<float>& x, std::int64_t row_count, int group)
      : values(x.size()), steps(x.size() / static_cast<std::size_t>(group)), sums(steps.size()) {
    const std::int64_t cols = static_cast<std::int64_t>(x.size()) / row_count;
    law().quantise_rows(x.data(), row_count, cols, group, values.data(), steps.data(), sums.data());
    view = {values.data(), steps.data(), sums.data(), row_count, cols, group};
  }
  OwnedRows(const OwnedRows&) = delete;
  OwnedRows& operator=(const OwnedRows&) = delete;

  std::vector<std::int16_t> values;
  std::vector<float> steps;
  std::vector<std::int32_t> sums;
  QuantisedRows view;
};

/// Pages of keys, values and pooled index keys, in shuffled order and with gaps around each block.
struct OwnedPages {
  OwnedPages(Random& random, std::int64_t page_count, std::int64_t kv_heads, std::int64_t head_dim,
             std::int64_t index_dim, std::int64_t ratio, ElementType type, Style style) {
    const auto block = [&](std::int64_t n) { return random.elements(n, type, style); };
    view.type = type;
    view.kv_heads = kv_heads;
    view.head_dim = head_dim;
    view.index_dim = index_dim;
    view.ratio = ratio;
    for (std::int64_t page = 0; page < page_count; ++page) {
      std::vector<std::byte> bytes(64, std::byte{0xff});
      const auto append = [&](const std::vector<std::byte>& part) {
        const std::size_t at = bytes.size();
        bytes.insert(bytes.end(), part.begin(), part.end());
        return at;
      };
      view.keys_offset = append(block(kPageTokens * kv_heads * head_dim));
      view.values_offset = append(block(kPageTokens * kv_heads * head_dim));
      view.index_offset = append(block(kPageTokens / ratio * index_dim));
      memory.push_back(std::move(bytes));
    }
    std::shuffle(memory.begin(), memory.end(), random.engine());
    for (const auto& page : memory) table.push_back(page.data());
    view.pages = table.data();
  }
  OwnedPages(const OwnedPages&) = delete;
  OwnedPages& operator=(const OwnedPages&) = delete;

  std::vector<std::vector<std::byte>> memory;
  std::vector<const std::byte*> table;
  PagedKeys view;
};

/// Cosines and sines of random angles.
struct OwnedRotation {
  OwnedRotation(Random& random, std::int64_t half) {
    for (std::int64_t i = 0; i < half; ++i) {
      const float angle = random.value(Style::Normal) * 3.0F;
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
    view = {cos.data(), sin.data(), half};
  }
  OwnedRotation(const OwnedRotation&) = delete;
  OwnedRotation& operator=(const OwnedRotation&) = delete;

  std::vector<float> cos, sin;
  Rotation view;
};

/// `count` distinct numbers below `end`, ascending.
inline std::vector<std::int32_t> ascending_subset(Random& random, std::int64_t end, std::int64_t count) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(end));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random.engine());
  all.resize(static_cast<std::size_t>(count));
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace lockstep::kernels::test
