// The CPU backend: the canon on host memory, work split over a thread pool.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "backend/cpu/linear.hpp"
#include "backend/cpu/ple_ahead.hpp"
#include "backend/cpu/pooled_rowsel.hpp"
#include "backend/ngram/ngram_store.hpp"
#include "backend/profile.hpp"
#include "backend/rotation_table.hpp"
#include "base/thread_pool.hpp"
#include "kernels/cpu/kernels.hpp"

namespace lockstep::backend {

struct CpuOptions {
  std::size_t threads = 0;               ///< 0: physical cores
  std::string isa;                       ///< name of a kernel table; empty: LOCKSTEP_ISA, else the fastest
  std::int64_t min_work = 0;             ///< multiply-adds that make a share worth a thread; 0: as the kernels say
  bool unquantised_activations = false;  ///< oracle: keep activations in binary32 in quantised products
  NgramOptions ngram;
  LaneOptions lanes;
  Profile* profile = nullptr;  ///< receives the time of each part; outlives the backend
};

/// The table called `isa`; empty: LOCKSTEP_ISA, else the fastest. Errors: Usage when it is unknown or this machine
/// lacks it.
Result<const kernels::Kernels*> choose_kernels(std::string isa);

class CpuBackend final : public Backend {
 public:
  /// Errors: Usage when the named instruction set is unknown or this machine lacks it.
  static Result<std::unique_ptr<CpuBackend>> create(const CpuOptions& options);

  [[nodiscard]] std::string describe() const override;
  Result<BufferPtr> allocate(std::size_t bytes) override;
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  void read(void* host, const std::byte* from, std::size_t bytes) override;
  void write(std::byte* to, const void* host, std::size_t bytes) override;
  Result<MatrixPtr> upload(const artifact::MatrixView& view) override;
  Result<MatrixPtr> upload_rows(const artifact::MatrixView& view) override;
  Result<BufferPtr> upload(std::span<const float> vector) override;
  Status set_ngram_table(const artifact::NgramTableView& table, const CopyWatch& watch) override;
  [[nodiscard]] const NgramStore* ngram_store() const override { return ngram_.get(); }
  Status configure(const artifact::ModelConfig& config, StateType state) override;
  Status prepare_positions(std::int64_t positions) override;
  Status reserve_rows(std::int64_t rows) override;
  [[nodiscard]] LaneOptions lanes() const override { return lanes_; }
  [[nodiscard]] LaneCounters lane_counters() const override;

  void embed(const Matrix& embedding, std::span<const std::int32_t> tokens, float* x) override;
  Status ngram_request(std::span<const std::int64_t> row_ids) override;
  Status ngram_lookup(std::span<const std::int64_t> row_ids, float* e) override;
  void ple_begin(const PleWeights& weights, std::span<const std::int64_t> row_ids) override;
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
  void project(const Matrix& matrix, const float* u, std::int64_t rows, float* out) override;
  void draft_input(const DraftWeights& weights, const Matrix& embedding, std::span<const std::int32_t> tokens,
                   const float* h, float* x) override;
  void commit_delta(const DeltaSlot& slot, std::int64_t keep) override;
  void commit_conv(const ConvSlot& slot, std::int64_t history, std::int64_t channels, std::int64_t keep) override;

 private:
  CpuBackend(const kernels::Kernels& kernels, const CpuOptions& options)
      : kernels_(kernels),
        pool_(options.threads),
        min_work_(options.min_work > 0 ? options.min_work : kernels.share_work),
        unquantised_(options.unquantised_activations),
        ngram_options_(options.ngram),
        lanes_(options.lanes),
        profile_(options.profile) {}

  /// Rows of scratch memory that only grow.
  class Scratch {
   public:
    float* floats(std::size_t n) {
      grow(floats_, n);
      return floats_.data();
    }

   private:
    std::vector<float> floats_;
  };

  Activations activations(const float* x, std::int64_t rows, std::int64_t cols) {
    return {kernels_, pool_, storage_, x, rows, cols};
  }
  /// True when products of the matrix take quantised activations.
  [[nodiscard]] bool integer(const CpuMatrix& matrix) const { return matrix.quantised() && !unquantised_; }
  /// out[t * matrix.rows() + r] for the rows of the blocks [begin, end) of matrix `index`; runs in the calling thread.
  void matmul_blocks(const CpuMatrix& matrix, std::int64_t index, Activations& x, std::int64_t begin, std::int64_t end,
                     float* out) {
    product_blocks(kernels_, unquantised_, matrix, index, x, begin, end, out);
  }
  /// The whole matrix, split over the threads.
  void matmul(const Matrix& matrix, Activations& x, float* out);
  void matrix_row(const CpuMatrix& matrix, std::int64_t row, float* out);
  template <class Body>
  void parallel(std::int64_t count, std::int64_t grain, Body&& body) {
    pool_.parallel_for(static_cast<std::size_t>(count), static_cast<std::size_t>(grain),
                       [&body](std::size_t begin, std::size_t end) {
                         body(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end));
                       });
  }
  /// Items that one thread should take at least, when an item is `work` multiply-adds: waking a thread costs more than
  /// a few microseconds of work, on small models more than the whole operation.
  [[nodiscard]] std::int64_t grain(std::int64_t work) const { return std::max<std::int64_t>(1, min_work_ / work); }
  [[nodiscard]] kernels::Rotation rotation(std::int64_t position) const;

  /// What an attention layer needs to know of a slot, found once per layer.
  struct BoundSlot {
    AttentionSlot slot;
    kernels::PagedKeys keys;
    std::int64_t first_group = 0, new_groups = 0;  ///< the groups that the slot's rows complete
    std::int64_t first_choice = 0;                 ///< the first row that sees more groups than the budget
  };

  // Parts of delta_net, attention and experts (files of the same names).
  void convolve(const ConvSlot& slot, const Run& run, std::int64_t history_step, std::int64_t kernel,
                std::int64_t channels, const float* rows, const float* weight, float* out);
  void keep_columns(const ConvSlot& slot, const Run& run, std::int64_t history, std::int64_t channels,
                    const float* rows);
  void delta_run(const DeltaWeights& weights, const DeltaSlot& slot, const float* conv, const float* decay,
                 const float* beta, float* units, float* deltas, float* out);
  void bind(std::span<const AttentionSlot> slots);
  void store_keys(const AttentionWeights& weights, const BoundSlot& bound, const float* k, const float* v,
                  const float* index_qk);
  void store_row(const AttentionWeights& weights, const AttentionSlot& slot, std::int64_t t, const float* k,
                 const float* v, const float* index_qk);
  void pool_group(const AttentionWeights& weights, const AttentionSlot& slot, std::int64_t group);
  void select_positions(const AttentionWeights& weights, const BoundSlot& bound, const float* index_qk,
                        std::int32_t* positions, std::int64_t* counts);
  /// The positions that row t of a run attends to, ascending, as they are found.
  class RowPositions {
   public:
    RowPositions(const CpuBackend& backend, const AttentionSlot& slot, std::int64_t t, std::int32_t* positions)
        : ratio_(backend.config_.indexer_ratio),
          position_(slot.position + t),
          list_(positions + (slot.run.first_row + t) * backend.max_attended()) {}

    /// Groups that are complete when the row is there.
    [[nodiscard]] std::int64_t groups() const { return (position_ + 1) / ratio_; }
    void take_groups(std::int64_t first, std::int64_t n) { take(first * ratio_, n * ratio_); }
    /// Adds the positions behind the last complete group; the number of all.
    std::int64_t finish() {
      take(groups() * ratio_, position_ + 1 - groups() * ratio_);
      return count_;
    }

   private:
    void take(std::int64_t first, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) list_[count_++] = static_cast<std::int32_t>(first + i);
    }

    std::int64_t ratio_, position_, count_ = 0;
    std::int32_t* list_;
  };
  /// Normed and rotated index queries of row t of a run: [heads, index dim].
  void index_query(const AttentionWeights& weights, const AttentionSlot& slot, const float* index_qk, std::int64_t t,
                   float* q);
  /// Where one row is chosen: [heads, index dim], [groups], [budget], [groups]. `share`: threads share its scores.
  struct RowChoice {
    float *q, *scores;
    std::int32_t* chosen;
    std::uint64_t* order;
    bool share;
  };
  void select_row(const AttentionWeights& weights, const BoundSlot& bound, const float* index_qk, std::int64_t t,
                  const RowChoice& choice, std::int32_t* positions, std::int64_t* counts);
  Status install_lanes();
  // The lane qsa_pooled_rowsel (pooled_rowsel.cpp) in place of select_positions().
  void stream_positions(const AttentionWeights& weights, const BoundSlot& bound, const float* index_qk,
                        std::int32_t* positions, std::int64_t* counts);
  void stream_scores(const kernels::PagedKeys& keys, const AttentionSlot& slot, const float* q, std::int64_t first_row,
                     std::int64_t group_parts);
  // The token-only part of ple_inject(): key [rows, wide], normed, and value [rows, hidden] of rows of e.
  void ple_products(const PleWeights& weights, const float* e, std::int64_t rows, float* key, float* value);
  void attend_rows(const float* q, const std::int32_t* positions, const std::int64_t* counts, std::int64_t rows,
                   float* out);
  /// The (row, rank) pairs that chose one expert: places [first, first + count) of the order by expert.
  struct ExpertGroup {
    std::int64_t expert = 0, first = 0, count = 0;
  };
  void group_by_expert(const std::int32_t* chosen, std::int64_t rows);
  template <class Body>
  void each_expert(std::int64_t blocks, std::int64_t work, Body&& body);
  void expert_blocks(const CpuMatrix& matrix, Activations& x, bool by_row, const ExpertGroup& group, std::int64_t begin,
                     std::int64_t end, float* out);
  const float* routed_experts(const MoeWeights& weights, Activations& input, ProfileScope& at);
  [[nodiscard]] std::int64_t max_attended() const { return config_.indexer_budget + config_.indexer_ratio; }

  const kernels::Kernels& kernels_;
  ThreadPool pool_;
  std::int64_t min_work_;
  bool unquantised_;
  artifact::ModelConfig config_;
  StateType state_ = StateType::BF16;
  kernels::ElementType element_ = kernels::ElementType::BF16;
  PageLayout layout_;
  NgramOptions ngram_options_;
  LaneOptions lanes_;
  LaneCounters lane_counters_;
  // Chosen once, by configure().
  decltype(&CpuBackend::select_positions) select_ = &CpuBackend::select_positions;
  std::vector<BoundSlot> bound_;       ///< the slots of the present attention layer
  std::vector<TopGroups> top_groups_;  ///< of the rows of a run and the parts of their groups
  Profile* profile_;
  std::unique_ptr<NgramStore> ngram_;
  RotationTable rotations_;
  std::array<QuantisedStorage, 3> storage_, expert_storage_;
  std::array<Scratch, 12> scratch_;
  bool ple_ready_ = false;  ///< ple_ahead_ has the products that the next ple_inject() takes
  std::vector<std::int32_t> chosen_, selected_;
  // Order of the (row, rank) pairs by expert: groups, the row of each place, the place of each pair.
  std::vector<ExpertGroup> expert_groups_;
  std::vector<std::int32_t> place_rows_;
  std::vector<std::int64_t> places_, expert_starts_;
  std::vector<std::int64_t> counts_;
  std::vector<std::uint64_t> order_;
  std::unique_ptr<PleAhead> ple_ahead_;  ///< the lane ple_cached_aux; its thread uses ngram_
};

}  // namespace lockstep::backend
