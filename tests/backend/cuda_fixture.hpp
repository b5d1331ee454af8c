// Both sides of a comparison between the CUDA backend and the processor's.
#pragma once

#include <cmath>
#include <limits>

#include "backend/cuda/cuda_backend.hpp"
#include "backend/fixture.hpp"

namespace lockstep::backend {

using test::Rig;
using test::Source;
using test::WeightStore;

inline std::unique_ptr<Backend> open_cuda(std::string& reason) {
  auto made = create_cuda_backend({});
  if (made) return std::move(*made);
  reason = made.error().message;
  return nullptr;
}

inline std::unique_ptr<Backend> open_cpu() {
  CpuOptions options;
  return CpuBackend::create(options).value();
}

/// Dimensions of the published model where they select a kernel, few heads and experts.
inline artifact::ModelConfig wide_config() {
  artifact::ModelConfig c = test::tiny_config();
  c.vocab_size = 300;
  c.hidden_size = 640;
  c.attention_heads = 24;
  c.kv_heads = 2;
  c.head_dim = 256;
  c.rotary_dim = 64;
  c.indexer_heads = 4;
  c.indexer_dim = 128;
  c.indexer_budget = 256;
  c.linear_key_heads = 2;
  c.linear_value_heads = 6;
  c.linear_key_dim = 128;
  c.linear_value_dim = 128;
  c.streams = 4;
  c.hc_lowrank = 320;
  c.experts = 40;
  c.experts_per_token = 10;
  c.expert_dim = 640;
  c.shared_expert_dim = 640;
  c.ple_dim = 256;
  c.ple_conv_kernel = 4;
  return c;
}

inline void expect_same(const std::string& what, std::span<const float> expected, std::span<const float> got) {
  ASSERT_EQ(expected.size(), got.size()) << what;
  std::size_t different = 0;
  std::size_t first = 0;
  for (std::size_t i = expected.size(); i-- > 0;) {
    const bool same = numerics::float_bits(expected[i]) == numerics::float_bits(got[i]) ||
                      (expected[i] != expected[i] && got[i] != got[i]);
    if (same) continue;
    ++different;
    first = i;
  }
  if (different == 0) return;
  ADD_FAILURE() << what << ": " << different << " of " << expected.size() << " differ, the first at " << first
                << ": expected " << std::hexfloat << expected[first] << ", got " << got[first];
}

/// An array on a backend.
class Array {
 public:
  Array(Backend& backend, std::span<const float> values) : backend_(backend) {
    buffer_ = backend.allocate(values.size_bytes()).value();
    backend.write(buffer_->data(), values.data(), values.size_bytes());
  }
  Array(Backend& backend, std::int64_t size)
      : Array(backend, std::vector<float>(static_cast<std::size_t>(size), 7e7F)) {}
  [[nodiscard]] float* data() { return buffer_->floats(); }
  [[nodiscard]] std::vector<float> values() { return test::download(backend_, *buffer_); }

 private:
  Backend& backend_;
  BufferPtr buffer_;
};

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    cuda_ = open_cuda(reason_);
    if (cuda_ == nullptr) GTEST_SKIP() << "no CUDA device: " << reason_;
  }
  std::unique_ptr<Backend> next() {
    if (cuda_ != nullptr) return std::move(cuda_);
    return open_cuda(reason_);
  }

 private:
  std::unique_ptr<Backend> cuda_;
  std::string reason_;
};

/// State of one sequence on one backend.
struct State {
  State(Backend& backend, const artifact::ModelConfig& c, std::int64_t page_count, StateType type)
      : delta(backend, zeros(c.linear_value_heads * c.linear_key_dim * c.linear_value_dim)),
        next(backend, zeros(c.linear_value_heads * c.linear_key_dim * c.linear_value_dim)),
        conv(backend, zeros((c.conv_kernel - 1) * c.conv_channels())),
        ple(backend, zeros((c.ple_conv_kernel - 1) * c.ngram_size * c.wide_size())),
        raw(backend, zeros(raw_key_ring(c.indexer_ratio) * c.indexer_dim)),
        keys(backend, zeros(8 * c.linear_key_heads * c.linear_key_dim)),
        deltas(backend, zeros(8 * c.value_size())),
        decays(backend, zeros(8 * c.linear_value_heads)),
        captured_conv(backend, zeros(8 * c.conv_channels())),
        captured_ple(backend, zeros(8 * c.wide_size())) {
    for (std::int64_t i = 0; i < page_count; ++i) {
      pages.push_back(backend.allocate(page_layout(c, type).bytes).value());
      table.push_back(pages.back()->data());
    }
  }
  static std::vector<float> zeros(std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n)); }

  Array delta, next, conv, ple, raw, keys, deltas, decays, captured_conv, captured_ple;
  std::vector<BufferPtr> pages;
  std::vector<std::byte*> table;
  std::int64_t length = 0;
};

/// One side of a comparison: a backend's operations on its own copies of the same inputs.
class Side {
 public:
  Side(Rig& rig, std::int64_t sequences, std::int64_t pages, StateType type) : rig_(rig) {
    for (std::int64_t i = 0; i < sequences; ++i) states_.emplace_back(*rig.backend, rig.config, pages, type);
  }
  State& state(std::size_t i) { return *std::next(states_.begin(), static_cast<std::ptrdiff_t>(i)); }

  std::vector<float> embed(std::span<const std::int32_t> tokens) {
    return made(std::ssize(tokens) * rig_.config.wide_size(),
                [&](float* out) { rig_.backend->embed(*rig_.embedding, tokens, out); });
  }
  std::vector<float> ple(std::span<const float> e, std::span<const Run> runs, std::span<const float> x, bool capture) {
    std::vector<PleSlot> slots;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      slots.push_back({runs[i], {state(i).ple.data(), capture ? state(i).captured_ple.data() : nullptr}});
    }
    Array in(*rig_.backend, e);
    Array out(*rig_.backend, x);
    rig_.backend->ple_inject(rig_.ple, in.data(), slots, rows(runs), out.data());
    return out.values();
  }
  std::vector<float> hyper(std::span<const float> x, std::int64_t rows, bool with_inject) {
    Array in(*rig_.backend, x);
    Array inject(*rig_.backend, rows * rig_.config.streams);
    auto u = made(rows * rig_.config.hidden_size, [&](float* out) {
      rig_.backend->hyper_read(rig_.hyper, in.data(), rows, out, with_inject ? inject.data() : nullptr);
    });
    const auto weights = inject.values();
    u.insert(u.end(), weights.begin(), weights.end());
    return u;
  }
  std::vector<float> write(std::span<const float> inject, std::span<const float> y, std::span<const float> x) {
    Array weights(*rig_.backend, inject);
    Array in(*rig_.backend, y);
    Array out(*rig_.backend, x);
    rig_.backend->hyper_write(weights.data(), in.data(), std::ssize(y) / rig_.config.hidden_size, out.data());
    return out.values();
  }
  std::vector<float> delta(std::span<const float> u, std::span<const Run> runs, bool capture) {
    const std::vector<DeltaSlot> slots = delta_slots(runs, capture);
    return narrow(u, rows(runs), [&](const float* in, std::int64_t n, float* out) {
      rig_.backend->delta_net(rig_.delta, in, slots, n, out);
    });
  }
  void commit(std::int64_t keep) {
    for (const DeltaSlot& slot : last_delta_) {
      const std::int64_t kept = std::min(keep, slot.run.rows);
      rig_.backend->commit_delta(slot, kept);
      rig_.backend->commit_conv(slot.conv, rig_.config.conv_kernel - 1, rig_.config.conv_channels(), kept);
    }
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const ConvSlot slot{state(i).ple.data(), state(i).captured_ple.data()};
      const std::int64_t kept = std::min(keep, last_delta_[i].run.rows);
      rig_.backend->commit_conv(slot, (rig_.config.ple_conv_kernel - 1) * rig_.config.ngram_size,
                                rig_.config.wide_size(), kept);
    }
  }
  std::vector<float> attention(std::span<const float> u, std::span<const Run> runs) {
    const std::vector<AttentionSlot> slots = attention_slots(runs);
    return narrow(u, rows(runs), [&](const float* in, std::int64_t n, float* out) {
      rig_.backend->attention(rig_.attention, in, slots, n, out);
    });
  }
  /// The whole blocks of a layer on x: returns x.
  std::vector<float> delta_block(std::span<const float> x, std::span<const Run> runs, bool capture) {
    const std::vector<DeltaSlot> slots = delta_slots(runs, capture);
    return block(x, rows(runs), [&](const BlockRows& b, float* out) {
      rig_.backend->delta_block(rig_.hyper, rig_.delta, slots, b, out);
    });
  }
  std::vector<float> attention_block(std::span<const float> x, std::span<const Run> runs) {
    const std::vector<AttentionSlot> slots = attention_slots(runs);
    return block(x, rows(runs), [&](const BlockRows& b, float* out) {
      rig_.backend->attention_block(rig_.hyper, rig_.attention, slots, b, out);
    });
  }
  std::vector<float> experts_block(std::span<const float> x, std::int64_t n) {
    return block(x, n,
                 [&](const BlockRows& b, float* out) { rig_.backend->experts_block(rig_.hyper, rig_.moe, b, out); });
  }
  std::vector<float> experts(std::span<const float> u, std::int64_t n) {
    return narrow(u, n, [&](const float* in, std::int64_t count, float* out) {
      rig_.backend->experts(rig_.moe, in, count, out);
    });
  }
  std::vector<float> draft(std::span<const std::int32_t> tokens, std::span<const float> h) {
    Array in(*rig_.backend, h);
    return made(std::ssize(h),
                [&](float* out) { rig_.backend->draft_input(rig_.draft, *rig_.embedding, tokens, in.data(), out); });
  }
  std::vector<float> pages(std::size_t i, StateType type) {
    std::vector<float> all;
    const PageLayout layout = page_layout(rig_.config, type);
    for (const BufferPtr& page : state(i).pages) {
      std::vector<std::byte> bytes(layout.bytes);
      rig_.backend->read(bytes.data(), page->data(), bytes.size());
      for (const std::byte b : bytes) all.push_back(static_cast<float>(b));
    }
    return all;
  }

 private:
  std::vector<DeltaSlot> delta_slots(std::span<const Run> runs, bool capture) {
    std::vector<DeltaSlot> slots;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      State& s = state(i);
      DeltaSlot slot;
      slot.run = runs[i];
      slot.state = s.delta.data();
      slot.next_state = capture ? s.next.data() : s.delta.data();
      slot.conv = {s.conv.data(), capture ? s.captured_conv.data() : nullptr};
      if (capture) {
        slot.keys = s.keys.data();
        slot.deltas = s.deltas.data();
        slot.decays = s.decays.data();
      }
      slots.push_back(slot);
    }
    last_delta_ = slots;
    return slots;
  }
  std::vector<AttentionSlot> attention_slots(std::span<const Run> runs) {
    std::vector<AttentionSlot> slots;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      State& s = state(i);
      slots.push_back({runs[i], s.length, s.table.data(), 0, s.raw.data()});
      s.length += runs[i].rows;
    }
    return slots;
  }
  template <class Body>
  std::vector<float> block(std::span<const float> x, std::int64_t n, Body body) {
    Array u(*rig_.backend, n * rig_.config.hidden_size);
    Array y(*rig_.backend, n * rig_.config.hidden_size);
    Array inject(*rig_.backend, n * rig_.config.streams);
    Array out(*rig_.backend, x);
    body({n, u.data(), y.data(), inject.data()}, out.data());
    return out.values();
  }
  static std::int64_t rows(std::span<const Run> runs) { return runs.back().first_row + runs.back().rows; }
  template <class Body>
  std::vector<float> made(std::int64_t size, Body body) {
    Array out(*rig_.backend, size);
    body(out.data());
    return out.values();
  }
  template <class Body>
  std::vector<float> narrow(std::span<const float> u, std::int64_t n, Body body) {
    Array in(*rig_.backend, u);
    return made(n * rig_.config.hidden_size, [&](float* out) { body(in.data(), n, out); });
  }

  Rig& rig_;
  std::list<State> states_;
  std::vector<DeltaSlot> last_delta_;
};

}  // namespace lockstep::backend
