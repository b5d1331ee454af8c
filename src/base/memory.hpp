// How much memory this process can still use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/result.hpp"

namespace lockstep {

/// Bytes that the process can take without swapping: the system's MemAvailable, or less where a control group (version
/// 1 or 2) above the process sets a limit: then what the limit leaves, with the group's page cache counted as free.
/// Never more than memory_limit(). UINT64_MAX when nothing sets a bound. `root` replaces / in tests.
[[nodiscard]] std::uint64_t available_memory(const std::filesystem::path& root = "/");

/// A whole number of bytes, or one with a unit: K, M, G or T, in either case, with or without B or iB behind it (powers
/// of 1,024); nothing for any other text and for what 64 bits do not hold.
[[nodiscard]] std::optional<std::uint64_t> parse_bytes(std::string_view text);

/// What the environment variable LOCKSTEP_MEMORY_LIMIT allows at most: a number of bytes, or one with K, M, G or T
/// (powers of 1,024); nothing when it is not set or empty. Errors: Usage.
[[nodiscard]] Result<std::optional<std::uint64_t>> memory_limit();

}  // namespace lockstep
