// Blocking reads in a few threads: for kernels and containers without io_uring.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include "backend/ngram/row_io.hpp"

namespace lockstep::backend {
namespace {

constexpr unsigned kMaxThreads = 16;

class PreadIo final : public RowIo {
 public:
  PreadIo(const RowIoContext& context, MemoryBlock<std::byte> staging, std::size_t staging_row)
      : context_(context), staging_(std::move(staging)), staging_row_(staging_row) {}

  ~PreadIo() override {
    for (std::thread& thread : threads_) thread.join();
  }

  Status start(unsigned count) {
    threads_.reserve(count);
    for (unsigned i = 0; i < count; ++i) {
      try {
        threads_.emplace_back([this, i] { work(staging_.get() + i * staging_row_); });
      } catch (const std::system_error& error) {
        if (threads_.empty()) return fail(ErrorKind::Limit, "cannot start a thread for reads: {}", error.what());
        break;  // fewer threads read the same
      }
    }
    return {};
  }

  [[nodiscard]] std::size_t staging_bytes() const override { return threads_.size() * staging_row_; }
  [[nodiscard]] std::string describe() const override {
    return fmt::format("pread, {} rows at a time", threads_.size());
  }

 private:
  void work(std::byte* staging) {
    std::uint32_t slot = 0;
    while (context_.queue.take({&slot, 1}, true) == 1) {
      std::uint64_t bytes = 0;
      const Status status = read_row(slot, staging, bytes);
      if (!status) {
        context_.queue.fail_with(status.error());
        return;
      }
      context_.queue.complete({&slot, 1}, bytes);
    }
  }

  Status read_row(std::uint32_t slot, std::byte* staging, std::uint64_t& bytes) {
    const std::int64_t row = context_.cache.row(slot);
    for (std::size_t plane = 0; plane < context_.format.planes(); ++plane) {
      PlaneRead read = context_.plane_read(row, plane, staging);
      for (bool arrived = false; !arrived;) {
        std::int64_t result = ::pread(read.descriptor(), read.memory(), read.size(), static_cast<off_t>(read.offset()));
        if (result < 0) result = -errno;
        if (context_.intercept) result = context_.intercept(read.offset(), result);
        bytes += static_cast<std::uint64_t>(std::max<std::int64_t>(0, result));
        arrived = LOCKSTEP_TRY(read.advance(result));
      }
      read.unpack(context_.cache.data(slot));
    }
    return {};
  }

  RowIoContext context_;
  MemoryBlock<std::byte> staging_;
  std::size_t staging_row_;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<RowIo>> start_pread_io(const RowIoContext& context, unsigned depth) {
  const unsigned count = std::min(depth, kMaxThreads);
  const std::size_t row = context.staging_row_bytes();
  MemoryBlock<std::byte> staging = LOCKSTEP_TRY(aligned_block(context.files.alignment(), count * row));
  auto io = std::make_unique<PreadIo>(context, std::move(staging), row);
  const Status started = io->start(count);
  if (!started) {
    context.queue.close();
    return tl::unexpected(started.error());
  }
  return io;
}

}  // namespace lockstep::backend
