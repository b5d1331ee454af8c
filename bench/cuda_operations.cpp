// Times the coarse operations of the CUDA backend on random weights of the published geometry, each against the bytes
// that it must read (weights and state). Weights of several layers take turns, so that the cache does not hold them.
//   cuda_operations [SECONDS PER LINE] [ROWS]
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "backend/cuda/cuda_backend.hpp"
#include "numerics/bits.hpp"

namespace {

using namespace lockstep;
using backend::Backend;
using backend::BufferPtr;
using backend::MatrixPtr;

artifact::ModelConfig geometry() {
  artifact::ModelConfig c;
  c.vocab_size = 248320;
  c.hidden_size = 2560;
  c.attention_heads = 24;
  c.kv_heads = 2;
  c.head_dim = 256;
  c.rotary_dim = 64;
  c.rope_theta = 1e7;
  c.indexer_heads = 4;
  c.indexer_dim = 128;
  c.indexer_budget = 2048;
  c.indexer_ratio = 4;
  c.linear_key_heads = 16;
  c.linear_value_heads = 48;
  c.linear_key_dim = 128;
  c.linear_value_dim = 128;
  c.conv_kernel = 4;
  c.streams = 4;
  c.hc_lowrank = 320;
  c.experts = 512;
  c.experts_per_token = 10;
  c.expert_dim = 640;
  c.shared_expert_dim = 640;
  c.ple_dim = 2560;
  c.ple_conv_kernel = 4;
  c.ngram_size = 3;
  c.heads_per_ngram = 8;
  c.max_positions = 262144;
  return c;
}

template <class T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "cuda_operations: {}\n", result.error().message);
  std::exit(1);
}
void must(const Status& status) {
  if (status) return;
  fmt::print(stderr, "cuda_operations: {}\n", status.error().message);
  std::exit(1);
}

/// Random host memory that all matrices share.
class Source {
 public:
  Source() : codes_(std::size_t{440} << 17), small_(std::size_t{32} << 20) {
    for (std::uint64_t& word : codes_) word = next();
    for (std::uint16_t& value : small_) {
      value = numerics::float_to_bf16(static_cast<float>(static_cast<std::int64_t>(next() % 2001) - 1000) * 2e-6F);
    }
  }
  std::uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  std::vector<float> floats(std::int64_t n, float scale, float center = 0) {
    std::vector<float> out(static_cast<std::size_t>(n));
    for (float& x : out) x = center + scale * (static_cast<float>(next() % 2001) - 1000.0F) * 1e-3F;
    return out;
  }
  artifact::MatrixView affine(std::int64_t rows, std::int64_t cols, int bits, std::int64_t count = 1) {
    artifact::MatrixView view = shape(rows, cols, count);
    view.quantised = true;
    view.bits = bits;
    view.group = 64;
    view.codes = reinterpret_cast<const std::byte*>(codes_.data());
    view.scales = reinterpret_cast<const std::byte*>(small_.data());
    view.biases = view.scales + 64;
    return view;
  }
  artifact::MatrixView dense(std::int64_t rows, std::int64_t cols) {
    artifact::MatrixView view = shape(rows, cols, 1);
    view.data = reinterpret_cast<const std::byte*>(small_.data());
    view.matrix_stride = static_cast<std::size_t>(rows * cols) * 2;
    return view;
  }

  /// Small bf16 numbers, other ones for every `index`.
  [[nodiscard]] const void* numbers(std::int64_t index) const { return small_.data() + index * 2039; }

 private:
  static artifact::MatrixView shape(std::int64_t rows, std::int64_t cols, std::int64_t count) {
    artifact::MatrixView view;
    view.rows = rows;
    view.cols = cols;
    view.count = count;
    return view;
  }
  std::uint64_t state_ = 88172645463325252ULL;
  std::vector<std::uint64_t> codes_;
  std::vector<std::uint16_t> small_;
};

struct Layer {
  backend::HyperWeights hyper;
  backend::DeltaWeights delta;
  backend::AttentionWeights attention;
  backend::MoeWeights moe;
  BufferPtr delta_state, conv, raw;
};

class Bench {
 public:
  Bench(double seconds, std::int64_t only)
      : seconds_(seconds), only_(only), backend_(must(backend::create_cuda_backend({}))) {
    must(backend_->configure(c_, backend::StateType::BF16));
    must(backend_->prepare_positions(c_.max_positions));
    for (int i = 0; i < 3; ++i) layers_.push_back(make_layer());
    head_ = matrix(c_.vocab_size, c_.hidden_size, 4);
    must(backend_->reserve_rows(kMostRows));
    u_ = vector(kMostRows * c_.hidden_size, 1);
    x_ = vector(kMostRows * c_.wide_size(), 1);
    y_ = vector(kMostRows * c_.hidden_size, 0);
    inject_ = vector(kMostRows * c_.streams, 0);
    logits_ = vector(16 * c_.vocab_size, 0);
    page_bytes_ = backend::page_layout(c_, backend::StateType::BF16).bytes;
    for (std::int64_t i = 0; i < c_.max_positions / 64; ++i) {
      pages_.push_back(must(backend_->allocate(page_bytes_)));
      table_.push_back(pages_.back()->data());
      backend_->write(table_.back(), source_.numbers(i), page_bytes_);
    }
  }

  void run() {
    fmt::print("{}\n{:<28} {:>6} {:>10} {:>9} {:>9}\n", backend_->describe(), "operation", "rows", "us", "MB", "GB/s");
    for (const std::int64_t rows : {1, 4, 16, 512, 2048}) {
      if (only_ != 0 && rows != only_) continue;
      const double routed = rows == 1 ? 10 : (rows == 4 ? 39 : (rows == 16 ? 139 : 512));
      time("hyper_read", rows, 13.2,
           [&](Layer& l) { backend_->hyper_read(l.hyper, x_->floats(), rows, u_->floats(), inject_->floats()); });
      time("hyper_write", rows, 0.08 * static_cast<double>(rows),
           [&](Layer&) { backend_->hyper_write(inject_->floats(), y_->floats(), rows, x_->floats()); });
      time("delta_net", rows, 38.8, [&](Layer& l) {
        backend::DeltaSlot slot;
        slot.run = {0, rows};
        slot.state = l.delta_state->floats();
        slot.next_state = l.delta_state->floats();
        slot.conv = {l.conv->floats(), nullptr};
        backend_->delta_net(l.delta, u_->floats(), {&slot, 1}, rows, y_->floats());
      });
      for (const std::int64_t position : {2000, 16384, 262144 - 2200}) {
        time(fmt::format("attention at {}", position), rows, 29.7 + static_cast<double>(position) * 64e-6,
             [&](Layer& l) {
               const backend::AttentionSlot slot{{0, rows}, position, table_.data(), 0, l.raw->floats()};
               backend_->attention(l.attention, u_->floats(), {&slot, 1}, rows, y_->floats());
             });
      }
      time("experts", rows, 1.4 + 2.77 * (routed + 1),
           [&](Layer& l) { backend_->experts(l.moe, u_->floats(), rows, y_->floats()); });
      if (rows <= 16) {
        time("head", rows, 358, [&](Layer&) { backend_->project(*head_, u_->floats(), rows, logits_->floats()); });
      }
    }
  }

 private:
  static constexpr std::int64_t kMostRows = 2048;

  MatrixPtr matrix(std::int64_t rows, std::int64_t cols, int bits, std::int64_t count = 1) {
    return must(backend_->upload(source_.affine(rows, cols, bits, count)));
  }
  MatrixPtr dense(std::int64_t rows, std::int64_t cols) { return must(backend_->upload(source_.dense(rows, cols))); }
  BufferPtr vector(std::int64_t n, float scale, float center = 0) {
    const auto values = source_.floats(n, scale, center);
    return must(backend_->upload(std::span<const float>(values)));
  }
  Layer make_layer() {
    Layer l;
    const std::int64_t h = c_.hidden_size;
    const std::int64_t wide = c_.wide_size();
    l.hyper.norm = vector(wide, 0.1F, 1);
    l.hyper.down = dense(c_.hc_lowrank, wide);
    l.hyper.up = dense(wide, c_.hc_lowrank);
    l.hyper.inject = dense(c_.streams, wide);
    l.delta.qkv = matrix(c_.conv_channels(), h, 4);
    l.delta.z = matrix(c_.value_size(), h, 4);
    l.delta.a = matrix(c_.linear_value_heads, h, 4);
    l.delta.b = matrix(c_.linear_value_heads, h, 4);
    l.delta.out = matrix(h, c_.value_size(), 4);
    l.delta.conv = vector(c_.conv_channels() * c_.conv_kernel, 0.3F);
    l.delta.neg_a = vector(c_.linear_value_heads, 0.1F, -1);
    l.delta.dt_bias = vector(c_.linear_value_heads, 1);
    l.delta.norm = vector(c_.linear_value_dim, 0.1F, 1);
    l.attention.q = matrix(2 * c_.attention_heads * c_.head_dim, h, 4);
    l.attention.k = matrix(c_.kv_heads * c_.head_dim, h, 4);
    l.attention.v = matrix(c_.kv_heads * c_.head_dim, h, 4);
    l.attention.o = matrix(h, c_.attention_heads * c_.head_dim, 4);
    l.attention.index_qk = matrix((c_.indexer_heads + 1) * c_.indexer_dim, h, 8);
    l.attention.q_norm = vector(c_.head_dim, 0.1F, 1);
    l.attention.k_norm = vector(c_.head_dim, 0.1F, 1);
    l.attention.index_q_norm = vector(c_.indexer_dim, 0.1F, 1);
    l.attention.index_k_norm = vector(c_.indexer_dim, 0.1F, 1);
    l.moe.router = matrix(c_.experts, h, 8);
    l.moe.gate = matrix(c_.expert_dim, h, 4, c_.experts);
    l.moe.up = matrix(c_.expert_dim, h, 4, c_.experts);
    l.moe.down = matrix(h, c_.expert_dim, 4, c_.experts);
    l.moe.shared_gate = matrix(c_.shared_expert_dim, h, 4);
    l.moe.shared_up = matrix(c_.shared_expert_dim, h, 4);
    l.moe.shared_down = matrix(h, c_.shared_expert_dim, 4);
    l.moe.shared_expert_gate = dense(1, h);
    l.delta_state = vector(c_.value_size() * c_.linear_key_dim, 0.1F);
    l.conv = vector((c_.conv_kernel - 1) * c_.conv_channels(), 1);
    l.raw = vector(backend::raw_key_ring(c_.indexer_ratio) * c_.indexer_dim, 1);
    return l;
  }
  void finish() {
    float value = 0;
    backend_->read(&value, y_->data(), sizeof(value));
    must(backend_->status());
  }
  void time(const std::string& name, std::int64_t rows, double megabytes, const std::function<void(Layer&)>& body) {
    using Clock = std::chrono::steady_clock;
    for (Layer& layer : layers_) body(layer);
    finish();
    std::int64_t done = 0;
    const auto begin = Clock::now();
    double elapsed = 0;
    while (elapsed < seconds_) {
      for (int i = 0; i < 10; ++i) {
        for (Layer& layer : layers_) body(layer);
      }
      finish();
      done += 10 * std::ssize(layers_);
      elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
    }
    if (done == 0) return;  // under a profiler, with no time to spend
    const double each = elapsed / static_cast<double>(done);
    fmt::print("{:<28} {:>6} {:>10.1f} {:>9.1f} {:>9.0f}\n", name, rows, each * 1e6, megabytes,
               megabytes * 1e-3 / each);
    std::fflush(stdout);
  }

  double seconds_;
  std::int64_t only_;  ///< number of rows, or 0 for all
  artifact::ModelConfig c_ = geometry();
  std::unique_ptr<Backend> backend_;
  Source source_;
  std::vector<Layer> layers_;
  MatrixPtr head_;
  BufferPtr u_, x_, y_, inject_, logits_;
  std::size_t page_bytes_ = 0;
  std::vector<BufferPtr> pages_;
  std::vector<std::byte*> table_;
};

}  // namespace

int main(int count, char** arguments) {
  Bench(count > 1 ? std::atof(arguments[1]) : 0.3, count > 2 ? std::atoi(arguments[2]) : 0).run();
  return 0;
}
