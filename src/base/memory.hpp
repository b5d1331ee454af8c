// How much memory this process can still use.
#pragma once

#include <cstdint>
#include <filesystem>

namespace lockstep {

/// Bytes that the process can take without swapping: the system's MemAvailable, or less where a control group (version
/// 1 or 2) above the process sets a limit: then what the limit leaves, with the group's page cache counted as free.
/// UINT64_MAX when the system says neither. `root` replaces / in tests.
[[nodiscard]] std::uint64_t available_memory(const std::filesystem::path& root = "/");

}  // namespace lockstep
