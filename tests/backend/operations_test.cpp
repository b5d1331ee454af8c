// Every operation of the CPU backend: any thread count and instruction set gives the same bits (docs/numerics.md E7),
// rows of several sequences do not see each other, and captured rows can be taken back.
#include "backend/fixture.hpp"

namespace lockstep::backend {
namespace {

using test::download;
using test::Rig;
using test::same_bits;
using test::Source;

CpuOptions with(std::size_t threads, std::string_view isa) {
  CpuOptions options;
  options.threads = threads;
  options.isa = std::string(isa);
  options.min_work = 1;  // every loop is split, however small
  return options;
}

std::size_t floats(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

/// State of one sequence in every kind of layer, on zeroed device memory.
struct State {
  State(Backend& backend, const artifact::ModelConfig& config, std::int64_t page_count, StateType type)
      : delta(allocate(backend, config.linear_value_heads * config.linear_key_dim * config.linear_value_dim)),
        next(allocate(backend, config.linear_value_heads * config.linear_key_dim * config.linear_value_dim)),
        conv(allocate(backend, (config.conv_kernel - 1) * config.conv_channels())),
        ple(allocate(backend, (config.ple_conv_kernel - 1) * config.ngram_size * config.wide_size())),
        raw(allocate(backend, raw_key_ring(config.indexer_ratio) * config.indexer_dim)) {
    for (std::int64_t i = 0; i < page_count; ++i) {
      pages.push_back(backend.allocate(page_layout(config, type).bytes).value());
      table.push_back(pages.back()->data());
    }
  }
  static BufferPtr allocate(Backend& backend, std::int64_t n) {
    return backend.allocate(floats(n) * sizeof(float)).value();
  }

  BufferPtr delta, next, conv, ple, raw;
  std::vector<BufferPtr> pages;
  std::vector<std::byte*> table;
  std::int64_t length = 0;
};

/// Memory for captured rows.
struct Capture {
  Capture(Backend& backend, const artifact::ModelConfig& c, std::int64_t rows)
      : keys(State::allocate(backend, rows * c.linear_key_heads * c.linear_key_dim)),
        deltas(State::allocate(backend, rows * c.value_size())),
        decays(State::allocate(backend, rows * c.linear_value_heads)),
        conv(State::allocate(backend, rows * c.conv_channels())),
        ple(State::allocate(backend, rows * c.wide_size())) {}
  BufferPtr keys, deltas, decays, conv, ple;
};

DeltaSlot delta_slot(State& state, Run run, Capture* capture) {
  DeltaSlot slot;
  slot.run = run;
  slot.state = state.delta->floats();
  slot.next_state = capture != nullptr ? state.next->floats() : state.delta->floats();
  slot.conv = {state.conv->floats(), capture != nullptr ? capture->conv->floats() : nullptr};
  if (capture != nullptr) {
    slot.keys = capture->keys->floats();
    slot.deltas = capture->deltas->floats();
    slot.decays = capture->decays->floats();
  }
  return slot;
}

/// Rows of several sequences through every operation once; results are all outputs and states.
std::vector<float> everything(Rig& rig, unsigned seed, StateType type) {
  Source source(seed);
  const artifact::ModelConfig& c = rig.config;
  Backend& backend = *rig.backend;
  std::vector<float> all;
  const auto collect = [&](const std::vector<float>& part) { all.insert(all.end(), part.begin(), part.end()); };

  std::vector<State> states;
  const std::int64_t sequences = 1 + source.below(3);
  for (std::int64_t i = 0; i < sequences; ++i) states.emplace_back(backend, c, 3, type);
  for (int step = 0; step < 3; ++step) {
    std::vector<DeltaSlot> delta;
    std::vector<AttentionSlot> attention;
    std::vector<PleSlot> ple;
    std::int64_t rows = 0;
    for (State& state : states) {
      const Run run{rows, 1 + source.below(step == 0 ? 60 : 9)};
      delta.push_back(delta_slot(state, run, nullptr));
      attention.push_back({run, state.length, state.table.data(), 0, state.raw->floats()});
      ple.push_back({run, {state.ple->floats(), nullptr}});
      state.length += run.rows;
      rows += run.rows;
    }
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < rows; ++i) tokens.push_back(static_cast<std::int32_t>(source.below(c.vocab_size)));
    const auto e = source.values(rows * c.ple_dim);
    std::vector<float> x(floats(rows * c.wide_size()));
    std::vector<float> u(floats(rows * c.hidden_size));
    std::vector<float> y(u.size());
    std::vector<float> inject(floats(rows * c.streams));
    backend.embed(*rig.embedding, tokens, x.data());
    backend.ple_inject(rig.ple, e.data(), ple, rows, x.data());
    backend.hyper_read(rig.hyper, x.data(), rows, u.data(), inject.data());
    collect(u);
    backend.delta_net(rig.delta, u.data(), delta, rows, y.data());
    backend.hyper_write(inject.data(), y.data(), rows, x.data());
    backend.hyper_read(rig.hyper, x.data(), rows, u.data(), inject.data());
    backend.attention(rig.attention, u.data(), attention, rows, y.data());
    collect(y);
    backend.experts(rig.moe, u.data(), rows, y.data());
    collect(y);
    backend.hyper_write(inject.data(), y.data(), rows, x.data());
    collect(x);
    std::vector<float> drafted(x.size());
    backend.draft_input(rig.draft, *rig.embedding, tokens, x.data(), drafted.data());
    collect(drafted);
    std::vector<float> logits(floats(rows * c.vocab_size));
    backend.project(*rig.embedding, u.data(), rows, logits.data());
    collect(logits);
  }
  for (State& state : states) {
    for (Buffer* part : {state.delta.get(), state.conv.get(), state.ple.get(), state.raw.get()}) {
      collect(download(backend, *part));
    }
  }
  return all;
}

TEST(Operations, AnyThreadCountAndInstructionSetGivesTheSameBits) {
  const auto& tables = kernels::available_kernels();
  for (unsigned seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const StateType type = seed % 2 == 0 ? StateType::BF16 : StateType::F32;
    Rig reference(seed, with(1, "scalar"), type);
    const auto expected = everything(reference, seed, type);
    for (const float x : expected) ASSERT_TRUE(numerics::is_finite(x));
    for (std::size_t threads = 1; threads <= 5; ++threads) {
      const std::string_view table = tables[(threads + seed / 2) % tables.size()]->name;
      Rig rig(seed, with(threads, table), type);
      EXPECT_TRUE(same_bits(everything(rig, seed, type), expected)) << table << ", " << threads << " threads";
    }
  }
}

TEST(Operations, SmallSharesOfWorkChangeNothing) {
  CpuOptions lazy = with(3, "scalar");
  lazy.min_work = 1 << 30;  // nothing is worth a thread
  Rig one(9, lazy);
  Rig many(9, with(3, "scalar"));
  EXPECT_TRUE(same_bits(everything(one, 9, StateType::BF16), everything(many, 9, StateType::BF16)));
}

// A captured run leaves the state as it was until commit, and committing `keep` rows gives the state of running only
// those rows.
TEST(Operations, CommittedRowsAreTheRowsThatRan) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rig rig(seed, with(1 + seed % 3, ""));
    Backend& backend = *rig.backend;
    const artifact::ModelConfig& c = rig.config;
    Source source(seed);
    State tested(backend, c, 1, StateType::BF16);
    State truth(backend, c, 1, StateType::BF16);
    const std::int64_t ple_history = (c.ple_conv_kernel - 1) * c.ngram_size;
    Capture capture(backend, c, 8);
    for (int cycle = 0; cycle < 6; ++cycle) {
      const std::int64_t rows = 1 + source.below(8);
      const std::int64_t keep = source.below(rows + 1);
      const auto u = source.values(rows * c.hidden_size);
      const auto e = source.values(rows * c.ple_dim);
      const auto x = source.values(rows * c.wide_size());
      const auto before = download(backend, *tested.delta);
      std::vector<float> y(u.size());
      std::vector<float> wide = x;
      const DeltaSlot slot = delta_slot(tested, {0, rows}, &capture);
      const PleSlot ple{{0, rows}, {tested.ple->floats(), capture.ple->floats()}};
      backend.delta_net(rig.delta, u.data(), {&slot, 1}, rows, y.data());
      backend.ple_inject(rig.ple, e.data(), {&ple, 1}, rows, wide.data());
      ASSERT_TRUE(same_bits(download(backend, *tested.delta), before));
      if (keep < rows) backend.commit_delta(slot, keep);
      std::swap(tested.delta, tested.next);
      backend.commit_conv(slot.conv, c.conv_kernel - 1, c.conv_channels(), keep);
      backend.commit_conv(ple.conv, ple_history, c.wide_size(), keep);

      if (keep > 0) {
        std::vector<float> truth_y(floats(keep * c.hidden_size));
        std::vector<float> truth_wide(x.begin(), x.begin() + keep * c.wide_size());
        const DeltaSlot plain = delta_slot(truth, {0, keep}, nullptr);
        const PleSlot plain_ple{{0, keep}, {truth.ple->floats(), nullptr}};
        backend.delta_net(rig.delta, u.data(), {&plain, 1}, keep, truth_y.data());
        backend.ple_inject(rig.ple, e.data(), {&plain_ple, 1}, keep, truth_wide.data());
        EXPECT_TRUE(same_bits(std::span(y).first(truth_y.size()), truth_y));
        EXPECT_TRUE(same_bits(std::span(wide).first(truth_wide.size()), truth_wide));
      }
      ASSERT_TRUE(same_bits(download(backend, *tested.delta), download(backend, *truth.delta))) << "cycle " << cycle;
      ASSERT_TRUE(same_bits(download(backend, *tested.conv), download(backend, *truth.conv))) << "cycle " << cycle;
      ASSERT_TRUE(same_bits(download(backend, *tested.ple), download(backend, *truth.ple))) << "cycle " << cycle;
    }
  }
}

TEST(Operations, AttentionKeysAloneStoreWhatAttentionStores) {
  for (const StateType type : {StateType::BF16, StateType::F32}) {
    Rig rig(3, with(2, ""), type);
    const artifact::ModelConfig& c = rig.config;
    Source source(4);
    State whole(*rig.backend, c, 2, type);
    State keys(*rig.backend, c, 2, type);
    for (const std::int64_t rows : {1, 3, 50, 1, 30}) {
      const auto u = source.values(rows * c.hidden_size);
      std::vector<float> y(u.size());
      const AttentionSlot a{{0, rows}, whole.length, whole.table.data(), 0, whole.raw->floats()};
      const AttentionSlot b{{0, rows}, keys.length, keys.table.data(), 0, keys.raw->floats()};
      rig.backend->attention(rig.attention, u.data(), {&a, 1}, rows, y.data());
      rig.backend->attention_keys(rig.attention, u.data(), {&b, 1}, rows);
      whole.length += rows;
      keys.length += rows;
    }
    EXPECT_TRUE(same_bits(download(*rig.backend, *whole.raw), download(*rig.backend, *keys.raw)));
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(std::memcmp(whole.table[i], keys.table[i], whole.pages[i]->size()), 0);
    }
  }
}

// Non-finite activations of one row must not reach another row of the same call.
TEST(Operations, NonFiniteRowsDoNotSpread) {
  Rig rig(5, with(2, ""));
  const artifact::ModelConfig& c = rig.config;
  Source source(6);
  const auto good = source.values(c.hidden_size);
  auto bad = good;
  bad[7] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> u = bad;
  u.insert(u.end(), good.begin(), good.end());
  u.insert(u.end(), bad.begin(), bad.end());
  std::vector<float> together(u.size());
  std::vector<float> alone(good.size());
  rig.backend->experts(rig.moe, u.data(), 3, together.data());
  rig.backend->experts(rig.moe, good.data(), 1, alone.data());
  EXPECT_TRUE(same_bits(std::span(together).subspan(good.size(), good.size()), alone));
  for (std::size_t i = 0; i < good.size(); ++i) EXPECT_NE(together[i], together[i]);

  std::vector<State> states;
  for (int i = 0; i < 4; ++i) states.emplace_back(*rig.backend, c, 1, StateType::BF16);
  std::vector<DeltaSlot> delta;
  std::vector<AttentionSlot> attention;
  for (std::size_t i = 0; i < 3; ++i) {
    const backend::Run run{static_cast<std::int64_t>(i), 1};
    delta.push_back(delta_slot(states[i], run, nullptr));
    attention.push_back({run, 0, states[i].table.data(), 0, states[i].raw->floats()});
  }
  const DeltaSlot lone_delta = delta_slot(states[3], {0, 1}, nullptr);
  const AttentionSlot lone{{0, 1}, 0, states[3].table.data(), 0, states[3].raw->floats()};
  rig.backend->delta_net(rig.delta, u.data(), delta, 3, together.data());
  rig.backend->delta_net(rig.delta, good.data(), {&lone_delta, 1}, 1, alone.data());
  EXPECT_TRUE(same_bits(std::span(together).subspan(good.size(), good.size()), alone));
  EXPECT_NE(together[0], together[0]);
  rig.backend->attention(rig.attention, u.data(), attention, 3, together.data());
  rig.backend->attention(rig.attention, good.data(), {&lone, 1}, 1, alone.data());
  EXPECT_TRUE(same_bits(std::span(together).subspan(good.size(), good.size()), alone));
  EXPECT_NE(together[0], together[0]);
}

}  // namespace
}  // namespace lockstep::backend
