// The n-gram table read row by row into a bounded cache.
//
// All decisions (which row gets which slot, what is evicted) are taken by the user thread in the order of its calls and
// never depend on which read was faster, so the counters repeat exactly. Three rules keep rows in place:
//   - a row that gather() has yet to hand out is held;
//   - a row that a request() named is promised to the next kPromise gathers: other requests leave it alone, so a chunk
//     that is read ahead cannot push out the one that comes first. A gather may take it when nothing else is left;
//   - a row whose read is under way is waited for before its slot is used again.
#include <algorithm>
#include <array>

#include "backend/ngram/ngram_store.hpp"
#include "backend/ngram/row_io.hpp"

namespace lockstep::backend {
namespace {

/// Gathers that a promise lasts: a decoder reads one chunk ahead, and others may take their turn in between. After that
/// a request counts as abandoned (a cancelled prompt, say).
constexpr std::uint32_t kPromise = 16;
constexpr std::size_t kBatch = 256;  ///< slots handed to the I/O threads at a time
constexpr unsigned kMaxDepth = 1024;

class StreamedStore final : public NgramStore {
 public:
  StreamedStore(const RowFormat& format, TableFiles files, RowCache cache, std::unique_ptr<RowQueue> queue,
                ReadIntercept intercept)
      : format_(format),
        files_(std::move(files)),
        cache_(std::move(cache)),
        queue_(std::move(queue)),
        intercept_(std::move(intercept)) {}

  ~StreamedStore() override { queue_->close(); }

  Status start(const NgramOptions& options) {
    const RowIoContext context{*queue_, cache_, format_, files_, intercept_};
    const unsigned depth = std::clamp(options.queue_depth, 1U, std::min(kMaxDepth, cache_.capacity()));
    if (!options.force_pread) {
      Result<std::unique_ptr<RowIo>> uring = start_uring_io(context, depth);
      if (uring) {
        io_ = std::move(*uring);
        return {};
      }
    }
    io_ = LOCKSTEP_TRY(start_pread_io(context, depth));
    return {};
  }

  Status request(std::span<const std::int64_t> row_ids) override {
    LOCKSTEP_TRY(begin(row_ids));
    for (const std::int64_t row : row_ids) {
      std::uint32_t slot = cache_.find(row);
      if (slot != RowCache::kNone) {
        cache_.touch(slot);
      } else {
        if (cache_.full()) {
          if (promised(cache_.oldest())) break;
          LOCKSTEP_TRY(make_room());
        }
        slot = insert(row);
        cache_.at(slot).fresh = true;
      }
      cache_.at(slot).promised = gathers_ + kPromise;
    }
    flush();
    return {};
  }

  Status gather(std::span<const std::int64_t> row_ids, float* out) override {
    LOCKSTEP_TRY(begin(row_ids));
    ++gathers_;
    const std::uint64_t first = next_ticket_;
    std::size_t delivered = 0;
    for (const std::int64_t row : row_ids) {
      while (!can_claim(row, first + delivered)) {
        LOCKSTEP_TRY(deliver(row_ids[delivered], out + delivered * dim()));
        ++delivered;
      }
      LOCKSTEP_TRY(claim(row));
    }
    for (; delivered < row_ids.size(); ++delivered) {
      LOCKSTEP_TRY(deliver(row_ids[delivered], out + delivered * dim()));
    }
    return {};
  }

  [[nodiscard]] Status status() const override { return queue_->status(); }

  [[nodiscard]] NgramCounters counters() const override {
    NgramCounters counters = counters_;
    const RowQueue::Counters io = queue_->counters();
    counters.rows_read = io.rows;
    counters.bytes_read = io.bytes;
    counters.read_nanoseconds = io.read_nanoseconds;
    counters.wait_nanoseconds = io.wait_nanoseconds;
    counters.cache_rows = cache_.capacity();
    counters.cache_bytes = cache_.capacity() * RowCache::slot_bytes(format_.bytes());
    counters.staging_bytes = io_->staging_bytes();
    return counters;
  }

  [[nodiscard]] NgramMode mode() const override { return NgramMode::Streamed; }
  [[nodiscard]] std::string describe() const override {
    const double bytes = static_cast<double>(cache_.capacity() * RowCache::slot_bytes(format_.bytes()));
    return fmt::format("streamed by {}{}, cache {:.1f} MiB for {} of {} rows", io_->describe(),
                       files_.direct() ? " (O_DIRECT)" : "", bytes / (1 << 20), cache_.capacity(), format_.rows());
  }

 private:
  [[nodiscard]] std::size_t dim() const { return static_cast<std::size_t>(format_.dim()); }

  Status begin(std::span<const std::int64_t> row_ids) const {
    LOCKSTEP_TRY(format_.check(row_ids));
    return queue_->status();
  }

  [[nodiscard]] bool promised(std::uint32_t slot) {
    const std::uint32_t until = cache_.at(slot).promised;
    return until != 0 && static_cast<std::int32_t>(until - gathers_) > 0;
  }

  /// Makes the oldest slot fit for another row. It is never one that waits in pending_: those are promised or held.
  Status make_room() {
    LOCKSTEP_TRY(queue_->wait(cache_.oldest()));
    ++counters_.evictions;
    return {};
  }

  std::uint32_t insert(std::int64_t row) {
    const std::uint32_t slot = cache_.insert(row);
    if (pending_count_ == pending_.size()) flush();
    pending_[pending_count_++] = slot;
    return slot;
  }

  void flush() {
    queue_->push(std::span(pending_).first(pending_count_));
    pending_count_ = 0;
  }

  /// False when the row needs a slot and all hold rows with tickets from `undelivered` on. Order of use is order of
  /// tickets, so the oldest slot speaks for all.
  [[nodiscard]] bool can_claim(std::int64_t row, std::uint64_t undelivered) {
    return !cache_.full() || cache_.find(row) != RowCache::kNone || cache_.at(cache_.oldest()).ticket < undelivered;
  }

  /// Holds the row in the cache until it is delivered, and starts its read if it is not there.
  Status claim(std::int64_t row) {
    std::uint32_t slot = cache_.find(row);
    if (slot == RowCache::kNone) {
      if (cache_.full()) LOCKSTEP_TRY(make_room());
      slot = insert(row);
      ++counters_.misses;
    } else if (cache_.at(slot).fresh) {
      ++counters_.misses;
      ++counters_.prefetched;
    } else {
      ++counters_.hits;
    }
    cache_.touch(slot);
    RowCache::Slot& use = cache_.at(slot);
    use.fresh = false;
    use.promised = 0;
    use.ticket = next_ticket_++;
    return {};
  }

  Status deliver(std::int64_t row, float* out) {
    flush();
    const std::uint32_t slot = cache_.find(row);
    LOCKSTEP_TRY(queue_->wait(slot));
    format_.decode(cache_.data(slot), out);
    return {};
  }

  RowFormat format_;
  TableFiles files_;
  RowCache cache_;
  std::unique_ptr<RowQueue> queue_;
  ReadIntercept intercept_;
  std::array<std::uint32_t, kBatch> pending_{};  ///< inserted, not yet handed to the I/O threads
  std::size_t pending_count_ = 0;
  std::uint32_t gathers_ = 0;
  std::uint64_t next_ticket_ = 1;
  NgramCounters counters_;
  std::unique_ptr<RowIo> io_;  ///< last: its threads use all of the above
};

}  // namespace

Result<std::unique_ptr<NgramStore>> open_streamed_store(const artifact::NgramTableView& view,
                                                        const kernels::Kernels& kernels, const NgramOptions& options) {
  const RowFormat format = LOCKSTEP_TRY(RowFormat::create(view, kernels));
  const std::size_t slot = RowCache::slot_bytes(format.bytes());
  if (options.cache_bytes < slot) {
    return fail(ErrorKind::Usage, "a cache of {} bytes for the n-gram table does not hold one row: {} are needed",
                options.cache_bytes, slot);
  }
  const std::uint64_t most = std::min<std::uint64_t>(static_cast<std::uint64_t>(format.rows()), RowCache::kNone / 4);
  const auto capacity = static_cast<std::uint32_t>(std::min<std::uint64_t>(options.cache_bytes / slot, most));
  TableFiles files = LOCKSTEP_TRY(TableFiles::open(view, format, options.direct));
  RowCache cache = LOCKSTEP_TRY(RowCache::create(capacity, format.bytes()));
  std::unique_ptr<RowQueue> queue = LOCKSTEP_TRY(RowQueue::create(capacity));
  auto store =
      std::make_unique<StreamedStore>(format, std::move(files), std::move(cache), std::move(queue), options.intercept);
  LOCKSTEP_TRY(store->start(options));
  return store;
}

}  // namespace lockstep::backend
