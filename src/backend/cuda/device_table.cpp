#include "backend/cuda/device_table.hpp"

#include <algorithm>

#include "backend/cuda/pinned_buffer.hpp"
#include "backend/element_type.hpp"
#include "backend/ngram/table_rows.hpp"
#include "base/memory.hpp"
#include "kernels/cpu/kernels.hpp"

namespace lockstep::backend {
namespace {

namespace cuda = kernels::cuda;

/// Bytes of rows that are copied between two looks at the watch.
constexpr std::uint64_t kPieceBytes = std::uint64_t{16} << 20;

Result<BufferPtr> pinned(cuda::Queue& queue, std::size_t bytes) {
  void* memory = queue.allocate_pinned(bytes);
  if (memory == nullptr) {
    return fail(ErrorKind::Limit, "the driver gives no {} bytes of page-locked memory{}; use --ple streamed", bytes,
                queue.failed() ? " (" + queue.error() + ")" : std::string());
  }
  return std::make_unique<PinnedBuffer>(queue, memory, bytes);
}

/// Page-locked memory cannot be taken back by the system: what is not there ends the process, so it is not tried.
Status check_host(std::uint64_t bytes) {
  const std::uint64_t available = available_memory();
  if (bytes <= available) return {};
  return fail(ErrorKind::Limit,
              "the n-gram table takes {} bytes of page-locked memory, {} are available; use --ple streamed", bytes,
              available);
}

/// Largest power of two of rows that `bytes` hold, as its exponent; 0 when they hold none.
int shift_for(std::uint64_t bytes, std::size_t stride) {
  int shift = 0;
  while (shift < 40 && (std::uint64_t{2} << shift) * stride <= bytes) ++shift;
  return shift;
}

}  // namespace

Result<std::unique_ptr<DeviceTable>> DeviceTable::create(Backend& backend, cuda::Queue& queue,
                                                         const artifact::NgramTableView& view, const Place& place,
                                                         const CopyWatch& watch) {
  const RowFormat format = LOCKSTEP_TRY(RowFormat::create(view, *kernels::available_kernels().front()));
  std::unique_ptr<DeviceTable> table(new DeviceTable(backend, queue, format, place.mode));
  if (place.mode == NgramMode::Pinned) LOCKSTEP_TRY(check_host(packed_table_bytes(view)));
  LOCKSTEP_TRY(table->fill(view, place.chunk_bytes, watch));
  return table;
}

Status DeviceTable::fill(const artifact::NgramTableView& view, std::uint64_t chunk_bytes, const CopyWatch& watch) {
  const artifact::MatrixView& matrix = view.table ? *view.table : view.shards.front();
  table_.stride = packed_row_stride(view);
  table_.shift = shift_for(chunk_bytes, table_.stride);
  table_.dim = view.dim;
  table_.bits = matrix.quantised ? matrix.bits : 0;
  table_.group = matrix.group;
  table_.type = element_type(matrix.quantised ? matrix.scale_dtype : matrix.dtype);
  const std::int64_t per_chunk = std::int64_t{1} << table_.shift;
  const std::int64_t per_piece = std::min(per_chunk, std::int64_t{1} << shift_for(kPieceBytes, table_.stride));
  const auto bytes = [&](std::int64_t rows) { return static_cast<std::size_t>(rows) * table_.stride; };
  const bool on_device = mode_ == NgramMode::Device;
  BufferPtr piece;
  if (on_device) piece = LOCKSTEP_TRY(pinned(queue_, bytes(std::min(per_piece, view.rows))));
  std::vector<const std::byte*> addresses;
  for (std::int64_t row = 0; row < view.rows; row += per_piece) {
    if (watch.cancel != nullptr && watch.cancel->load()) return fail(ErrorKind::Cancelled, "interrupted");
    if (row % per_chunk == 0) {
      const std::size_t size = bytes(std::min(per_chunk, view.rows - row));
      chunks_.push_back(LOCKSTEP_TRY(on_device ? backend_.allocate(size) : pinned(queue_, size)));
      addresses.push_back(chunks_.back()->data());
    }
    const std::int64_t count = std::min(per_piece, view.rows - row);
    std::byte* to = chunks_.back()->data() + bytes(row % per_chunk);
    copy_packed_rows(view, row, count, on_device ? piece->data() : to);
    if (on_device) queue_.upload(to, piece->data(), bytes(count));
    if (watch.copied) watch.copied(bytes(row + count));
  }
  addresses_ = LOCKSTEP_TRY(backend_.allocate(addresses.size() * sizeof(addresses.front())));
  backend_.write(addresses_->data(), addresses.data(), addresses_->size());
  table_.chunks = reinterpret_cast<const std::byte* const*>(addresses_->data());
  return backend_.status();
}

void DeviceTable::lookup(const std::int64_t* ids, std::int64_t n, float* out) {
  hits_ += static_cast<std::uint64_t>(n);
  cuda::gather_rows(queue_, table_, ids, n, out);
}

void DeviceTable::lookup(const cuda::HashedRows& rows, float* out) {
  hits_ += static_cast<std::uint64_t>(rows.heads);
  cuda::gather_hashed(queue_, table_, rows, out);
}

Status DeviceTable::gather(std::span<const std::int64_t> row_ids, float* out) {
  LOCKSTEP_TRY(check(row_ids));
  const std::size_t bytes = row_ids.size() * static_cast<std::size_t>(table_.dim) * sizeof(float);
  const BufferPtr ids = LOCKSTEP_TRY(backend_.allocate(row_ids.size_bytes()));
  const BufferPtr rows = LOCKSTEP_TRY(backend_.allocate(bytes));
  backend_.write(ids->data(), row_ids.data(), row_ids.size_bytes());
  lookup(reinterpret_cast<const std::int64_t*>(ids->data()), std::ssize(row_ids), rows->floats());
  backend_.read(out, rows->data(), bytes);
  return backend_.status();
}

NgramCounters DeviceTable::counters() const {
  NgramCounters counters;
  counters.hits = hits_;
  return counters;
}

std::string DeviceTable::describe() const {
  std::size_t bytes = 0;
  for (const BufferPtr& chunk : chunks_) bytes += chunk->size();
  return fmt::format("{}, {:.1f} MiB", mode_ == NgramMode::Device ? "in device memory" : "in page-locked host memory",
                     static_cast<double>(bytes) / (1 << 20));
}

}  // namespace lockstep::backend
