#include "backend/ngram/residency.hpp"

namespace lockstep::backend {

NgramMode choose_residency(std::uint64_t table_bytes, std::uint64_t other_bytes, std::uint64_t available_bytes) {
  const double wanted = static_cast<double>(table_bytes) + static_cast<double>(other_bytes);
  return wanted <= kResidentShare * static_cast<double>(available_bytes) ? NgramMode::Resident : NgramMode::Streamed;
}

NgramMode choose_place(std::uint64_t table_bytes, std::uint64_t other_bytes, std::uint64_t device_free,
                       std::uint64_t host_available, bool in_files) {
  const auto fits = [&](double bytes, double share, std::uint64_t room) {
    return bytes <= share * static_cast<double>(room);
  };
  const auto table = static_cast<double>(table_bytes);
  if (fits(table + static_cast<double>(other_bytes), kDeviceShare, device_free)) return NgramMode::Device;
  if (fits(table, kResidentShare, host_available)) return NgramMode::Pinned;
  return in_files ? NgramMode::Streamed : NgramMode::Resident;
}

std::uint64_t ngram_table_bytes(const artifact::NgramTableView& view) {
  if (!view.table && view.shards.empty()) return 0;
  const artifact::MatrixView& matrix = view.table ? *view.table : view.shards.front();
  const std::size_t row = matrix.quantised ? matrix.code_row_bytes() + 2 * matrix.scale_row_bytes()
                                           : static_cast<std::size_t>(matrix.cols) * artifact::dtype_size(matrix.dtype);
  return static_cast<std::uint64_t>(view.rows) * row;
}

}  // namespace lockstep::backend
