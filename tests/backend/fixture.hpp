// A tiny geometry with random weights of every storage kind, for tests of backends and of state without a model file.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <list>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.hpp"
#include "numerics/bits.hpp"

namespace lockstep::backend::test {

/// Awkward on purpose: nothing is a power of two that need not be.
inline artifact::ModelConfig tiny_config() {
  artifact::ModelConfig c;
  c.vocab_size = 50;
  c.hidden_size = 96;
  c.attention_heads = 6;
  c.kv_heads = 2;
  c.head_dim = 32;
  c.rotary_dim = 8;
  c.rope_theta = 1e7;
  c.indexer_heads = 3;
  c.indexer_dim = 32;
  c.indexer_budget = 12;
  c.indexer_ratio = 4;
  c.linear_key_heads = 2;
  c.linear_value_heads = 6;
  c.linear_key_dim = 48;
  c.linear_value_dim = 32;
  c.conv_kernel = 4;
  c.streams = 3;
  c.hc_lowrank = 32;
  c.experts = 7;
  c.experts_per_token = 3;
  c.expert_dim = 32;
  c.shared_expert_dim = 64;
  c.ple_dim = 64;
  c.ple_conv_kernel = 3;
  c.ngram_size = 3;
  c.heads_per_ngram = 1;
  c.rms_norm_eps = 1e-6;
  c.max_positions = 6000;
  return c;
}

/// Random numbers that depend on nothing but the seed and the call order.
class Source {
 public:
  explicit Source(unsigned seed) : random_(seed) {}
  float value() { return static_cast<float>(static_cast<int>(random_() % 4001) - 2000) / 1000.0F; }
  std::vector<float> values(std::int64_t n, float scale = 1.0F, float center = 0.0F) {
    std::vector<float> out(static_cast<std::size_t>(n));
    for (float& x : out) x = center + scale * value();
    return out;
  }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random_() % static_cast<unsigned>(n)); }

 private:
  std::mt19937 random_;
};

/// Weight views and the memory behind them.
class WeightStore {
 public:
  explicit WeightStore(unsigned seed) : source_(seed) {}

  artifact::MatrixView dense(std::int64_t rows, std::int64_t cols, artifact::DType type, std::int64_t count = 1) {
    artifact::MatrixView view = shape(rows, cols, count);
    view.dtype = type;
    view.matrix_stride = static_cast<std::size_t>(rows * cols) * artifact::dtype_size(type);
    view.data = elements(count * rows * cols, type, 1.0F / std::sqrt(static_cast<float>(cols)));
    return view;
  }

  artifact::MatrixView affine(std::int64_t rows, std::int64_t cols, int bits, std::int64_t count = 1, int group = 32) {
    artifact::MatrixView view = shape(rows, cols, count);
    view.quantised = true;
    view.bits = bits;
    view.group = group;
    view.scale_dtype = bits % 2 == 0 ? artifact::DType::BF16 : artifact::DType::F16;
    std::vector<std::byte> codes(static_cast<std::size_t>(count * rows * cols * bits / 8));
    for (std::byte& code : codes) code = static_cast<std::byte>(source_.below(256));
    view.codes = keep(std::move(codes));
    const float step = 1.0F / (std::sqrt(static_cast<float>(cols)) * static_cast<float>(1 << bits));
    view.scales = elements(count * rows * cols / view.group, view.scale_dtype, step);
    view.biases = elements(count * rows * cols / view.group, view.scale_dtype, step);
    return view;
  }

  artifact::MatrixView any(std::int64_t rows, std::int64_t cols, std::int64_t count = 1) {
    constexpr std::array kTypes{artifact::DType::F32, artifact::DType::BF16, artifact::DType::F16};
    constexpr std::array kBits{2, 3, 4, 5, 6, 8};
    const std::int64_t kind = source_.below(9);
    if (kind < 3) return dense(rows, cols, kTypes.at(static_cast<std::size_t>(kind)), count);
    return affine(rows, cols, kBits.at(static_cast<std::size_t>(kind - 3)), count);
  }

  std::vector<float> norm(std::int64_t n) { return source_.values(n, 0.2F, 1.0F); }
  Source& source() { return source_; }

 private:
  static artifact::MatrixView shape(std::int64_t rows, std::int64_t cols, std::int64_t count) {
    artifact::MatrixView view;
    view.count = count;
    view.rows = rows;
    view.cols = cols;
    return view;
  }
  const std::byte* keep(std::vector<std::byte> bytes) {
    memory_.push_back(std::move(bytes));
    return memory_.back().data();
  }
  const std::byte* elements(std::int64_t n, artifact::DType type, float scale) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(n) * artifact::dtype_size(type));
    for (std::int64_t i = 0; i < n; ++i) {
      const float x = scale * source_.value();
      const std::uint32_t bits = numerics::float_bits(x);
      std::uint16_t stored = numerics::float_to_bf16(x);
      if (type == artifact::DType::F16) {  // exponents of these numbers fit; the mantissa is cut
        const auto exponent = static_cast<std::int32_t>((bits >> 23) & 255U) - 112;
        const std::uint32_t mantissa = (bits >> 13) & 1023U;
        const std::uint32_t magnitude = exponent <= 0 ? 0U : (static_cast<std::uint32_t>(exponent) << 10) | mantissa;
        stored = static_cast<std::uint16_t>(((bits >> 16) & 0x8000U) | magnitude);
      }
      const auto at = static_cast<std::size_t>(i);
      if (type == artifact::DType::F32) {
        std::memcpy(bytes.data() + at * 4, &x, 4);
      } else {
        std::memcpy(bytes.data() + at * 2, &stored, 2);
      }
    }
    return keep(std::move(bytes));
  }

  Source source_;
  std::list<std::vector<std::byte>> memory_;
};

/// A backend with the tiny geometry and uploaded weights of every operation. The same seed gives the same weights.
class Rig {
 public:
  explicit Rig(unsigned seed, const CpuOptions& options = {}, StateType state = StateType::BF16)
      : Rig(seed, CpuBackend::create(options).value(), state, tiny_config()) {}
  Rig(unsigned seed, std::unique_ptr<Backend> used, StateType state, const artifact::ModelConfig& geometry)
      : store_(seed), config(geometry), backend(std::move(used)) {
    EXPECT_TRUE(backend->configure(config, state));
    EXPECT_TRUE(backend->prepare_positions(600));
    const std::int64_t hidden = config.hidden_size;
    const std::int64_t wide = config.wide_size();
    embedding = matrix(config.vocab_size, hidden);
    hyper.norm = vector(wide);
    hyper.down = matrix(config.hc_lowrank, wide);
    hyper.up = matrix(wide, config.hc_lowrank);
    hyper.inject = matrix(config.streams, wide);
    make_delta();
    make_attention();
    make_experts();
    ple.key = matrix(wide, config.ple_dim);
    ple.value = matrix(hidden, config.ple_dim);
    ple.norm_key = vector(wide);
    ple.norm_query = vector(wide);
    ple.norm_conv = vector(wide);
    ple.conv = upload(store_.source().values(wide * config.ple_conv_kernel, 0.5F));
    draft.norm_embedding = vector(hidden);
    draft.norm_hidden = vector(wide);
    draft.fc_embedding = matrix(hidden, hidden);
    draft.fc_hidden = matrix(hidden, hidden);
  }

  BufferPtr upload(const std::vector<float>& values) { return backend->upload(std::span<const float>(values)).value(); }

 private:
  WeightStore store_;  // before the members that it fills

 public:
  artifact::ModelConfig config;
  std::unique_ptr<Backend> backend;
  MatrixPtr embedding;
  HyperWeights hyper;
  DeltaWeights delta;
  AttentionWeights attention;
  MoeWeights moe;
  PleWeights ple;
  DraftWeights draft;

 private:
  MatrixPtr matrix(std::int64_t rows, std::int64_t cols, std::int64_t count = 1) {
    return backend->upload(store_.any(rows, cols, count)).value();
  }
  BufferPtr vector(std::int64_t n) { return upload(store_.norm(n)); }

  void make_delta() {
    delta.qkv = matrix(config.conv_channels(), config.hidden_size);
    delta.z = matrix(config.value_size(), config.hidden_size);
    delta.b = matrix(config.linear_value_heads, config.hidden_size);
    delta.a = matrix(config.linear_value_heads, config.hidden_size);
    delta.out = matrix(config.hidden_size, config.value_size());
    delta.conv = upload(store_.source().values(config.conv_channels() * config.conv_kernel, 0.5F));
    delta.neg_a = upload(store_.source().values(config.linear_value_heads, 0.2F, -0.5F));
    delta.dt_bias = upload(store_.source().values(config.linear_value_heads));
    delta.norm = vector(config.linear_value_dim);
  }
  void make_attention() {
    attention.q = matrix(2 * config.attention_heads * config.head_dim, config.hidden_size);
    attention.k = matrix(config.kv_heads * config.head_dim, config.hidden_size);
    attention.v = matrix(config.kv_heads * config.head_dim, config.hidden_size);
    attention.o = matrix(config.hidden_size, config.attention_heads * config.head_dim);
    attention.index_qk = matrix((config.indexer_heads + 1) * config.indexer_dim, config.hidden_size);
    attention.q_norm = vector(config.head_dim);
    attention.k_norm = vector(config.head_dim);
    attention.index_q_norm = vector(config.indexer_dim);
    attention.index_k_norm = vector(config.indexer_dim);
  }
  void make_experts() {
    moe.router = matrix(config.experts, config.hidden_size);
    moe.gate = matrix(config.expert_dim, config.hidden_size, config.experts);
    moe.up = matrix(config.expert_dim, config.hidden_size, config.experts);
    moe.down = matrix(config.hidden_size, config.expert_dim, config.experts);
    moe.shared_gate = matrix(config.shared_expert_dim, config.hidden_size);
    moe.shared_up = matrix(config.shared_expert_dim, config.hidden_size);
    moe.shared_down = matrix(config.hidden_size, config.shared_expert_dim);
    moe.shared_expert_gate = matrix(1, config.hidden_size);
  }
};

/// Device memory with these floats.
inline std::vector<float> download(Backend& backend, Buffer& buffer) {
  std::vector<float> out(buffer.size() / sizeof(float));
  backend.read(out.data(), buffer.data(), out.size() * sizeof(float));
  return out;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace lockstep::backend::test
