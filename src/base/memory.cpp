#include "base/memory.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "base/checked.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// Names of the files of a memory control group, by version.
struct GroupFiles {
  const char *limit, *usage, *cache_key;
};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "file"};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"};

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

/// The number in a file of one; nothing for "max".
std::optional<std::uint64_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  return parse_number(word);
}

/// The number after a word at the start of a line.
std::optional<std::uint64_t> read_field(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::string_view text = line;
    if (!text.starts_with(key) || text.size() <= key.size() || text[key.size()] != ' ') continue;
    const std::size_t digit = text.find_first_not_of(' ', key.size());
    return digit == std::string_view::npos ? std::nullopt : parse_number(text.substr(digit));
  }
  return std::nullopt;
}

/// What the limits of a group and the groups above it leave. `mount` is where the hierarchy is mounted.
std::uint64_t group_available(const fs::path& mount, const fs::path& group, const GroupFiles& files) {
  std::uint64_t available = UINT64_MAX;
  // Inside a container the path may be that of the host, which is not there; the mount itself then is the group.
  for (fs::path path = group.relative_path();; path = path.parent_path()) {
    const fs::path directory = mount / path;
    const auto limit = read_number(directory / files.limit);
    const auto usage = read_number(directory / files.usage);
    if (limit && usage) {
      const std::uint64_t cache = read_field(directory / "memory.stat", files.cache_key).value_or(0);
      const std::uint64_t used = *usage - std::min(*usage, cache);
      available = std::min(available, *limit - std::min(*limit, used));
    }
    if (path.empty()) return available;
  }
}

}  // namespace

std::uint64_t available_memory(const std::filesystem::path& root) {
  std::uint64_t available = UINT64_MAX;
  if (const auto kilobytes = read_field(root / "proc/meminfo", "MemAvailable:")) available = *kilobytes * 1024;
  // Lines "0::/path" (version 2) or "4:memory,other:/path" (version 1).
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string controllers = line.substr(first, second - first);
    controllers += ',';
    controllers.front() = ',';
    const fs::path group = line.substr(second + 1);
    const fs::path mount = root / "sys/fs/cgroup";
    if (controllers == ",,") available = std::min(available, group_available(mount, group, kVersion2));
    if (controllers.find(",memory,") != std::string::npos) {
      available = std::min(available, group_available(mount / "memory", group, kVersion1));
    }
  }
  // One that cannot be read is refused where commands start; here it bounds nothing.
  if (const auto limit = memory_limit(); limit && *limit) available = std::min(available, **limit);
  return available;
}

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  constexpr std::string_view kUnits = "kmgt";
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc()) return std::nullopt;
  std::string unit(rest, end);
  for (char& c : unit) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  const std::size_t power = unit.empty() ? std::string_view::npos : kUnits.find(unit.front());
  if (power != std::string_view::npos) unit.erase(0, 1);
  if (!unit.empty() && unit != "b" && (power == std::string_view::npos || unit != "ib")) return std::nullopt;
  return checked_mul(value, power == std::string_view::npos ? 1 : std::uint64_t{1} << (10 * (power + 1)));
}

Result<std::optional<std::uint64_t>> memory_limit() {
  const char* variable = std::getenv("LOCKSTEP_MEMORY_LIMIT");
  if (variable == nullptr || *variable == '\0') return std::nullopt;
  const std::optional<std::uint64_t> bytes = parse_bytes(variable);
  if (!bytes) {
    return fail(ErrorKind::Usage, "LOCKSTEP_MEMORY_LIMIT is '{}': give a number of bytes, or one with K, M, G or T",
                variable);
  }
  return bytes;
}

}  // namespace lockstep
