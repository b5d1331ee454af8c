#include "text/jinja/loop_object.hpp"

#include "text/jinja/operators.hpp"

namespace lockstep::text::jinja {
namespace {

/// Elements after the current one; finds them all.
Result<std::int64_t> remaining(Loop& loop) {
  while (LOCKSTEP_TRY(loop.look_ahead())) {
  }
  return static_cast<std::int64_t>(loop.pending.size());
}

Result<bool> has_next(Loop& loop) {
  if (!loop.pending.empty()) return true;
  return loop.look_ahead();
}

Result<Value> cycle(Runtime&, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty()) return fail(ErrorKind::Invalid, "loop.cycle() needs values");
  const auto count = static_cast<std::int64_t>(arguments.positional.size());
  return arguments.positional[static_cast<std::size_t>(self.loop()->index0 % count)];
}

Result<Value> changed(Runtime& runtime, const Value& self, const Arguments& arguments) {
  Loop& loop = *self.loop();
  bool same = loop.changed_once && loop.last_changed.size() == arguments.positional.size();
  for (std::size_t i = 0; same && i < loop.last_changed.size(); ++i) {
    same = LOCKSTEP_TRY(equal(runtime, loop.last_changed[i], arguments.positional[i]));
  }
  // A loop that is over keeps no values.
  if (!same && loop.source) loop.last_changed = arguments.positional;
  loop.changed_once = true;
  return Value(!same);
}

}  // namespace

Result<bool> Loop::look_ahead() {
  if (!source) return false;
  auto found = LOCKSTEP_TRY(source());
  if (!found) return false;
  pending.push_back(std::move(*found));
  return true;
}

Result<std::optional<Value>> Loop::next() {
  if (pending.empty() && !LOCKSTEP_TRY(look_ahead())) return std::nullopt;
  has_previous = index0 >= 0;
  previous = std::move(current);
  current = std::move(pending.front());
  pending.pop_front();
  ++index0;
  return current;
}

void Loop::finish() {
  source = nullptr;
  pending.clear();
  last_changed.clear();
  previous = Value();
  current = Value();
}

Result<std::optional<Value>> loop_attribute(Runtime& runtime, const LoopPtr& loop, std::string_view name) {
  if (name == "index") return Value(loop->index0 + 1);
  if (name == "index0") return Value(loop->index0);
  if (name == "first") return Value(loop->index0 == 0);
  // The depth is that of recursive loops, which there are none of.
  if (name == "depth") return Value(std::int64_t{1});
  if (name == "depth0") return Value(std::int64_t{0});
  if (name == "last") return Value(!LOCKSTEP_TRY(has_next(*loop)));
  if (name == "length") return Value(LOCKSTEP_TRY(remaining(*loop)) + loop->index0 + 1);
  if (name == "revindex") return Value(LOCKSTEP_TRY(remaining(*loop)) + 1);
  if (name == "revindex0") return Value(LOCKSTEP_TRY(remaining(*loop)));
  if (name == "previtem") return loop->has_previous ? loop->previous : Value();
  if (name == "nextitem") return LOCKSTEP_TRY(has_next(*loop)) ? loop->pending.front() : Value();
  if (name == "cycle") return LOCKSTEP_TRY(runtime.bound_method("cycle", cycle, Value(LoopPtr(loop))));
  if (name == "changed") return LOCKSTEP_TRY(runtime.bound_method("changed", changed, Value(LoopPtr(loop))));
  return std::nullopt;
}

}  // namespace lockstep::text::jinja
