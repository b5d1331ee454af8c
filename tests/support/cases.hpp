// How many random cases a property test tries.
#pragma once

#include <cstdlib>

namespace lockstep::test {

/// `usual` cases, times LOCKSTEP_TEST_FACTOR where that is set to a positive number: for long runs.
inline unsigned cases(unsigned usual) {
  const char* factor = std::getenv("LOCKSTEP_TEST_FACTOR");
  const unsigned long value = factor == nullptr ? 1 : std::strtoul(factor, nullptr, 10);
  return value == 0 || value > 10'000 ? usual : usual * static_cast<unsigned>(value);
}

}  // namespace lockstep::test
