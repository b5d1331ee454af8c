// Filters that apply a filter or a test to each element: map, select, reject and their attribute forms.

#include "text/jinja/access.hpp"
#include "text/jinja/filters.hpp"
#include "text/jinja/predicates.hpp"

namespace lockstep::text::jinja {
namespace {

/// A name given as the argument at `index`.
Result<TextPtr> name_argument(std::string_view callee, const Arguments& arguments, std::size_t index) {
  if (index >= arguments.positional.size() || arguments.positional[index].text() == nullptr) {
    return fail(ErrorKind::Invalid, "{}: argument {} must be a name", callee, index + 1);
  }
  return *arguments.positional[index].get<TextPtr>();
}

/// The arguments from `from` on, for the filter or test that is applied.
Arguments rest_of(const Arguments& arguments, std::size_t from) {
  Arguments rest;
  for (std::size_t i = from; i < arguments.positional.size(); ++i) rest.positional.push_back(arguments.positional[i]);
  rest.named = arguments.named;
  return rest;
}

Result<Value> map_attribute(Runtime& runtime, const SequencePtr& items, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("map", arguments, {"attribute", "default"}, 1));
  std::vector<Value> mapped;
  for (const Value& item : items->items) {
    mapped.push_back(LOCKSTEP_TRY(get_path(runtime, item, *bound.get(0), bound.get(1))));
  }
  return runtime.sequence(SequenceKind::Generator, std::move(mapped));
}

Result<Value> map_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (!is_truthy(input)) return runtime.sequence(SequenceKind::Generator, {});
  const SequencePtr items = LOCKSTEP_TRY(runtime.iterate(input));
  if (arguments.positional.empty() && !arguments.named.empty()) return map_attribute(runtime, items, arguments);
  const TextPtr name = LOCKSTEP_TRY(name_argument("map", arguments, 0));
  LOCKSTEP_TRY(check_filter(name->view()));
  if (name->bytes == "map") return fail(ErrorKind::Unsupported, "map: the filter 'map' inside of itself");
  const FilterFunction filter = find_filter(name->view());
  const Arguments rest = rest_of(arguments, 1);
  std::vector<Value> mapped;
  for (const Value& item : items->items) {
    LOCKSTEP_TRY(runtime.budget().spend(1));
    mapped.push_back(LOCKSTEP_TRY(filter(runtime, item, rest)));
  }
  return runtime.sequence(SequenceKind::Generator, std::move(mapped));
}

/// Keeps the elements for which a test, by default truth, gives kKeep.
template <bool kAttribute, bool kKeep>
Result<Value> select_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (!is_truthy(input)) return runtime.sequence(SequenceKind::Generator, {});
  const SequencePtr items = LOCKSTEP_TRY(runtime.iterate(input));
  constexpr std::size_t kFirst = kAttribute ? 1 : 0;
  if (arguments.positional.size() < kFirst) return fail(ErrorKind::Invalid, "selectattr: an attribute is missing");
  Predicate predicate = nullptr;
  if (arguments.positional.size() > kFirst) {
    const TextPtr name = LOCKSTEP_TRY(name_argument("select", arguments, kFirst));
    predicate = find_predicate(name->view());
    if (predicate == nullptr)
      return fail(ErrorKind::Invalid, "there is no test named '{}'", name->view().substr(0, 60));
  }
  const Arguments rest = rest_of(arguments, kFirst + 1);
  std::vector<Value> kept;
  for (const Value& item : items->items) {
    LOCKSTEP_TRY(runtime.budget().spend(1));
    const Value tested = kAttribute ? LOCKSTEP_TRY(get_path(runtime, item, arguments.positional[0])) : item;
    const bool passes = predicate == nullptr ? is_truthy(tested) : LOCKSTEP_TRY(predicate(runtime, tested, rest));
    if (passes == kKeep) kept.push_back(item);
  }
  return runtime.sequence(SequenceKind::Generator, std::move(kept));
}

constexpr std::pair<std::string_view, FilterFunction> kSelectionFilters[] = {
    {"map", map_filter},
    {"select", select_filter<false, true>},
    {"reject", select_filter<false, false>},
    {"selectattr", select_filter<true, true>},
    {"rejectattr", select_filter<true, false>},
};

}  // namespace

FilterTable selection_filters() {
  return kSelectionFilters;
}

}  // namespace lockstep::text::jinja
