// Whether the n-gram table should stay in memory.
#pragma once

#include <cstdint>

#include "backend/ngram/ngram_store.hpp"

namespace lockstep::backend {

/// Share of the available memory that the table and the other weights may take together to be resident.
inline constexpr double kResidentShare = 0.75;

/// Resident when table_bytes + other_bytes <= kResidentShare * available_bytes, else Streamed.
[[nodiscard]] NgramMode choose_residency(std::uint64_t table_bytes, std::uint64_t other_bytes,
                                         std::uint64_t available_bytes);

/// Bytes of the table in its files.
[[nodiscard]] std::uint64_t ngram_table_bytes(const artifact::NgramTableView& view);

}  // namespace lockstep::backend
