// The methods of Python's dict and list that change nothing.

#include <algorithm>
#include <array>

#include "text/jinja/access.hpp"
#include "text/jinja/operators.hpp"

namespace lockstep::text::jinja {
namespace {

template <SequenceKind kKind>
Result<Value> view_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("this method", arguments, {}));
  std::vector<Value> items;
  items.reserve(self.dict()->entries.size());
  for (const auto& [key, value] : self.dict()->entries) {
    if (kKind == SequenceKind::Items) {
      items.push_back(LOCKSTEP_TRY(runtime.tuple({key, value})));
    } else {
      items.push_back(kKind == SequenceKind::Keys ? key : value);
    }
  }
  return runtime.sequence(kKind, std::move(items));
}

Result<Value> get_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("get", arguments, {"key", "default"}, 1));
  const auto& entries = self.dict()->entries;
  const std::size_t at = LOCKSTEP_TRY(find_key(runtime, entries, *bound.get(0)));
  if (at < entries.size()) return entries[at].second;
  return bound.get(1) == nullptr ? Value(None{}) : *bound.get(1);
}

Result<Value> copy_method(Runtime&, const Value& self, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("copy", arguments, {}));
  return self;  // nothing can tell an immutable copy from the original
}

Result<Value> index_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("index", arguments, {"value", "start", "stop"}, 1));
  const auto& items = self.sequence()->items;
  const auto size = static_cast<std::int64_t>(items.size());
  const auto place = [&](std::int64_t i) { return std::clamp<std::int64_t>(i < 0 ? i + size : i, 0, size); };
  const std::int64_t start = place(LOCKSTEP_TRY(bound.integer(1, 0)));
  const std::int64_t stop = place(LOCKSTEP_TRY(bound.integer(2, size)));
  for (std::int64_t i = start; i < stop; ++i) {
    if (LOCKSTEP_TRY(equal(runtime, items[static_cast<std::size_t>(i)], *bound.get(0)))) return Value(i);
  }
  return fail(ErrorKind::Invalid, "index(): the value is not in the list");
}

Result<Value> count_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("count", arguments, {"value"}, 1));
  std::int64_t count = 0;
  for (const Value& item : self.sequence()->items) {
    if (LOCKSTEP_TRY(equal(runtime, item, *bound.get(0)))) ++count;
  }
  return Value(count);
}

constexpr std::array kDictMethods = {
    Method{"copy", copy_method},
    Method{"get", get_method},
    Method{"items", view_method<SequenceKind::Items>},
    Method{"keys", view_method<SequenceKind::Keys>},
    Method{"values", view_method<SequenceKind::Values>},
};

constexpr std::array kListMethods = {
    Method{"copy", copy_method},
    Method{"count", count_method},
    Method{"index", index_method},
};

constexpr std::array<std::string_view, 11> kMutating = {"append", "clear",   "extend", "insert",     "pop",   "popitem",
                                                        "remove", "reverse", "sort",   "setdefault", "update"};

template <std::size_t kSize>
const Method* find(const std::array<Method, kSize>& methods, std::string_view name) {
  const auto* const found =
      std::find_if(methods.begin(), methods.end(), [&](const Method& m) { return m.name == name; });
  return found == methods.end() ? nullptr : found;
}

}  // namespace

const Method* find_dict_method(std::string_view name) {
  return find(kDictMethods, name);
}
const Method* find_list_method(std::string_view name) {
  return find(kListMethods, name);
}

bool is_mutating_method(std::string_view name) {
  return std::find(kMutating.begin(), kMutating.end(), name) != kMutating.end();
}

}  // namespace lockstep::text::jinja
