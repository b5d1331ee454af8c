// What `lockstep bench` measured of one case, and how it says so.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/profile.hpp"
#include "base/json.hpp"

namespace lockstep::cli {

/// Middle, least and greatest of the repetitions of one case.
struct Spread {
  double median = 0, low = 0, high = 0;
};

inline Spread spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

struct CaseResult {
  std::string name;
  std::int64_t depth = 0, width = 0, streams = 0;  ///< of decoding
  Spread rate;                                     ///< tokens of a prompt, or steps times sequences, a second
  double achieved = 0;                             ///< bytes or multiply-adds a second at the median
  double limit = 0;                                ///< what the machine measured meanwhile; 0: unknown
  bool ahead = false;                              ///< steps were begun before their token was known
  backend::Profile profile;                        ///< of all repetitions
};

/// A line of the table.
[[nodiscard]] std::string table_row(const CaseResult& result, bool prompt);
/// Where the time went.
[[nodiscard]] std::string profile_table(const CaseResult& result);
[[nodiscard]] Json to_json(const CaseResult& result, bool prompt, bool profile);

}  // namespace lockstep::cli
