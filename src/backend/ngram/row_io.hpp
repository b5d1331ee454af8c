// I/O threads that serve a RowQueue, in two ways: through io_uring, or with blocking reads in several threads.
#pragma once

#include <memory>
#include <string>

#include "backend/ngram/ngram_store.hpp"
#include "backend/ngram/plane_read.hpp"
#include "backend/ngram/row_cache.hpp"
#include "backend/ngram/row_queue.hpp"

namespace lockstep::backend {

/// What the threads work on. All of it outlives them.
struct RowIoContext {
  RowQueue& queue;
  RowCache& cache;
  const RowFormat& format;
  const TableFiles& files;
  const ReadIntercept& intercept;

  /// Bytes of staging memory for one row: a span per plane.
  [[nodiscard]] std::size_t staging_row_bytes() const {
    return format.planes() * PlaneRead::span_bytes(format.plane_bytes(), files.alignment());
  }
  [[nodiscard]] PlaneRead plane_read(std::int64_t row, std::size_t plane, std::byte* staging_row) const {
    const std::size_t span = PlaneRead::span_bytes(format.plane_bytes(), files.alignment());
    return {files, format.plane(row, plane), row, staging_row + plane * span};
  }
};

/// Running I/O threads. The queue must be closed before the destructor, which waits for them.
class RowIo {
 public:
  RowIo() = default;
  RowIo(const RowIo&) = delete;
  RowIo& operator=(const RowIo&) = delete;
  virtual ~RowIo() = default;
  [[nodiscard]] virtual std::size_t staging_bytes() const = 0;
  [[nodiscard]] virtual std::string describe() const = 0;  ///< "io_uring, 64 rows at a time"
};

/// One thread and a ring with up to `depth` rows in flight. Errors: Unsupported when the kernel or a container refuses
/// io_uring; Limit for memory or threads.
Result<std::unique_ptr<RowIo>> start_uring_io(const RowIoContext& context, unsigned depth);

/// min(depth, 16) threads that read one row at a time. Errors: Limit when memory or not even one thread is to be had.
Result<std::unique_ptr<RowIo>> start_pread_io(const RowIoContext& context, unsigned depth);

}  // namespace lockstep::backend
