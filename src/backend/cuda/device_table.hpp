// The n-gram table where the device reads it: in its own memory, or in page-locked memory of the host.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "backend/ngram/ngram_store.hpp"
#include "backend/ngram/row_format.hpp"
#include "kernels/cuda/ngram.hpp"

namespace lockstep::backend {

class DeviceTable final : public NgramStore {
 public:
  /// How the table is kept.
  struct Place {
    NgramMode mode = NgramMode::Device;  ///< Device or Pinned
    std::uint64_t chunk_bytes = 0;       ///< of one piece of memory at most, if it holds a row
  };

  /// Copies all rows of `view`, which is not needed afterwards, as far as the watch lets it. Errors: Limit when there
  /// is too little memory, Cancelled, Invalid for a view without rows.
  static Result<std::unique_ptr<DeviceTable>> create(Backend& backend, kernels::cuda::Queue& queue,
                                                     const artifact::NgramTableView& view, const Place& place,
                                                     const CopyWatch& watch);

  /// Errors: Internal for an id outside the table.
  [[nodiscard]] Status check(std::span<const std::int64_t> row_ids) const { return format_.check(row_ids); }
  /// out [n, dim] = the rows ids [n], which have been checked; both in device memory. Returns at once.
  void lookup(const std::int64_t* ids, std::int64_t n, float* out);
  /// The same for rows whose ids the device finds itself.
  void lookup(const kernels::cuda::HashedRows& rows, float* out);

  Status request(std::span<const std::int64_t> row_ids) override { return check(row_ids); }
  /// For comparisons: operations use lookup(). Errors: also Limit, and the device's.
  Status gather(std::span<const std::int64_t> row_ids, float* out) override;
  [[nodiscard]] Status status() const override { return {}; }
  [[nodiscard]] NgramCounters counters() const override;
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] NgramMode mode() const override { return mode_; }

 private:
  DeviceTable(Backend& backend, kernels::cuda::Queue& queue, const RowFormat& format, NgramMode mode)
      : backend_(backend), queue_(queue), format_(format), mode_(mode) {}
  Status fill(const artifact::NgramTableView& view, std::uint64_t chunk_bytes, const CopyWatch& watch);

  Backend& backend_;
  kernels::cuda::Queue& queue_;
  RowFormat format_;
  NgramMode mode_;
  kernels::cuda::PackedTable table_;
  std::vector<BufferPtr> chunks_;
  BufferPtr addresses_;  ///< of the chunks
  std::uint64_t hits_ = 0;
};

}  // namespace lockstep::backend
