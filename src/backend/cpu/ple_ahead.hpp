// The token-only part of the n-gram layer, computed beside the layers in front of it: what the lane ple_cached_aux runs
// (src/decode/lanes/ple_cached_aux.cpp has the contract).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "backend/cpu/linear.hpp"
#include "backend/cpu/ple_aux.hpp"
#include "backend/ngram/ngram_store.hpp"
#include "kernels/cpu/kernels.hpp"

namespace lockstep::backend {

/// Normed keys and values of the rows of a step. A job goes through three stages: products that are kept from before
/// are found and the table rows taken; both projections of the rows not found are computed block by block; keys are
/// normed and the new products kept. begin() leaves the first two to a thread of its own; collect() takes over what
/// that thread has not begun, shares what is left of the second stage with the caller's threads, and does the third.
/// Which thread computes a block changes no bit (docs/numerics.md E7).
///
/// One caller at a time. Between begin() and collect() the store, the weights and the ids belong to the job.
class PleAhead {
 public:
  struct Geometry {
    std::int64_t heads = 0, dim = 0, wide = 0, hidden = 0, streams = 0;
    float eps = 0;
  };
  struct Counters {
    std::uint64_t hits = 0, misses = 0, evictions = 0;
    std::uint64_t ahead = 0;  ///< rows whose job the other thread had begun when they were needed
  };

  /// Errors: Limit when a cache of `bytes` or a thread is not to be had.
  static Result<std::unique_ptr<PleAhead>> create(const kernels::Kernels& kernels, bool unquantised,
                                                  const Geometry& geometry, std::uint64_t bytes);
  PleAhead(const PleAhead&) = delete;
  PleAhead& operator=(const PleAhead&) = delete;
  ~PleAhead();

  /// Starts on rows: ids [rows, heads].
  void begin(const PleWeights& weights, std::span<const std::int64_t> row_ids, NgramStore& store);
  [[nodiscard]] bool begun() const { return begun_; }
  /// Ends what begin() started. Errors: those of the store. `least` multiply-adds make a share of work worth a thread.
  Status collect(ThreadPool& pool, std::int64_t least);

  /// Of the rows of the last job: [rows, wide] and [rows, hidden].
  [[nodiscard]] const float* keys() const { return keys_.data(); }
  [[nodiscard]] const float* values() const { return values_.data(); }
  [[nodiscard]] const Counters& counters() const { return counters_; }

 private:
  enum class Stage : std::uint8_t { Idle, Posted, Rows, Products, Done };

  PleAhead(const kernels::Kernels& kernels, bool unquantised, const Geometry& geometry, PleAux cache)
      : kernels_(kernels), unquantised_(unquantised), geometry_(geometry), cache_(std::move(cache)) {}
  void work();
  void find_kept();
  Status take_rows(NgramStore& store);
  void prepare_products();
  void run_blocks();
  void share_blocks(ThreadPool& pool, std::int64_t least);
  void keep(ThreadPool& pool, std::int64_t least);
  [[nodiscard]] const std::int64_t* ids_of(std::int64_t row) const { return row_ids_.data() + row * geometry_.heads; }
  [[nodiscard]] std::int64_t misses() const { return static_cast<std::int64_t>(missing_.size()); }

  const kernels::Kernels& kernels_;
  bool unquantised_;
  Geometry geometry_;
  PleAux cache_;
  Counters counters_;

  // The job. Written by whoever holds its stage.
  const PleWeights* weights_ = nullptr;
  std::span<const std::int64_t> row_ids_;
  NgramStore* store_ = nullptr;
  std::int64_t rows_ = 0;
  bool begun_ = false;
  Status outcome_;
  std::vector<std::int64_t> missing_, missing_ids_;
  std::vector<float> keys_, values_, input_, new_keys_, new_values_;  ///< they only grow
  ThreadPool alone_{1};
  std::array<QuantisedStorage, 3> storage_;
  std::optional<Activations> activations_;
  std::atomic<std::int64_t> next_block_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  Stage stage_ = Stage::Idle;
  bool closing_ = false;
  std::thread thread_;  ///< last: it uses all of the above
};

}  // namespace lockstep::backend
