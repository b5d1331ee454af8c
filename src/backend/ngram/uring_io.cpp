// Reads through io_uring: one thread keeps up to `depth` rows in flight and submits in batches.
#include <liburing.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "backend/ngram/row_io.hpp"

namespace lockstep::backend {
namespace {

/// Closes its ring. Not movable: the kernel and liburing keep pointers.
class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (open_) ::io_uring_queue_exit(&ring_);
  }

  Status open(unsigned entries) {
    const int result = ::io_uring_queue_init(entries, &ring_, 0);
    if (result < 0) return fail(ErrorKind::Unsupported, "io_uring is not available: {}", std::strerror(-result));
    open_ = true;
    io_uring_probe* probe = ::io_uring_get_probe_ring(&ring_);
    const bool reads = probe != nullptr && ::io_uring_opcode_supported(probe, IORING_OP_READ) != 0;
    ::io_uring_free_probe(probe);
    if (!reads) return fail(ErrorKind::Unsupported, "io_uring of this kernel cannot read");
    return {};
  }

  [[nodiscard]] io_uring* get() { return &ring_; }

 private:
  io_uring ring_{};
  bool open_ = false;
};

class UringIo final : public RowIo {
 public:
  UringIo(const RowIoContext& context, unsigned depth, MemoryBlock<std::byte> staging)
      : context_(context),
        staging_row_(context.staging_row_bytes()),
        staging_(std::move(staging)),
        rows_(depth),
        taken_(depth) {
    free_.reserve(depth);
    done_.reserve(depth);
    for (unsigned i = 0; i < depth; ++i) free_.push_back(i);
  }

  ~UringIo() override {
    if (thread_.joinable()) thread_.join();
  }

  Status start() {
    LOCKSTEP_TRY(ring_.open(static_cast<unsigned>(rows_.size() * context_.format.planes())));
    try {
      thread_ = std::thread([this] { work(); });
    } catch (const std::system_error& error) {
      return fail(ErrorKind::Limit, "cannot start a thread for reads: {}", error.what());
    }
    return {};
  }

  [[nodiscard]] std::size_t staging_bytes() const override { return rows_.size() * staging_row_; }
  [[nodiscard]] std::string describe() const override {
    return fmt::format("io_uring, {} rows at a time", rows_.size());
  }

 private:
  /// A row in flight.
  struct Row {
    std::uint32_t slot = 0;
    std::size_t planes_left = 0;
    std::array<PlaneRead, RowFormat::kMaxPlanes> reads;
  };

  [[nodiscard]] bool idle() const { return free_.size() == rows_.size(); }

  void work() {
    for (;;) {
      const std::size_t count = context_.queue.take(std::span(taken_).first(free_.size()), idle());
      if (count == 0 && idle()) return;
      for (std::size_t i = 0; i < count; ++i) begin_row(taken_[i]);
      if (!exchange()) return;
    }
  }

  void begin_row(std::uint32_t slot) {
    const std::uint32_t index = free_.back();
    free_.pop_back();
    Row& row = rows_[index];
    row.slot = slot;
    row.planes_left = context_.format.planes();
    for (std::size_t plane = 0; plane < row.planes_left; ++plane) {
      row.reads.at(plane) = context_.plane_read(context_.cache.row(slot), plane, staging_.get() + index * staging_row_);
      queue_read(index, plane);
    }
  }

  /// The ring has an entry for every plane of every row in flight, so there is always a free one.
  void queue_read(std::uint32_t index, std::size_t plane) {
    const PlaneRead& read = rows_[index].reads.at(plane);
    io_uring_sqe* entry = ::io_uring_get_sqe(ring_.get());
    ::io_uring_prep_read(entry, read.descriptor(), read.memory(), static_cast<unsigned>(read.size()), read.offset());
    ::io_uring_sqe_set_data64(entry, index * RowFormat::kMaxPlanes + plane);
  }

  /// Submits what is queued, waits for at least one answer and takes all there are. False when the ring itself fails.
  bool exchange() {
    const int result = ::io_uring_submit_and_wait(ring_.get(), 1);
    if (result < 0 && result != -EINTR && result != -EAGAIN && result != -EBUSY) {
      context_.queue.fail_with(
          {ErrorKind::Io, fmt::format("io_uring failed while it read the n-gram table: {}; reload the model",
                                      std::strerror(-result))});
      return false;
    }
    bytes_ = 0;
    done_.clear();
    io_uring_cqe* answer = nullptr;
    while (::io_uring_peek_cqe(ring_.get(), &answer) == 0) {
      const std::uint64_t tag = ::io_uring_cqe_get_data64(answer);
      const std::int64_t bytes = answer->res;
      ::io_uring_cqe_seen(ring_.get(), answer);
      finish_read(static_cast<std::uint32_t>(tag / RowFormat::kMaxPlanes), tag % RowFormat::kMaxPlanes, bytes);
    }
    context_.queue.complete(done_, bytes_);
    return true;
  }

  void finish_read(std::uint32_t index, std::size_t plane, std::int64_t result) {
    Row& row = rows_[index];
    PlaneRead& read = row.reads.at(plane);
    if (context_.intercept) result = context_.intercept(read.offset(), result);
    bytes_ += static_cast<std::uint64_t>(std::max<std::int64_t>(0, result));
    const Result<bool> arrived = read.advance(result);
    if (arrived && !*arrived) {
      queue_read(index, plane);
      return;
    }
    if (arrived) {
      read.unpack(context_.cache.data(row.slot));
    } else {
      context_.queue.fail_with(arrived.error());
      failed_ = true;
    }
    if (--row.planes_left > 0) return;
    free_.push_back(index);
    if (!failed_) done_.push_back(row.slot);
  }

  RowIoContext context_;
  std::size_t staging_row_;
  MemoryBlock<std::byte> staging_;
  Ring ring_;  // closed before the memory that it reads into is freed
  std::vector<Row> rows_;
  std::vector<std::uint32_t> free_, taken_, done_;
  std::uint64_t bytes_ = 0;
  bool failed_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<RowIo>> start_uring_io(const RowIoContext& context, unsigned depth) {
  MemoryBlock<std::byte> staging =
      LOCKSTEP_TRY(aligned_block(context.files.alignment(), depth * context.staging_row_bytes()));
  auto io = std::make_unique<UringIo>(context, depth, std::move(staging));
  LOCKSTEP_TRY(io->start());
  return io;
}

}  // namespace lockstep::backend
