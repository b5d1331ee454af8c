// The CUDA backend: the canon on one device, every operation a few kernels in one queue.
#pragma once

#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "backend/cuda/cuda_backend.hpp"
#include "backend/cuda/device_table.hpp"
#include "backend/draws_ahead.hpp"
#include "backend/rotation_table.hpp"
#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/delta.hpp"
#include "kernels/cuda/draw.hpp"
#include "kernels/cuda/few.hpp"
#include "kernels/cuda/linear.hpp"
#include "kernels/cuda/queue.hpp"

namespace lockstep::backend {

class DeviceBuffer final : public Buffer {
 public:
  DeviceBuffer(kernels::cuda::Queue& queue, void* memory, std::size_t size)
      : queue_(queue), memory_(static_cast<std::byte*>(memory)), size_(size) {}
  ~DeviceBuffer() override { queue_.release(memory_); }
  [[nodiscard]] std::byte* data() override { return memory_; }
  [[nodiscard]] std::size_t size() const override { return size_; }

 private:
  kernels::cuda::Queue& queue_;
  std::byte* memory_;
  std::size_t size_;
};

/// Weights in the kernels' layout.
class DeviceMatrix final : public Matrix {
 public:
  explicit DeviceMatrix(const artifact::MatrixView& view) : Matrix(view.count, view.rows, view.cols) {}

  bool quantised = false;
  kernels::cuda::AffineWeights affine;
  kernels::cuda::DenseWeights dense;
  BufferPtr first, second;  ///< codes and pairs, or data
};

class DeviceBackend final : public Backend, public DrawsAhead {
 public:
  DeviceBackend(const CudaOptions& options, const kernels::cuda::DeviceInfo& info)
      : options_(options), info_(info), queue_(options.device, options.graphs) {}

  [[nodiscard]] std::string describe() const override;
  Status status() override;
  Result<BufferPtr> allocate(std::size_t bytes) override;
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override { queue_.copy(to, from, bytes); }
  void read(void* host, const std::byte* from, std::size_t bytes) override { queue_.download(host, from, bytes); }
  void write(std::byte* to, const void* host, std::size_t bytes) override { queue_.upload(to, host, bytes); }
  Result<MatrixPtr> upload(const artifact::MatrixView& view) override;
  [[nodiscard]] bool makes_synthetic() const override { return true; }
  Result<BufferPtr> upload(std::span<const float> vector) override;
  Status set_ngram_table(const artifact::NgramTableView& table, const CopyWatch& watch) override;
  [[nodiscard]] std::uint64_t ngram_copy_bytes(const artifact::NgramTableView& table) const override;
  [[nodiscard]] const NgramStore* ngram_store() const override { return ngram_.get(); }
  Status configure(const artifact::ModelConfig& config, StateType state) override;
  Status prepare_positions(std::int64_t positions) override;
  Status reserve_rows(std::int64_t rows) override;
  [[nodiscard]] std::uint64_t waits() const override { return queue_.waits(); }

  void embed(const Matrix& embedding, std::span<const std::int32_t> tokens, float* x) override;
  Status ngram_request(std::span<const std::int64_t> row_ids) override { return ngram_->request(row_ids); }
  Status ngram_lookup(std::span<const std::int64_t> row_ids, float* e) override;
  void ple_inject(const PleWeights& weights, const float* e, std::span<const PleSlot> slots, std::int64_t rows,
                  float* x) override;
  void hyper_read(const HyperWeights& weights, const float* x, std::int64_t rows, float* u, float* inject) override;
  void hyper_write(const float* inject, const float* y, std::int64_t rows, float* x) override;
  void delta_net(const DeltaWeights& weights, const float* u, std::span<const DeltaSlot> slots, std::int64_t rows,
                 float* y) override;
  void attention(const AttentionWeights& weights, const float* u, std::span<const AttentionSlot> slots,
                 std::int64_t rows, float* y) override;
  void attention_keys(const AttentionWeights& weights, const float* u, std::span<const AttentionSlot> slots,
                      std::int64_t rows) override;
  void experts(const MoeWeights& weights, const float* u, std::int64_t rows, float* y) override;
  void delta_block(const HyperWeights& site, const DeltaWeights& weights, std::span<const DeltaSlot> slots,
                   const BlockRows& rows, float* x) override;
  void attention_block(const HyperWeights& site, const AttentionWeights& weights, std::span<const AttentionSlot> slots,
                       const BlockRows& rows, float* x) override;
  void experts_block(const HyperWeights& site, const MoeWeights& weights, const BlockRows& rows, float* x) override;
  void project(const Matrix& matrix, const float* u, std::int64_t rows, float* out) override;
  void draft_input(const DraftWeights& weights, const Matrix& embedding, std::span<const std::int32_t> tokens,
                   const float* h, float* x) override;
  void commit_delta(const DeltaSlot& slot, std::int64_t keep) override;
  void commit_conv(const ConvSlot& slot, std::int64_t history, std::int64_t channels, std::int64_t keep) override;
  [[nodiscard]] std::int64_t draw_vocabulary() const override;
  void draw(const float* logits, std::int64_t width, std::span<const DrawRequest> requests,
            std::span<Drawn> out) override;
  [[nodiscard]] DrawsAhead* draws_ahead() override { return ahead_ == nullptr ? nullptr : this; }
  void begin_step(std::size_t slot) override;
  void draw_soon(const float* logits, std::int64_t width, const DrawRequest& request, std::size_t slot) override;
  Drawn drawn(std::size_t slot) override;
  void embed_drawn(const Matrix& embedding, std::size_t slot, float* x) override;
  [[nodiscard]] bool finds_rows() const override;
  void ngram_lookup_drawn(const artifact::NgramHash& hash, std::span<const std::uint64_t> past, std::size_t slot,
                          float* e) override;
  /// For read_cuda_row(): the row that a lookup finds under `id`.
  Status read_back(const Matrix& matrix, std::int32_t id, std::span<float> out);

 private:
  /// Memory that only grows. Operations find it large enough after reserve_rows(); one that does not (a test, an odd
  /// caller) makes it grow, and when the device has too little, status() says so.
  class Scratch {
   public:
    void* bytes(DeviceBackend& backend, std::size_t size);

   private:
    BufferPtr buffer_;
  };

  /// Input rows of one operation, quantised at most once per group size. Inputs of different banks exist side by side.
  class Input {
   public:
    Input(DeviceBackend& backend, const float* x, std::int64_t rows, std::int64_t cols, std::size_t bank = 0)
        : backend_(backend), x_(x), rows_(rows), cols_(cols), bank_(bank) {}
    [[nodiscard]] const float* x() const { return x_; }
    [[nodiscard]] std::int64_t rows() const { return rows_; }
    const kernels::cuda::ActivationRows& quantised(int group);
    /// The quantised form that the caller's own kernel makes.
    const kernels::cuda::ActivationRows& to_fill(int group);
    /// The quantised form, or null while there is none.
    [[nodiscard]] const kernels::cuda::ActivationRows* made(int group) const {
      const kernels::cuda::ActivationRows& rows = quantised_.at(slot(group));
      return rows.digits == nullptr ? nullptr : &rows;
    }

   private:
    static std::size_t slot(int group) { return group == 32 ? 0 : (group == 64 ? 1 : 2); }

    DeviceBackend& backend_;
    const float* x_;
    std::int64_t rows_, cols_;
    std::size_t bank_;
    std::array<kernels::cuda::ActivationRows, 3> quantised_{};
  };

  struct Product {
    const Matrix& matrix;
    Input& x;
    float* out;
    const kernels::cuda::Selection* selection = nullptr;
  };

  /// Where the table goes: what options_ say, or what fits.
  [[nodiscard]] NgramMode table_place(const artifact::NgramTableView& table) const;
  /// Scratch of draw() from rows of `width` logits; `exps`: for draws that need more than the largest logit. Returns
  /// where the requests go.
  DrawRequest* use_draw_scratch(std::int64_t width, bool exps, kernels::cuda::DrawRows& rows);
  /// Makes it before the first step, so that no step allocates.
  void reserve_draws();
  /// What steps over tokens that the host does not know take.
  void reserve_ahead();
  /// Small things to the device, behind what it was given, without waiting for it.
  void send(void* to, const void* host, std::size_t bytes);
  /// Where the token of a slot lies on the device.
  [[nodiscard]] std::int32_t* ahead_token(std::size_t slot) const {
    return reinterpret_cast<std::int32_t*>(ahead_tokens_->data()) + slot;
  }
  /// The first failure, without ending a step.
  [[nodiscard]] Status health() const;
  /// Scratch of `per_row` floats (or other four-byte values) for each row, with room for the reserved rows.
  template <class T = float>
  T* scratch(std::size_t slot, std::int64_t rows, std::int64_t per_row) {
    const std::int64_t room = std::max(rows, reserved_rows_) * per_row;
    return static_cast<T*>(scratch_.at(slot).bytes(*this, static_cast<std::size_t>(room) * sizeof(T)));
  }
  /// Dense weights as they are stored, sent or made.
  void stage_dense(const artifact::MatrixView& view, std::size_t bytes, std::byte* raw);
  /// Independent products; those that can share a launch do.
  void multiply(std::initializer_list<Product> products);
  /// The product that ends a block: to the tail's x where it has one, else to its y, which serves as scratch otherwise.
  void multiply_into(const Matrix& matrix, Input& input, const kernels::cuda::Tail& tail);
  void add_tail(const kernels::cuda::Tail& tail, std::int64_t rows);
  /// Products of the same few f32 rows in as few launches as their kinds allow; false when they are not for those.
  bool multiply_few(std::initializer_list<Product> products);
  /// Products of the same up to 16 quantised rows in one launch; false when they are not for that.
  bool multiply_several(std::span<const kernels::cuda::AffineProduct> products);
  void delta_into(const DeltaWeights& weights, const float* u, std::span<const DeltaSlot> slots, std::int64_t rows,
                  const kernels::cuda::Tail& tail);
  void attention_into(const AttentionWeights& weights, const float* u, std::span<const AttentionSlot> slots,
                      std::int64_t rows, const kernels::cuda::Tail& tail);
  void experts_into(const MoeWeights& weights, const float* u, std::int64_t rows, const kernels::cuda::Tail& tail);
  bool experts_few(const MoeWeights& weights, const float* u, std::int64_t rows, const kernels::cuda::Tail& tail);
  /// The same for up to 16 rows.
  bool experts_several(const MoeWeights& weights, const float* u, std::int64_t rows, const kernels::cuda::Tail& tail);
  void lookup(const Matrix& matrix, std::span<const std::int32_t> ids, std::int64_t copies, float* out);
  /// The same for `n` ids on the device.
  void lookup_ids(const Matrix& matrix, const std::int32_t* ids, std::int64_t n, std::int64_t copies, float* out);
  /// Whether the kernels of a few rows serve this site.
  bool hyper_few(const HyperWeights& weights, const float* x, std::int64_t rows, float* u, float* inject);
  /// A site's products of its many normed rows n in one launch; false when they are not for that.
  bool multiply_both(const HyperWeights& weights, const float* n, std::int64_t rows, float* low, float* inject);
  [[nodiscard]] kernels::cuda::DeltaShape delta_shape() const;
  /// Whether no operation since the last lookup has written these states and columns (Queue); now one does.
  bool take_settled(std::span<const DeltaSlot> slots);
  [[nodiscard]] kernels::cuda::AttentionShape attention_shape() const;
  /// Positions and page tables on the device; nothing moves when they are those of the last call.
  std::vector<kernels::cuda::AttentionRun> attention_runs(std::span<const AttentionSlot> slots);
  void project_keys(const AttentionWeights& weights, Input& input, float* q_gate,
                    kernels::cuda::AttentionInput& projected);

  CudaOptions options_;
  kernels::cuda::DeviceInfo info_;
  kernels::cuda::Queue queue_;
  std::string out_of_memory_;  ///< what an operation could not get
  artifact::ModelConfig config_;
  StateType state_ = StateType::BF16;
  PageLayout layout_;
  std::unique_ptr<NgramStore> ngram_;
  DeviceTable* table_ = nullptr;  ///< ngram_, when the device reads it
  RotationTable rotations_;
  BufferPtr cos_, sin_;
  std::int64_t reserved_rows_ = 0;
  std::array<Scratch, 16> scratch_;
  std::array<Scratch, 6> digits_, steps_;  ///< group sizes of two banks
  Scratch tokens_, row_ids_, tables_, staging_, readers_, arrived_;
  Scratch draw_requests_, draw_heads_, draw_exps_, draw_sums_, draw_segments_, drawn_;
  std::uint64_t rows_drawn_ = 0;
  std::unordered_set<const float*> written_;  ///< states and columns, since the last lookup
  BufferPtr ahead_, ahead_tokens_;            ///< page-locked, a half a slot; on the device, a token a slot
  std::array<bool, kSlots> awaited_{};        ///< slots whose token nobody has waited for
  std::optional<std::size_t> ahead_slot_;     ///< of the step that is being handed over
  std::size_t ahead_used_ = 0;                ///< of its half
  Scratch hash_;                              ///< sizes and offsets of hash_of_
  const artifact::NgramHash* hash_of_ = nullptr;
  std::vector<std::int64_t> last_tables_;  ///< what tables_ holds
  const std::int64_t* last_tables_at_ = nullptr;
  std::vector<float> ngram_rows_;
};

}  // namespace lockstep::backend
