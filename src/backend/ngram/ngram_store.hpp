// The rows of the n-gram table, wherever they are kept: mapped, or read from the files when they are needed; the copies
// that a CUDA device reads are a third kind (backend/cuda/device_table.hpp).
//
// All kinds give the same bits (docs/numerics.md E5): a row is dequantised in the same way from the same bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "artifact/model_view.hpp"
#include "base/result.hpp"
#include "kernels/cpu/kernels.hpp"

namespace lockstep::backend {

enum class NgramMode : std::uint8_t {
  Auto,      ///< by what fits where (residency.hpp)
  Resident,  ///< mapped, left to the page cache
  Streamed,  ///< read row by row into a bounded cache
  Device,    ///< copied to the memory of a CUDA device
  Pinned,    ///< copied to page-locked memory of the host, which a CUDA device reads over the bus
};

/// "auto", "resident", "streamed", "device", "pinned".
[[nodiscard]] std::string_view ngram_mode_name(NgramMode mode);
/// The mode of that name, if it is one.
[[nodiscard]] std::optional<NgramMode> find_ngram_mode(std::string_view name);
/// Whether only a CUDA device can have the table there.
[[nodiscard]] constexpr bool device_only(NgramMode mode) {
  return mode == NgramMode::Device || mode == NgramMode::Pinned;
}

/// Sees the result of every read, a count of bytes or a negated errno, and returns the one to go on with: tests make
/// disks fail with it. Called from I/O threads.
using ReadIntercept = std::function<std::int64_t(std::uint64_t offset, std::int64_t result)>;

struct NgramOptions {
  NgramMode mode = NgramMode::Auto;
  std::uint64_t cache_bytes = std::uint64_t{512} << 20;  ///< of the streamed mode: rows and their bookkeeping
  std::uint64_t other_bytes = 0;  ///< for Auto: what else is to be in the memory, i.e. the other weights
  unsigned queue_depth = 64;      ///< rows read at the same time, 1 to 1024
  bool force_pread = false;       ///< no io_uring
  bool direct = true;             ///< go round the page cache where the file system allows
  ReadIntercept intercept;
};

/// What happened since the store was opened. Each gathered row, repeats included, is one hit or one miss. All but the
/// two times depend only on the calls, not on how fast the disk was (bytes_read: unless a read came in pieces).
struct NgramCounters {
  std::uint64_t hits = 0;                       ///< rows that were in memory from an earlier use
  std::uint64_t misses = 0;                     ///< rows whose first use since they were read this was
  std::uint64_t prefetched = 0;                 ///< those of the misses whose read an earlier request() had started
  std::uint64_t evictions = 0;                  ///< rows dropped to make room
  std::uint64_t rows_read = 0, bytes_read = 0;  ///< from the files; rows as submitted, bytes as they arrived
  std::uint64_t read_nanoseconds = 0;           ///< time with at least one read under way
  std::uint64_t wait_nanoseconds = 0;           ///< time that request() and gather() stood still for reads
  std::uint64_t cache_rows = 0;                 ///< capacity
  std::uint64_t cache_bytes = 0, staging_bytes = 0;  ///< memory of the cache and of reads under way
};

/// One user thread at a time; a store may have threads of its own.
class NgramStore {
 public:
  NgramStore() = default;
  NgramStore(const NgramStore&) = delete;
  NgramStore& operator=(const NgramStore&) = delete;
  virtual ~NgramStore() = default;

  /// Starts reading those of the rows that are neither in memory nor on their way, as far as the cache has room that
  /// is not promised to earlier requests. Does not wait for them. Errors: that of status(); Internal for an id outside
  /// the table.
  virtual Status request(std::span<const std::int64_t> row_ids) = 0;
  /// Writes the rows, dequantised, to out [ids, dim]; reads what is missing. Errors: as request().
  virtual Status gather(std::span<const std::int64_t> row_ids, float* out) = 0;
  /// The first read that failed, for good: after it nothing is read or handed out again until the model is reloaded.
  [[nodiscard]] virtual Status status() const = 0;
  [[nodiscard]] virtual NgramCounters counters() const = 0;
  /// What runs: "resident, 31.3 MiB mapped" or "streamed by io_uring (O_DIRECT, 64 rows at a time), cache ...".
  [[nodiscard]] virtual std::string describe() const = 0;
  /// Where the table is; never Auto.
  [[nodiscard]] virtual NgramMode mode() const = 0;
};

/// describe() and the counters in one line, for statistics.
[[nodiscard]] std::string ngram_report(const NgramStore& store);

/// The store that `options` ask for. `view` and what it points to must outlive it. Errors: NotFound and Io of the
/// files, Invalid when a file is shorter than the view says, Limit when memory or threads are not to be had, Usage for
/// a cache smaller than one row and for the modes that are device_only().
Result<std::unique_ptr<NgramStore>> open_ngram_store(const artifact::NgramTableView& view,
                                                     const kernels::Kernels& kernels, const NgramOptions& options);

/// The mapped table. Repeats the row kernel on the mapped bytes; a file that is cut short ends the process (SIGBUS).
Result<std::unique_ptr<NgramStore>> open_resident_store(const artifact::NgramTableView& view,
                                                        const kernels::Kernels& kernels);
/// The streamed table (streamed_store.cpp).
Result<std::unique_ptr<NgramStore>> open_streamed_store(const artifact::NgramTableView& view,
                                                        const kernels::Kernels& kernels, const NgramOptions& options);

}  // namespace lockstep::backend
