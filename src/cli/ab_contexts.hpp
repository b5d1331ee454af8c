// The context sweep of `lockstep ab`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "cli/ab_window.hpp"

namespace lockstep::cli {

struct SweepOptions {
  std::vector<std::int64_t> contexts;        ///< prompt tokens, ascending, none twice
  std::int64_t tokens = 64;                  ///< decoded at each
  std::function<report::GateRecord()> gate;  ///< waits for quiet before each
  /// Bytes that are free where the model runs, read before each context; empty: what the system or the device says.
  std::function<Result<std::uint64_t>()> available{};
};

/// For every arm and context: speed of the prompt and of decoding, live bytes of the state, whether the pages of keys
/// and values that the prompt filled are still the same ones afterwards (nothing was copied). Then whether the bytes
/// are linear in the context: constant + tokens x bytes a token through the first and the last context, no measured
/// context further off than the pages' granularity. That needs three contexts: when only two fit, one halfway between
/// them is added; with fewer it is not checked. A context that the model or the memory has no room for is entered with
/// the reason, before it runs, and ends the arm's sweep. The result is the JSON `lockstep-ab-contexts-1` (docs/ab.md).
/// Errors: Usage, Cancelled.
Result<OrderedJson> sweep_contexts(const AbSetup& setup, const std::vector<report::Arm>& arms,
                                   const SweepOptions& options);

[[nodiscard]] std::string sweep_markdown(const OrderedJson& sweep);
/// False when a state grew by copies, not linearly, a context failed for another reason than room, or no context of an
/// arm was measured.
[[nodiscard]] bool sweep_passed(const OrderedJson& sweep);
/// FAIL, PASS, or "PASS, growth not checked" when an arm measured too few contexts for that.
[[nodiscard]] std::string sweep_verdict(const OrderedJson& sweep);

}  // namespace lockstep::cli
