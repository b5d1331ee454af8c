// Every table of kernels gives the bits of the scalar one (docs/numerics.md E7), whatever the shapes and numbers.
#include "kernels/cases.hpp"

namespace lockstep::kernels::test {
namespace {

constexpr int kBits[] = {2, 3, 4, 5, 6, 8};
constexpr int kGroups[] = {32, 64, 128};
constexpr ElementType kTypes[] = {ElementType::F32, ElementType::F16, ElementType::BF16};
constexpr ElementType kStateTypes[] = {ElementType::F32, ElementType::BF16};

/// Output rows [begin, end) of `rows`: mostly some, often all.
std::pair<std::int64_t, std::int64_t> row_range(Random& random, std::int64_t rows) {
  if (random.chance(3)) return {0, rows};
  const std::int64_t begin = random.between(0, rows);
  return {begin, random.between(begin, rows)};
}

TEST(Equality, TheScalarTableIsAlwaysThere) {
  ASSERT_NE(find_kernels("scalar"), nullptr);
  EXPECT_EQ(find_kernels("scalar")->name, "scalar");
  EXPECT_EQ(available_kernels().back(), find_kernels("scalar"));
  for (const Kernels* table : available_kernels()) EXPECT_EQ(find_kernels(table->name), table);
  EXPECT_EQ(find_kernels("avx1024"), nullptr);
  EXPECT_EQ(find_kernels(""), nullptr);
}

TEST(Equality, SaysWhichTablesThisMachineLacks) {
  for (const char* name : {"amx", "avx512", "avx2", "scalar_v3"}) {
    if (find_kernels(name) == nullptr) std::printf("skipped on this machine: %s\n", name);
  }
}

TEST(Equality, QuantisedActivations) {
  for_seeds(200, [](Random& random) {
    const int group = random.pick(kGroups);
    const std::int64_t rows = random.between(1, 20);
    const std::int64_t groups = random.between(1, 9);
    const auto x = random.values(rows * groups * group, random.pick(kStyles));
    expect_same_on_all([&](const Kernels& k) {
      std::vector<std::int16_t> values(x.size());
      std::vector<float> steps(static_cast<std::size_t>(rows * groups));
      std::vector<std::int32_t> sums(steps.size());
      k.quantise_rows(x.data(), rows, groups * group, group, values.data(), steps.data(), sums.data());
      return Bits().add_integers(values).add(steps).add_integers(sums);
    });
  });
}

TEST(Equality, AffineProducts) {
  unsigned seed = 0;
  for (const int bits : kBits) {
    for (const int group : kGroups) {
      for (const ElementType type : kTypes) {
        for (int round = 0; round < 5; ++round, ++seed) {
          SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(bits) + " bits, group " +
                       std::to_string(group));
          Random random(seed);
          const std::int64_t x_rows = random.between(1, 20);
          const std::int64_t groups = random.between(1, 1400 / group);  // up to three segments
          const OwnedAffine matrix(random, random.between(1, 40), bits, group, groups, type, random.pick(kStyles));
          const auto x = random.values(x_rows * groups * group, random.pick(kStyles));
          const OwnedRows quantised(x, x_rows, group);
          const auto [begin, end] = row_range(random, matrix.view.rows);
          const std::int64_t stride = matrix.view.rows + random.between(0, 3);
          const std::int64_t row = random.between(0, matrix.view.rows - 1);
          expect_same_on_all([&](const Kernels& k) {
            auto out = untouched(x_rows * stride);
            auto oracle = untouched(x_rows * stride);
            auto weights = untouched(groups * group);
            k.affine_rows(matrix.view, quantised.view, begin, end, out.data(), stride);
            k.affine_rows_unquantised(matrix.view, x.data(), x_rows, begin, end, oracle.data(), stride);
            k.affine_row(matrix.view, row, weights.data());
            return Bits().add(out).add(oracle).add(weights);
          });
        }
      }
    }
  }
}

TEST(Equality, PackedProducts) {
  unsigned seed = 1000;
  for (const int bits : kBits) {
    for (const int group : kGroups) {
      for (const ElementType type : kTypes) {
        for (int round = 0; round < 6; ++round, ++seed) {
          SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(bits) + " bits, group " +
                       std::to_string(group));
          Random random(seed);
          const std::int64_t x_rows = random.between(1, random.chance(2) ? 70 : 12);
          const std::int64_t groups = random.between(1, 1400 / group);
          // Now and then more blocks than are unpacked at a time (amx/tile_linear.hpp).
          const OwnedAffine matrix(random, random.between(1, random.chance(4) ? 340 : 80), bits, group, groups, type,
                                   random.pick(kStyles));
          const OwnedRows x(random.values(x_rows * groups * group, random.pick(kStyles)), x_rows, group);
          // All rows in order, or some of them in any order.
          QuantisedRows chosen = x.view;
          std::vector<std::int32_t> source(static_cast<std::size_t>(random.between(1, 60)));
          for (std::int32_t& row : source) row = static_cast<std::int32_t>(random.between(0, x_rows - 1));
          const bool mapped = random.chance(2);
          if (mapped) {
            chosen.source = source.data();
            chosen.rows = static_cast<std::int64_t>(source.size());
          }
          const std::int64_t blocks = packed_blocks(matrix.view.rows);
          const auto [begin, end] = row_range(random, blocks);
          const std::int64_t stride = matrix.view.rows + random.between(0, 3);
          auto all = untouched(x_rows * stride);
          law().affine_rows(matrix.view, x.view, 0, matrix.view.rows, all.data(), stride);
          auto want = untouched(chosen.rows * stride);
          for (std::int64_t t = 0; t < chosen.rows; ++t) {
            const std::int64_t row = mapped ? source[static_cast<std::size_t>(t)] : t;
            for (std::int64_t r = begin * kBlockRows; r < std::min(matrix.view.rows, end * kBlockRows); ++r) {
              want[static_cast<std::size_t>(t * stride + r)] = all[static_cast<std::size_t>(row * stride + r)];
            }
          }
          for (const Kernels* table : available_kernels()) {
            if (table->packed_rows == nullptr) continue;
            const OwnedPacked packed(*table, matrix.view);
            auto out = untouched(chosen.rows * stride);
            table->packed_rows(packed.view, chosen, begin, end, out.data(), stride);
            expect_equal(Bits().add(out), Bits().add(want), table->name);
          }
        }
      }
    }
  }
}

/// The largest sums: every code and every activation at its limit, in the longest group.
TEST(Equality, ExtremeIntegers) {
  for (const float sign : {1.0F, -1.0F}) {
    Random random(1);
    OwnedAffine matrix(random, 20, 8, 128, 8, ElementType::F32, Style::Normal);
    std::fill(matrix.codes.begin(), matrix.codes.end(), std::uint8_t{255});
    const OwnedRows x(std::vector<float>(3 * 8 * 128, sign), 3, 128);
    for (const Kernels* table : available_kernels()) {
      if (table->packed_rows == nullptr) continue;
      const OwnedPacked packed(*table, matrix.view);
      std::vector<float> out(60);
      std::vector<float> want(60);
      table->packed_rows(packed.view, x.view, 0, 2, out.data(), 20);
      law().affine_rows(matrix.view, x.view, 0, 20, want.data(), 20);
      expect_equal(Bits().add(out), Bits().add(want), table->name);
    }
  }
}

TEST(Equality, DenseProducts) {
  for_seeds(200, [](Random& random) {
    const ElementType type = random.pick(kTypes);
    const std::int64_t rows = random.between(1, 70);
    const std::int64_t cols = random.chance(3) ? 32 * random.between(1, 20) : random.between(1, 300);
    const std::int64_t x_rows = random.between(1, random.chance(3) ? 70 : 20);
    std::vector<std::byte> data = random.elements(rows * cols, type, random.pick(kStyles));
    const std::size_t skip = random.chance(2) ? 1 : 0;
    data.insert(data.begin(), skip, std::byte{0});
    const DenseMatrix matrix{data.data() + skip, type, rows, cols};
    const auto x = random.values(x_rows * cols, random.pick(kStyles));
    const auto [begin, end] = row_range(random, rows);
    const std::int64_t stride = rows + random.between(0, 3);
    const std::int64_t row = random.between(0, rows - 1);
    expect_same_on_all([&](const Kernels& k) {
      auto out = untouched(x_rows * stride);
      auto weights = untouched(cols);
      k.dense_rows(matrix, x.data(), x_rows, begin, end, out.data(), stride);
      k.dense_row(matrix, row, weights.data());
      return Bits().add(out).add(weights);
    });
  });
}

TEST(Equality, Norms) {
  for_seeds(300, [](Random& random) {
    const std::int64_t n = random.between(1, 200);
    const std::int64_t groups = random.between(1, 4);
    const Style style = random.pick(kStyles);
    const auto x = random.values(n * groups, style);
    const auto z = random.values(n, style);
    const auto weight = random.values(n * groups, Style::Normal);
    const OwnedRotation rotation(random, random.between(0, n / 2));
    const float scale = random.value(Style::Normal);
    expect_same_on_all([&](const Kernels& k) {
      auto normed = x;  // in place
      k.rms_norm(x.data(), weight.data(), groups, n, 1e-6F, normed.data());
      auto unit = untouched(n);
      k.unit_vector(x.data(), n, scale, unit.data());
      auto gated = std::vector<float>(x.begin(), x.begin() + n);  // in place
      k.gated_norm(gated.data(), z.data(), weight.data(), n, 1e-6F, gated.data());
      auto rotated = untouched(n);
      k.norm_rope(x.data(), weight.data(), n, 1e-6F, rotation.view, rotated.data());
      auto pooled = untouched(n);
      k.pool_index_key(x.data(), groups, weight.data(), n, 1e-6F, rotation.view, pooled.data());
      return Bits().add(normed).add(unit).add(gated).add(rotated).add(pooled);
    });
  });
}

TEST(Equality, ElementwiseAndStreams) {
  for_seeds(300, [](Random& random) {
    const Style style = random.pick(kStyles);
    const std::int64_t n = random.between(1, 150);
    const std::int64_t streams = random.between(1, 5);
    const auto a = random.values(n * streams, style);
    const auto b = random.values(n * streams, random.pick(kStyles));
    const auto small = random.values(n, style);
    const auto weights = random.values(streams, style);
    expect_same_on_all([&](const Kernels& k) {
      Bits bits;
      auto x = a;
      k.silu_divided(x.data(), n, static_cast<float>(streams));
      bits.add(x);
      auto u = untouched(n);
      k.gated_mean(a.data(), b.data(), streams, n, u.data());
      bits.add(u);
      auto inject = weights;
      k.inject_weights(inject.data(), streams);
      bits.add(inject);
      x = a;
      k.inject(x.data(), weights.data(), small.data(), streams, n);
      bits.add(x);
      x = a;
      k.sigmoid_gate(x.data(), b.data(), n * streams);
      bits.add(x);
      x = a;
      k.silu_product(x.data(), b.data(), n * streams, x.data());
      bits.add(x);
      x = a;
      k.add(x.data(), b.data(), a.data(), n * streams);
      bits.add(x);
      k.ple_gate(a.data(), b.data(), small.data(), streams, n, x.data());
      bits.add(x);
      std::vector<const float*> outputs;
      for (std::int64_t s = 0; s < streams; ++s) outputs.push_back(b.data() + s * n);
      k.combine(outputs.data(), weights.data(), streams, small.data(), a[0], n, u.data());
      return bits.add(u);
    });
  });
}

TEST(Equality, ConvolutionAndGates) {
  for_seeds(200, [](Random& random) {
    const Style style = random.pick(kStyles);
    const std::int64_t channels = random.between(1, 150);
    const std::int64_t kernel = random.between(1, 6);
    std::vector<std::vector<float>> columns;
    std::vector<const float*> taps;
    for (std::int64_t j = 0; j < kernel; ++j) columns.push_back(random.values(channels, style));
    for (const auto& column : columns) taps.push_back(column.data());
    const auto weight = random.values(channels * kernel, random.pick(kStyles));
    const auto [begin, end] = row_range(random, channels);
    const auto a = random.values(channels, style);
    const auto b = random.values(channels, style);
    const auto neg_a = random.positive(channels, -16.0F, 0.0F);
    expect_same_on_all([&](const Kernels& k) {
      auto out = untouched(channels);
      auto decay = untouched(channels);
      auto beta = untouched(channels);
      k.conv_silu(taps.data(), weight.data(), kernel, begin, end, out.data());
      k.gates(a.data(), b.data(), neg_a.data(), weight.data(), channels, decay.data(), beta.data());
      return Bits().add(out).add(decay).add(beta);
    });
  });
}

TEST(Equality, DeltaRule) {
  for_seeds(200, [](Random& random) {
    const Style style = random.pick(kStyles);
    const std::int64_t key_dim = random.chance(2) ? 64 * random.between(1, 2) : random.between(1, 170);
    const std::int64_t value_dim = random.chance(2) ? 64 * random.between(1, 2) : random.between(1, 100);
    const auto state = random.values(key_dim * value_dim, style);
    const auto key = random.values(key_dim, random.pick(kStyles));
    const auto query = random.values(key_dim, style);
    const auto value = random.values(value_dim, style);
    const float decay = random.positive(1, 0.0F, 1.0F)[0];
    const float beta = random.positive(1, 0.0F, 1.0F)[0];
    const bool in_place = random.chance(2);
    expect_same_on_all([&](const Kernels& k) {
      auto next = in_place ? state : untouched(key_dim * value_dim);
      auto delta = untouched(value_dim);
      auto out = untouched(value_dim);
      k.delta_step({in_place ? next.data() : state.data(), key.data(), query.data(), value.data(), decay, beta, key_dim,
                    value_dim, next.data(), delta.data(), out.data()});
      auto replayed = in_place ? state : untouched(key_dim * value_dim);
      k.delta_replay(in_place ? replayed.data() : state.data(), key.data(), delta.data(), decay, key_dim, value_dim,
                     replayed.data());
      return Bits().add(next).add(delta).add(out).add(replayed);
    });
  });
}

TEST(Equality, StoredElements) {
  for_seeds(200, [](Random& random) {
    const std::int64_t n = random.between(1, 200);
    const auto x = random.values(n, random.pick(kStyles));
    const ElementType stored = random.pick(kStateTypes);
    const ElementType type = random.pick(kTypes);
    const auto elements = random.elements(n, type, random.pick(kStyles));
    expect_same_on_all([&](const Kernels& k) {
      std::vector<std::byte> narrow(static_cast<std::size_t>(n) * element_size(stored));
      auto back = untouched(n);
      k.narrow(x.data(), n, stored, narrow.data());
      k.widen(narrow.data(), n, stored, back.data());
      auto wide = untouched(n);
      k.widen(elements.data(), n, type, wide.data());
      return Bits().add(back).add(wide);
    });
  });
}

TEST(Equality, IndexScores) {
  for_seeds(120, [](Random& random) {
    const std::int64_t ratio = std::int64_t{1} << random.between(0, 4);
    const std::int64_t dim = random.chance(2) ? 32 * random.between(1, 9) : random.between(1, 140);
    const std::int64_t pages = random.between(1, 4);
    const std::int64_t heads = random.between(1, 6);
    const Style style = random.pick(kStyles);
    const OwnedPages keys(random, pages, 1, 1, dim, ratio, random.pick(kStateTypes), style);
    const auto q = random.values(heads * dim, style);
    const std::int64_t groups = pages * (kPageTokens / ratio);
    const auto [begin, end] = row_range(random, groups);
    expect_same_on_all([&](const Kernels& k) {
      auto scores = untouched(groups);
      k.index_scores(keys.view, q.data(), heads, begin, end, scores.data());
      return Bits().add(scores);
    });
  });
}

TEST(Equality, Attention) {
  for_seeds(150, [](Random& random) {
    const std::int64_t dim = random.chance(2) ? 32 * random.between(1, 8) : random.between(1, 140);
    const std::int64_t kv_heads = random.between(1, 3);
    const std::int64_t heads = random.between(1, 9);
    const std::int64_t pages = random.between(1, 5);
    const Style style = random.pick(kStyles);
    const OwnedPages keys(random, pages, kv_heads, dim, 1, 4, random.pick(kStateTypes), style);
    const auto q = random.values(heads * dim, style);
    const std::int64_t total = pages * kPageTokens;
    const auto positions = ascending_subset(random, total, random.between(1, total));
    const std::int64_t kv_head = random.between(0, kv_heads - 1);
    expect_same_on_all([&](const Kernels& k) {
      auto out = untouched(heads * dim);
      auto scratch = untouched(attention_scratch(heads, dim));
      k.attend(keys.view, kv_head, q.data(), heads, positions.data(), static_cast<std::int64_t>(positions.size()),
               out.data(), scratch.data());
      return Bits().add(out);
    });
  });
}

TEST(Equality, SelectionAndRouting) {
  for_seeds(300, [](Random& random) {
    const std::int64_t n = random.between(1, 300);
    const std::int64_t k_best = random.between(1, n);
    auto values = random.values(n, random.pick(kFiniteStyles));
    if (random.chance(2)) {
      for (float& x : values) x = std::round(x);  // many ties
    }
    if (random.chance(4)) values[0] = std::numeric_limits<float>::infinity();
    const auto logits = random.values(n, random.pick(kFiniteStyles));
    expect_same_on_all([&](const Kernels& k) {
      std::vector<std::int32_t> indices(static_cast<std::size_t>(k_best));
      std::vector<std::uint64_t> scratch(static_cast<std::size_t>(n));
      k.top_k(values.data(), n, k_best, indices.data(), scratch.data());
      std::vector<std::int32_t> experts(indices.size());
      auto weights = untouched(k_best);
      auto probabilities = logits;
      k.route(probabilities.data(), n, k_best, experts.data(), weights.data(), scratch.data());
      return Bits().add_integers(indices).add_integers(experts).add(weights).add(probabilities);
    });
  });
}

}  // namespace
}  // namespace lockstep::kernels::test
