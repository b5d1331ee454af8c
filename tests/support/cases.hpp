// How many random cases a property test tries.
#pragma once

#include <algorithm>
#include <cstdlib>

namespace lockstep::test {

/// LOCKSTEP_TEST_FACTOR where it is set to a positive number, else 1.
inline double factor() {
  const char* set = std::getenv("LOCKSTEP_TEST_FACTOR");
  const double value = set == nullptr ? 1 : std::strtod(set, nullptr);
  return value > 0 && value <= 10'000 ? value : 1;
}

/// Whether as many cases run as it takes to meet every situation that a test wants to have met.
inline bool usual_cases() {
  return factor() >= 1;
}

/// `usual` cases, times LOCKSTEP_TEST_FACTOR where that is set to a positive number: more for long runs, a fraction
/// where every case takes several times longer (sanitizers). At least one.
inline unsigned cases(unsigned usual) {
  return std::max(1U, static_cast<unsigned>(usual * factor()));
}

}  // namespace lockstep::test
