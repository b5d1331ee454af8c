// Whether all windows of an A/B run gave the same answers, and whether what was to run did run.
#pragma once

#include <string>
#include <vector>

#include "report/sample.hpp"

namespace lockstep::report {

/// Everything that makes a run a FAIL, one line each; none: PASS.
///
/// * A window that could not run, a request without an answer, an incomplete run.
/// * For every seed, all answers against the first one: digests, counts and the finish reason, with the first token
///   that differs.
/// * A prompt of which not every token went through the model: the run was not cold.
/// * A lane under test that did not run. It must be armed in every window and run in every sample of the arm. A lane is
///   under test in an arm that does not switch it off
///   - when another arm switches it off,
///   - when it is armed in a window of this arm and declined in one of another, or
///   - when Run::required says so.
/// * A lane that ran although it was off.
[[nodiscard]] std::vector<std::string> failures(const Run& run);

/// Names of the lanes that are under test in an arm, in the order in which the program lists them.
[[nodiscard]] std::vector<std::string> lanes_under_test(const Run& run, std::size_t arm);

/// What the answers to one seed are, as far as there are any.
struct SeedParity {
  std::uint64_t seed = 0;
  std::size_t answers = 0;
  const Sample* first = nullptr;  ///< the answer that the others are compared with; in the run; null without answers
  std::string difference;         ///< of the first answer that differs, with its window; empty: all are equal
};
/// One entry a seed, in the run's order.
[[nodiscard]] std::vector<SeedParity> seed_parity(const Run& run);

/// How two answers differ, or an empty text.
[[nodiscard]] std::string difference(const Sample& reference, const Sample& other);

}  // namespace lockstep::report
