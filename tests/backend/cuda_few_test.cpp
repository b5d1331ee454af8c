// Whole blocks with weights as they are usually packed, 4 and 8 bits in groups of 64: the kernels of decoding, for one
// row up to more than they take, alone and batched, kept and captured.
#include "backend/cuda_fixture.hpp"

namespace lockstep::backend {
namespace {

/// Both backends with the same usual weights.
class Usual {
 public:
  Usual(unsigned seed, std::unique_ptr<Backend> cuda, const artifact::ModelConfig& config)
      : cpu(seed, open_cpu(), StateType::BF16, config), device(seed, std::move(cuda), StateType::BF16, config) {
    for (Rig* rig : {&cpu, &device}) fill(*rig, stores_.emplace_back(seed + 1));
  }
  Rig cpu, device;

 private:
  static void fill(Rig& rig, WeightStore& store) {
    const artifact::ModelConfig& c = rig.config;
    const std::int64_t h = c.hidden_size;
    const auto affine = [&](std::int64_t rows, std::int64_t cols, int bits = 4, std::int64_t count = 1) {
      return rig.backend->upload(store.affine(rows, cols, bits, count, 64)).value();
    };
    const auto dense = [&](std::int64_t rows, std::int64_t cols) {
      return rig.backend->upload(store.dense(rows, cols, artifact::DType::BF16)).value();
    };
    rig.hyper.down = dense(c.hc_lowrank, c.wide_size());
    rig.hyper.up = dense(c.wide_size(), c.hc_lowrank);
    rig.hyper.inject = dense(c.streams, c.wide_size());
    rig.ple.key = dense(c.wide_size(), c.ple_dim);
    rig.ple.value = dense(h, c.ple_dim);
    rig.delta.qkv = affine(c.conv_channels(), h);
    rig.delta.z = affine(c.value_size(), h);
    rig.delta.a = affine(c.linear_value_heads, h);
    rig.delta.b = affine(c.linear_value_heads, h);
    rig.delta.out = affine(h, c.value_size());
    rig.attention.q = affine(2 * c.attention_heads * c.head_dim, h);
    rig.attention.k = affine(c.kv_heads * c.head_dim, h);
    rig.attention.v = affine(c.kv_heads * c.head_dim, h);
    rig.attention.o = affine(h, c.attention_heads * c.head_dim);
    rig.attention.index_qk = affine((c.indexer_heads + 1) * c.indexer_dim, h, 8);
    rig.moe.router = affine(c.experts, h, 8);
    rig.moe.gate = affine(c.expert_dim, h, 4, c.experts);
    rig.moe.up = affine(c.expert_dim, h, 4, c.experts);
    rig.moe.down = affine(h, c.expert_dim, 4, c.experts);
    rig.moe.shared_gate = affine(c.shared_expert_dim, h);
    rig.moe.shared_up = affine(c.shared_expert_dim, h);
    rig.moe.shared_down = affine(h, c.shared_expert_dim);
    rig.moe.shared_expert_gate = dense(1, h);
  }
  std::list<WeightStore> stores_;  // the processor reads its weights where they are
};

void compare_blocks(Usual& pair, unsigned seed, std::int64_t sequences, std::int64_t most_rows) {
  const artifact::ModelConfig& c = pair.cpu.config;
  Source source(seed);
  Side cpu(pair.cpu, sequences, 8, StateType::BF16);
  Side cuda(pair.device, sequences, 8, StateType::BF16);
  for (int step = 0; step < 6; ++step) {
    const bool capture = step % 3 == 2;
    std::vector<Run> runs;
    std::int64_t rows = 0;
    for (std::int64_t i = 0; i < sequences; ++i) {
      runs.push_back({rows, most_rows == 1 ? 1 : 1 + source.below(most_rows)});
      rows += runs.back().rows;
    }
    const auto name = [&](std::string_view what) {
      return fmt::format("{}, seed {}, step {}, {} sequences, {} rows", what, seed, step, sequences, rows);
    };
    auto x = source.values(rows * c.wide_size());
    const auto compare = [&](std::string_view what, std::vector<float> expected, const std::vector<float>& got) {
      expect_same(name(what), expected, got);
      x = std::move(expected);
      for (float& value : x) value = std::clamp(value, -50.0F, 50.0F);
    };
    // States that no operation has written since are read earlier.
    const std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows), step);
    if (step % 2 == 0) expect_same(name("embed"), cpu.embed(tokens), cuda.embed(tokens));
    const auto e = source.values(rows * c.ple_dim);
    compare("n-gram layer", cpu.ple(e, runs, x, capture), cuda.ple(e, runs, x, capture));
    compare("GDN block", cpu.delta_block(x, runs, capture), cuda.delta_block(x, runs, capture));
    compare("experts block", cpu.experts_block(x, rows), cuda.experts_block(x, rows));
    compare("attention block", cpu.attention_block(x, runs), cuda.attention_block(x, runs));
    if (capture) {
      cpu.commit(1);
      cuda.commit(1);
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(sequences); ++i) {
      State& a = cpu.state(i);
      State& b = cuda.state(i);
      const auto part = [&](std::string_view what, Array& expected, Array& got) {
        expect_same(name(fmt::format("{} of sequence {}", what, i)), expected.values(), got.values());
      };
      part("state", a.delta, b.delta);
      part("next state", a.next, b.next);
      part("columns", a.conv, b.conv);
      part("n-gram columns", a.ple, b.ple);
      part("captured n-gram columns", a.captured_ple, b.captured_ple);
      part("captured keys", a.keys, b.keys);
      part("captured deltas", a.deltas, b.deltas);
      part("captured decays", a.decays, b.decays);
      part("captured columns", a.captured_conv, b.captured_conv);
    }
  }
  EXPECT_TRUE(pair.device.backend->status()) << pair.device.backend->status().error().message;
}

TEST_F(Cuda, BlocksOfOneSequence) {
  Usual pair(40, next(), wide_config());
  for (const std::int64_t rows : {1, 4, 8}) compare_blocks(pair, static_cast<unsigned>(40 + rows), 1, rows);
}

TEST_F(Cuda, BlocksOfSeveralSequences) {
  Usual pair(50, next(), wide_config());
  for (const std::int64_t sequences : {2, 4, 5, 18}) {
    compare_blocks(pair, static_cast<unsigned>(50 + sequences), sequences, sequences == 4 ? 1 : 3);
  }
}

/// Parallel sequences that decode one row each; with as many experts as ranks all of them choose all experts.
TEST_F(Cuda, BlocksOfParallelSequences) {
  Usual pair(70, next(), wide_config());
  for (const std::int64_t sequences : {9, 13, 16}) {
    compare_blocks(pair, static_cast<unsigned>(70 + sequences), sequences, 1);
  }
  artifact::ModelConfig c = wide_config();
  c.experts = c.experts_per_token;
  Usual all(90, next(), c);
  compare_blocks(all, 91, 16, 1);
}

/// Ratios of value heads to key heads that the published model does not have.
TEST_F(Cuda, BlocksOfOtherHeads) {
  for (const std::int64_t ratio : {1, 2}) {
    artifact::ModelConfig c = wide_config();
    c.linear_value_heads = ratio * c.linear_key_heads;
    Usual pair(70 + static_cast<unsigned>(ratio), next(), c);
    compare_blocks(pair, 72, 1, 1);
    compare_blocks(pair, 73, 3, 4);
  }
}

/// Passes over a few states right behind each other, without a wait: what a pass reads early, the last one has written.
/// The outputs of the last pass and all states, as one list.
std::vector<float> run_passes(Rig& rig, unsigned seed) {
  constexpr std::int64_t kStates = 3;
  constexpr std::int64_t kMostRows = 4;
  const artifact::ModelConfig& c = rig.config;
  Source source(seed);
  Side side(rig, kStates, 8, StateType::BF16);
  Array u(*rig.backend, source.values(kMostRows * c.hidden_size));
  Array y(*rig.backend, kMostRows * c.hidden_size);
  Array x(*rig.backend, kMostRows * c.wide_size());
  std::array<bool, kStates> swapped{};
  for (int pass = 0; pass < 24; ++pass) {
    const bool capture = source.below(4) == 0;
    const std::int64_t rows = capture || source.below(3) == 0 ? 1 + source.below(kMostRows) : 1;
    const std::int64_t keep = capture ? source.below(rows + 1) : 0;
    const std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows), pass);
    rig.backend->embed(*rig.embedding, tokens, x.data());
    std::array<DeltaSlot, kStates> slots;
    for (std::size_t i = 0; i < kStates; ++i) {
      State& s = side.state(i);
      float* state = swapped.at(i) ? s.next.data() : s.delta.data();
      float* other = swapped.at(i) ? s.delta.data() : s.next.data();
      DeltaSlot& slot = slots.at(i);
      slot.run = {0, rows};
      slot.state = state;
      slot.next_state = capture ? other : state;
      slot.conv = {s.conv.data(), capture ? s.captured_conv.data() : nullptr};
      if (capture) {
        slot.keys = s.keys.data();
        slot.deltas = s.deltas.data();
        slot.decays = s.decays.data();
      }
      rig.backend->delta_net(rig.delta, u.data(), {&slot, 1}, rows, y.data());
    }
    if (!capture) continue;
    for (std::size_t i = 0; i < kStates; ++i) {
      rig.backend->commit_delta(slots.at(i), keep);
      rig.backend->commit_conv(slots.at(i).conv, c.conv_kernel - 1, c.conv_channels(), keep);
      swapped.at(i) = !swapped.at(i);
    }
  }
  std::vector<float> all = y.values();
  for (std::size_t i = 0; i < kStates; ++i) {
    State& s = side.state(i);
    for (Array* array : {swapped.at(i) ? &s.next : &s.delta, &s.conv}) {
      const auto values = array->values();
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

TEST_F(Cuda, PassesRightBehindEachOther) {
  Usual pair(80, next(), wide_config());
  for (const unsigned seed : {81U, 82U, 83U}) {
    expect_same(fmt::format("seed {}", seed), run_passes(pair.cpu, seed), run_passes(pair.device, seed));
  }
}

/// The published hidden size: five segments of inputs.
TEST_F(Cuda, BlocksOfThePublishedWidth) {
  artifact::ModelConfig c = wide_config();
  c.hidden_size = 2560;
  c.experts = 64;
  Usual pair(60, next(), c);
  compare_blocks(pair, 61, 1, 1);
  compare_blocks(pair, 62, 4, 1);
  compare_blocks(pair, 63, 2, 3);
  compare_blocks(pair, 64, 16, 1);
}

/// So many that the gates' product makes the mean itself, with and without injections.
TEST_F(Cuda, ResidualSitesOfManyRows) {
  Usual pair(70, next(), wide_config());
  Side cpu(pair.cpu, 1, 1, StateType::BF16);
  Side cuda(pair.device, 1, 1, StateType::BF16);
  Source source(71);
  for (const std::int64_t rows : {32, 41, 130}) {
    const auto x = source.values(rows * pair.cpu.config.wide_size());
    for (const bool inject : {true, false}) {
      expect_same(fmt::format("hyper_read, {} rows", rows), cpu.hyper(x, rows, inject), cuda.hyper(x, rows, inject));
    }
  }
}

}  // namespace
}  // namespace lockstep::backend
