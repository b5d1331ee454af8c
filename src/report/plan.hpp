// What an A/B run is asked for: arms, the order of their windows, seeds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace lockstep::report {

inline constexpr std::size_t kMaxArms = 16, kMaxWindows = 64, kMaxSeeds = 64, kMaxArmBytes = 4096;

/// One way to run the model.
struct Arm {
  std::string name;
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<std::string> flags;
  bool operator==(const Arm&) const = default;
};

/// "NAME=WORDS". NAME is a lower-case letter, then lower-case letters, digits, '-' and '_', the last of them no digit.
/// WORDS are split at white space; quotes ('...' literally, "..." with \" and \\) and a backslash keep it. Leading
/// words VARIABLE=VALUE (upper-case letters, digits, '_') are the environment, the others are flags. Errors: Usage.
Result<Arm> parse_arm(std::string_view text);

/// A fresh process of one arm, in which every seed is sampled once.
struct Window {
  std::size_t arm = 0;
  std::string label;  ///< the arm's name and a number, "a1"
  bool operator==(const Window&) const = default;
};

/// Either capital letters, where A is the first arm, B the second ("ABA", "A/B/A"), or arm names with or without
/// numbers
/// ("c1 a1 b1 b2 a2 c2"). Spaces, commas, '/' and '-' separate; a '-' in the name of an arm does not. Every arm must
/// occur. Errors: Usage.
Result<std::vector<Window>> parse_order(std::string_view text, std::span<const Arm> arms);

/// "1,2,3" or "20260829-20260831" or both mixed, ascending or not, none twice. Errors: Usage.
Result<std::vector<std::uint64_t>> parse_seeds(std::string_view text);

}  // namespace lockstep::report
