// The state of a for loop, which the template sees as "loop".
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "text/jinja/value.hpp"

namespace lockstep::text::jinja {

/// Where a loop stands. The condition of a loop is evaluated only when the loop or "loop" needs the next element, as
/// Jinja2 does it; `pending` holds the elements that were found ahead of their turn.
struct Loop {
  std::int64_t index0 = -1;
  Value previous, current;
  bool has_previous = false;
  std::deque<Value> pending;
  /// Finds the next element that passes the condition. Empty once the loop is over, which also drops all values: a loop
  /// may be kept in a namespace, and must not keep itself alive.
  std::function<Result<std::optional<Value>>()> source;
  std::vector<Value> last_changed;
  bool changed_once = false;

  /// The next element, or nothing at the end.
  Result<std::optional<Value>> next();
  /// Finds one more element ahead; false at the end.
  Result<bool> look_ahead();
  void finish();
};

}  // namespace lockstep::text::jinja
