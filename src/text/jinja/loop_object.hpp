// The attributes of "loop".
#pragma once

#include <optional>
#include <string_view>

#include "base/result.hpp"
#include "text/jinja/loop.hpp"
#include "text/jinja/runtime.hpp"

namespace lockstep::text::jinja {

/// index, index0, revindex, revindex0, first, last, length, depth, depth0, previtem, nextitem, cycle, changed; nothing
/// for other names. Those that look ahead evaluate the condition of the loop on what follows. Errors: those of the
/// condition, Limit.
Result<std::optional<Value>> loop_attribute(Runtime& runtime, const LoopPtr& loop, std::string_view name);

}  // namespace lockstep::text::jinja
