// The n-gram table as a device reads it: packed rows (row_format.hpp), one behind the other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "artifact/model_view.hpp"

namespace lockstep::backend {

/// Bytes of a packed row without what follows it: codes, scales and biases, or dense elements.
[[nodiscard]] std::size_t packed_row_bytes(const artifact::NgramTableView& view);

/// Bytes from one packed row to the next: a multiple of four, so that a row can be read in words.
[[nodiscard]] std::size_t packed_row_stride(const artifact::NgramTableView& view);

/// Bytes of all packed rows; 0 without a table.
[[nodiscard]] std::uint64_t packed_table_bytes(const artifact::NgramTableView& view);

/// Copies `count` rows from row `first` on to `to` [count, packed_row_stride()]. What is between rows is left alone.
void copy_packed_rows(const artifact::NgramTableView& view, std::int64_t first, std::int64_t count, std::byte* to);

}  // namespace lockstep::backend
