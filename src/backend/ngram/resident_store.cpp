// The n-gram table as the artifact mapped it.
#include <vector>

#include "backend/cpu/linear.hpp"
#include "backend/ngram/ngram_store.hpp"
#include "backend/ngram/row_format.hpp"

namespace lockstep::backend {
namespace {

class ResidentStore final : public NgramStore {
 public:
  ResidentStore(const artifact::NgramTableView& view, const kernels::Kernels& kernels, const RowFormat& format)
      : kernels_(kernels), format_(format), rows_per_part_(view.table ? view.rows : view.rows_per_shard) {
    if (view.table) parts_.push_back(std::make_unique<CpuMatrix>(*view.table));
    for (const artifact::MatrixView& shard : view.shards) parts_.push_back(std::make_unique<CpuMatrix>(shard));
  }

  Status request(std::span<const std::int64_t> row_ids) override { return format_.check(row_ids); }

  Status gather(std::span<const std::int64_t> row_ids, float* out) override {
    LOCKSTEP_TRY(format_.check(row_ids));
    for (const std::int64_t row : row_ids) {
      const CpuMatrix& part = *parts_[static_cast<std::size_t>(row / rows_per_part_)];
      if (part.quantised()) {
        kernels_.affine_row(part.affine(0), row % rows_per_part_, out);
      } else {
        kernels_.dense_row(part.dense(0), row % rows_per_part_, out);
      }
      out += format_.dim();
    }
    hits_ += row_ids.size();
    return {};
  }

  [[nodiscard]] Status status() const override { return {}; }
  [[nodiscard]] NgramCounters counters() const override {
    NgramCounters counters;
    counters.hits = hits_;
    return counters;
  }
  [[nodiscard]] NgramMode mode() const override { return NgramMode::Resident; }
  [[nodiscard]] std::string describe() const override {
    const double bytes = static_cast<double>(format_.rows()) * static_cast<double>(format_.bytes());
    return fmt::format("resident, {:.1f} MiB mapped", bytes / (1 << 20));
  }

 private:
  const kernels::Kernels& kernels_;
  RowFormat format_;
  std::int64_t rows_per_part_;
  std::vector<std::unique_ptr<CpuMatrix>> parts_;
  std::uint64_t hits_ = 0;
};

}  // namespace

Result<std::unique_ptr<NgramStore>> open_resident_store(const artifact::NgramTableView& view,
                                                        const kernels::Kernels& kernels) {
  const RowFormat format = LOCKSTEP_TRY(RowFormat::create(view, kernels));
  return std::make_unique<ResidentStore>(view, kernels, format);
}

}  // namespace lockstep::backend
