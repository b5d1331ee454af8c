// Comparing the states of sequences part by part.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::test {

using StateParts = std::vector<std::pair<std::string_view, std::vector<std::byte>>>;

/// The first part (Sequence::save_parts()) in which two states differ, or nothing.
inline std::string part_difference(const StateParts& a, const StateParts& b) {
  if (a.size() != b.size()) return "number of state parts";
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto& [name, bytes] = a[i];
    if (name != b[i].first) return "names of state parts";
    if (bytes.size() != b[i].second.size()) return "size of the state's " + std::string(name);
    if (!bytes.empty() && std::memcmp(bytes.data(), b[i].second.data(), bytes.size()) != 0) {
      return "the state's " + std::string(name);
    }
  }
  return {};
}

}  // namespace lockstep::test
