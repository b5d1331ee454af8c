// The device interface: memory, uploaded weights and the coarse operations of the forward pass.
//
// A backend knows the parts of a layer but not their order. Activations are device pointers to f32 rows, row-major and
// dense. Rows of several sequences, prefill chunks and speculative rows mix freely in one call: operations without
// state treat rows alike, operations with state get one slot per run of consecutive rows of one sequence.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "artifact/model_view.hpp"
#include "base/result.hpp"
#include "kernels/draw.hpp"

namespace lockstep::backend {

class DrawsAhead;
class NgramStore;

using kernels::Drawn;
using kernels::DrawRequest;

/// How K, V and index keys are stored (docs/numerics.md N5).
enum class StateType : std::uint8_t { BF16, F32 };

/// A block of device memory, 64-byte aligned.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  virtual ~Buffer() = default;
  [[nodiscard]] virtual std::byte* data() = 0;
  [[nodiscard]] virtual std::size_t size() const = 0;
  [[nodiscard]] float* floats() { return reinterpret_cast<float*>(data()); }
};

/// A stack of weight matrices in whatever layout the device likes.
class Matrix {
 public:
  Matrix(std::int64_t count, std::int64_t rows, std::int64_t cols) : count_(count), rows_(rows), cols_(cols) {}
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  virtual ~Matrix() = default;
  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t cols() const { return cols_; }
  /// Whether it reads what the view that it was made from points to.
  [[nodiscard]] virtual bool reads_view() const { return false; }

 private:
  std::int64_t count_, rows_, cols_;
};

using BufferPtr = std::unique_ptr<Buffer>;
using MatrixPtr = std::unique_ptr<Matrix>;

struct HyperWeights {
  BufferPtr norm;              ///< [streams * hidden]
  MatrixPtr down, up, inject;  ///< inject is null in a final mixer
};

struct DeltaWeights {
  MatrixPtr qkv, z, b, a, out;
  BufferPtr conv;            ///< [channels, kernel]
  BufferPtr neg_a, dt_bias;  ///< [value heads]; neg_a = -exp(A_log)
  BufferPtr norm;            ///< [value dim]
};

struct AttentionWeights {
  MatrixPtr q, k, v, o, index_qk;
  BufferPtr q_norm, k_norm, index_q_norm, index_k_norm;
};

struct MoeWeights {
  MatrixPtr router, gate, up, down, shared_gate, shared_up, shared_down, shared_expert_gate;
};

struct PleWeights {
  MatrixPtr key, value;
  BufferPtr norm_key, norm_query, norm_conv;  ///< [streams * hidden]
  BufferPtr conv;                             ///< [streams * hidden, kernel]
};

struct DraftWeights {
  BufferPtr norm_embedding, norm_hidden;
  std::int64_t norm_hidden_groups = 1;
  MatrixPtr fc_embedding, fc_hidden;
};

/// Rows [first_row, first_row + rows) of a call belong to one sequence, in ascending position.
struct Run {
  std::int64_t first_row = 0, rows = 0;
};

/// The last columns of a causal convolution: `columns` [history, channels] in ascending time. With `captured`
/// [rows, channels] set, the new columns are stored there and `columns` stays as it was.
struct ConvSlot {
  float* columns = nullptr;
  float* captured = nullptr;
};

/// State of one GDN layer for one run. Without capture next_state == state and the factors are null.
struct DeltaSlot {
  Run run;
  const float* state = nullptr;  ///< [value heads, key dim, value dim]
  float* next_state = nullptr;   ///< receives the state after the run's last row
  ConvSlot conv;
  float* keys = nullptr;    ///< captured unit keys [rows, key heads, key dim]
  float* deltas = nullptr;  ///< captured deltas [rows, value heads, value dim]
  float* decays = nullptr;  ///< captured decays [rows, value heads]
};

/// State of one attention layer for one run: pages of 64 positions behind a table, and the raw index keys of the newest
/// positions in a ring (docs/architecture.md "State").
struct AttentionSlot {
  Run run;
  std::int64_t position = 0;          ///< of the run's first row
  std::byte* const* pages = nullptr;  ///< enough for position + rows
  std::size_t layer_offset = 0;       ///< bytes of this layer's block inside a page
  float* raw_keys = nullptr;          ///< [raw_key_ring(), index dim], position p at p % raw_key_ring()
};

struct PleSlot {
  Run run;
  ConvSlot conv;
};

/// Rows of a whole block and the memory of its parts: u and y [count, hidden], inject [count, streams].
struct BlockRows {
  std::int64_t count = 0;
  float *u = nullptr, *y = nullptr, *inject = nullptr;
};

/// Raw index keys kept per layer: a partial group plus what a rejected verify of up to five rows may need again.
[[nodiscard]] constexpr std::int64_t raw_key_ring(std::int64_t ratio) {
  return ratio + 8;
}

/// Bytes of one attention layer's block in a page: K, V and pooled index keys of 64 positions.
struct PageLayout {
  std::size_t keys = 0, values = 0, index = 0, bytes = 0;
};
[[nodiscard]] PageLayout page_layout(const artifact::ModelConfig& config, StateType type);

/// Optional fast paths inside operations, none of which changes a bit (docs/lanes.md).
struct LaneOptions {
  bool pooled_rowsel = false;  ///< attention selects groups from a stream of scores
  /// Products of n-gram rows are computed beside the layers in front, and kept in so much memory; 0: off.
  std::uint64_t ple_aux_bytes = 0;
};
inline constexpr std::uint64_t kPleAuxBytes = std::uint64_t{32} << 20;

/// What the paths of LaneOptions did since the backend was made, counted where it happened.
struct LaneCounters {
  std::uint64_t rowsel_rows = 0, rowsel_groups = 0;  ///< selections made, groups scored for them
  std::uint64_t rowsel_kept = 0;                     ///< groups that were candidates for a while
  std::uint64_t aux_hits = 0, aux_misses = 0;        ///< tokens whose products were kept, or were computed
  std::uint64_t aux_evictions = 0;
  std::uint64_t aux_ahead = 0;  ///< tokens whose products were begun beside the layers in front

  friend LaneCounters operator+(LaneCounters a, const LaneCounters& b) { return combined(a, b, std::plus<>()); }
  friend LaneCounters operator-(LaneCounters a, const LaneCounters& b) { return combined(a, b, std::minus<>()); }

 private:
  template <class Operation>
  static LaneCounters combined(LaneCounters a, const LaneCounters& b, Operation operation) {
    for (const auto member :
         {&LaneCounters::rowsel_rows, &LaneCounters::rowsel_groups, &LaneCounters::rowsel_kept, &LaneCounters::aux_hits,
          &LaneCounters::aux_misses, &LaneCounters::aux_evictions, &LaneCounters::aux_ahead}) {
      a.*member = operation(a.*member, b.*member);
    }
    return a;
  }
};

/// Sees a long copy under way, and may end it with Cancelled.
struct CopyWatch {
  std::function<void(std::uint64_t done)> copied;  ///< bytes so far
  const std::atomic<bool>* cancel = nullptr;
};

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  /// What ran, for statistics: "cpu scalar_v3, 2 threads".
  [[nodiscard]] virtual std::string describe() const = 0;

  /// Ends a step: all that was asked for is under way. Errors: the device's first failure, for good; results after it
  /// mean nothing.
  virtual Status status() { return {}; }

  // Memory. New memory is zeroed. Error: Limit when the device has too little.
  virtual Result<BufferPtr> allocate(std::size_t bytes) = 0;
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  virtual void read(void* host, const std::byte* from, std::size_t bytes) = 0;
  virtual void write(std::byte* to, const void* host, std::size_t bytes) = 0;

  // Weights. Views may be kept: the artifact outlives the backend's weights.
  virtual Result<MatrixPtr> upload(const artifact::MatrixView& view) = 0;
  /// Whether upload() itself makes the matrices of synthetic models whose views have no data.
  [[nodiscard]] virtual bool makes_synthetic() const { return false; }
  /// A matrix of which only single rows are read (embed and draft_input), never a product.
  virtual Result<MatrixPtr> upload_rows(const artifact::MatrixView& view) { return upload(view); }
  virtual Result<BufferPtr> upload(std::span<const float> vector) = 0;
  /// Errors: those of open_ngram_store(); Cancelled by the watch of a backend that copies the table.
  virtual Status set_ngram_table(const artifact::NgramTableView& table, const CopyWatch& watch) = 0;
  /// Bytes that set_ngram_table() is going to copy.
  [[nodiscard]] virtual std::uint64_t ngram_copy_bytes(const artifact::NgramTableView& /*table*/) const { return 0; }
  /// Where the rows of the n-gram table come from, for statistics; nullptr without a table.
  [[nodiscard]] virtual const NgramStore* ngram_store() const { return nullptr; }

  /// Sets geometry and state type once, before any operation.
  virtual Status configure(const artifact::ModelConfig& config, StateType state) = 0;
  /// Makes rotation angles available for positions below `positions`.
  virtual Status prepare_positions(std::int64_t positions) = 0;
  /// Makes scratch for up to `rows` rows a call, so that no operation allocates afterwards.
  virtual Status reserve_rows(std::int64_t rows) = 0;

  /// Times that the calling thread stood still until the device had nothing to do, since the backend was made.
  [[nodiscard]] virtual std::uint64_t waits() const { return 0; }
  /// The optional paths that are installed, and what they did.
  [[nodiscard]] virtual LaneOptions lanes() const { return {}; }
  [[nodiscard]] virtual LaneCounters lane_counters() const { return {}; }

  // Operations. `rows` counts rows of the call; outputs never overlap inputs.
  /// x[t] = the token's embedding in every stream: [rows, streams * hidden].
  virtual void embed(const Matrix& embedding, std::span<const std::int32_t> tokens, float* x) = 0;
  /// Starts fetching table rows that an ngram_lookup() will need. Errors: Io once a read of the table has failed.
  virtual Status ngram_request(std::span<const std::int64_t> /*row_ids*/) { return {}; }
  /// e[t] = the concatenated table rows: row_ids [rows, heads] -> [rows, ple_dim]. Errors: Io.
  virtual Status ngram_lookup(std::span<const std::int64_t> row_ids, float* e) = 0;
  /// Starts what ple_inject() derives from the table rows alone, beside the operations in front of it. The next
  /// ngram_lookup() and ple_inject() must be for these weights and rows, which stay in place until then, and may leave
  /// `e` unwritten and unread. Optional: without it both do everything themselves.
  virtual void ple_begin(const PleWeights& /*weights*/, std::span<const std::int64_t> /*row_ids*/) {}
  virtual void ple_inject(const PleWeights& weights, const float* e, std::span<const PleSlot> slots, std::int64_t rows,
                          float* x) = 0;
  /// Wide x -> block input u [rows, hidden] and injection weights [rows, streams] (null in a final mixer).
  virtual void hyper_read(const HyperWeights& weights, const float* x, std::int64_t rows, float* u, float* inject) = 0;
  virtual void hyper_write(const float* inject, const float* y, std::int64_t rows, float* x) = 0;
  virtual void delta_net(const DeltaWeights& weights, const float* u, std::span<const DeltaSlot> slots,
                         std::int64_t rows, float* y) = 0;
  virtual void attention(const AttentionWeights& weights, const float* u, std::span<const AttentionSlot> slots,
                         std::int64_t rows, float* y) = 0;
  /// The part of attention() that later rows depend on: keys, values and index keys of the rows are stored.
  virtual void attention_keys(const AttentionWeights& weights, const float* u, std::span<const AttentionSlot> slots,
                              std::int64_t rows) = 0;
  virtual void experts(const MoeWeights& weights, const float* u, std::int64_t rows, float* y) = 0;
  // Whole blocks: a gated-residual site, its operation and the way back into x, where a device may join what the three
  // parts share. Same values as the parts one by one; u, inject and y of `rows` (BlockRows) are theirs to use.
  virtual void delta_block(const HyperWeights& site, const DeltaWeights& weights, std::span<const DeltaSlot> slots,
                           const BlockRows& rows, float* x) {
    hyper_read(site, x, rows.count, rows.u, rows.inject);
    delta_net(weights, rows.u, slots, rows.count, rows.y);
    hyper_write(rows.inject, rows.y, rows.count, x);
  }
  virtual void attention_block(const HyperWeights& site, const AttentionWeights& weights,
                               std::span<const AttentionSlot> slots, const BlockRows& rows, float* x) {
    hyper_read(site, x, rows.count, rows.u, rows.inject);
    attention(weights, rows.u, slots, rows.count, rows.y);
    hyper_write(rows.inject, rows.y, rows.count, x);
  }
  virtual void experts_block(const HyperWeights& site, const MoeWeights& weights, const BlockRows& rows, float* x) {
    hyper_read(site, x, rows.count, rows.u, rows.inject);
    experts(weights, rows.u, rows.count, rows.y);
    hyper_write(rows.inject, rows.y, rows.count, x);
  }
  /// out [rows, matrix rows].
  virtual void project(const Matrix& matrix, const float* u, std::int64_t rows, float* out) = 0;
  /// The largest vocabulary that draw() takes; 0: this backend does not draw.
  [[nodiscard]] virtual std::int64_t draw_vocabulary() const { return 0; }
  /// Draws tokens from rows of `logits`, each `width` values wide, with the bits of docs/numerics.md N9. Every request
  /// gets one result on the host; what stays as it was, with an id of -1, could not be drawn.
  virtual void draw(const float* /*logits*/, std::int64_t /*width*/, std::span<const DrawRequest> /*requests*/,
                    std::span<Drawn> /*out*/) {}
  /// Steps over tokens that the host does not know yet (backend/draws_ahead.hpp); null where there are none.
  [[nodiscard]] virtual DrawsAhead* draws_ahead() { return nullptr; }
  /// Draft head input (docs/model.md section 4): embeddings of `tokens` and wide residuals h -> wide x.
  virtual void draft_input(const DraftWeights& weights, const Matrix& embedding, std::span<const std::int32_t> tokens,
                           const float* h, float* x) = 0;

  // Commit of captured rows: the first `keep` of the run's rows happened.
  virtual void commit_delta(const DeltaSlot& slot, std::int64_t keep) = 0;
  virtual void commit_conv(const ConvSlot& slot, std::int64_t history, std::int64_t channels, std::int64_t keep) = 0;
};

}  // namespace lockstep::backend
