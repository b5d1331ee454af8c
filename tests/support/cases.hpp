// How many random cases a property test tries.
#pragma once

#include <algorithm>
#include <cstdlib>

namespace lockstep::test {

/// `usual` cases, times LOCKSTEP_TEST_FACTOR where that is set to a positive number: more for long runs, a fraction
/// where every case takes several times longer (sanitizers). At least one.
inline unsigned cases(unsigned usual) {
  const char* factor = std::getenv("LOCKSTEP_TEST_FACTOR");
  const double value = factor == nullptr ? 1 : std::strtod(factor, nullptr);
  if (!(value > 0) || value > 10'000) return usual;
  return std::max(1U, static_cast<unsigned>(usual * value));
}

}  // namespace lockstep::test
