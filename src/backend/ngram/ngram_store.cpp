#include "backend/ngram/ngram_store.hpp"

#include "backend/ngram/residency.hpp"
#include "base/memory.hpp"

namespace lockstep::backend {

Result<std::unique_ptr<NgramStore>> open_ngram_store(const artifact::NgramTableView& view,
                                                     const kernels::Kernels& kernels, const NgramOptions& options) {
  NgramMode mode = options.mode;
  if (mode == NgramMode::Auto) {
    mode = choose_residency(ngram_table_bytes(view), options.other_bytes, available_memory());
  }
  return mode == NgramMode::Streamed ? open_streamed_store(view, kernels, options) : open_resident_store(view, kernels);
}

std::string ngram_report(const NgramStore& store) {
  const NgramCounters counters = store.counters();
  std::string text = fmt::format("{}, {} hits", store.describe(), counters.hits);
  if (counters.cache_rows == 0) return text;
  const auto milliseconds = [](std::uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e6; };
  return text +
         fmt::format(
             ", {} misses ({} read ahead), {} evictions, {} rows and {} bytes read in {:.1f} ms, waited {:.1f} ms",
             counters.misses, counters.prefetched, counters.evictions, counters.rows_read, counters.bytes_read,
             milliseconds(counters.read_nanoseconds), milliseconds(counters.wait_nanoseconds));
}

}  // namespace lockstep::backend
