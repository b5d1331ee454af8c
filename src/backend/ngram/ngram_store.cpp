#include "backend/ngram/ngram_store.hpp"

#include <array>

#include "backend/ngram/residency.hpp"
#include "base/memory.hpp"

namespace lockstep::backend {
namespace {

constexpr std::array<std::string_view, 5> kModeNames{"auto", "resident", "streamed", "device", "pinned"};

}  // namespace

std::string_view ngram_mode_name(NgramMode mode) {
  return kModeNames.at(static_cast<std::size_t>(mode));
}

std::optional<NgramMode> find_ngram_mode(std::string_view name) {
  for (std::size_t i = 0; i < kModeNames.size(); ++i) {
    if (kModeNames.at(i) == name) return static_cast<NgramMode>(i);
  }
  return std::nullopt;
}

Result<std::unique_ptr<NgramStore>> open_ngram_store(const artifact::NgramTableView& view,
                                                     const kernels::Kernels& kernels, const NgramOptions& options) {
  NgramMode mode = options.mode;
  if (device_only(mode)) {
    return fail(ErrorKind::Usage, "the processor cannot have the n-gram table in '{}' memory: use --device cuda",
                ngram_mode_name(mode));
  }
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
