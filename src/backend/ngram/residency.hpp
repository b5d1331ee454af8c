// Where the n-gram table should be.
#pragma once

#include <cstdint>

#include "backend/ngram/ngram_store.hpp"

namespace lockstep::backend {

/// Share of the available memory that the table and the other weights may take together to be resident.
inline constexpr double kResidentShare = 0.75;

/// Resident when table_bytes + other_bytes <= kResidentShare * available_bytes, else Streamed.
[[nodiscard]] NgramMode choose_residency(std::uint64_t table_bytes, std::uint64_t other_bytes,
                                         std::uint64_t available_bytes);

/// Share of a device's free memory that the table may fill together with all else: the rest is for states of requests
/// to come.
inline constexpr double kDeviceShare = 0.9;

/// For a CUDA device: Device when table_bytes + other_bytes <= kDeviceShare * device_free, else Pinned when table_bytes
/// <= kResidentShare * host_available, else Streamed, or Resident for a table that is in no file.
[[nodiscard]] NgramMode choose_place(std::uint64_t table_bytes, std::uint64_t other_bytes, std::uint64_t device_free,
                                     std::uint64_t host_available, bool in_files);

/// Bytes of the table in its files.
[[nodiscard]] std::uint64_t ngram_table_bytes(const artifact::NgramTableView& view);

}  // namespace lockstep::backend
