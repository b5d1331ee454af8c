// Filters on sequences as wholes: order, first and last, sums, groups.

#include <algorithm>

#include "text/jinja/access.hpp"
#include "text/jinja/filters.hpp"
#include "text/jinja/format.hpp"
#include "text/jinja/operators.hpp"
#include "text/jinja/text_operations.hpp"
#include "text/jinja/unicode.hpp"

namespace lockstep::text::jinja {
namespace {

/// An element together with what it is compared by.
struct Keyed {
  Value key, item;
};

/// The value under an attribute, in lower case unless case matters.
Result<Value> key_of(Runtime& runtime, const Value& item, const Value& attribute, bool case_sensitive,
                     const Value* otherwise = nullptr) {
  Value key = LOCKSTEP_TRY(get_path(runtime, item, attribute, otherwise));
  if (case_sensitive || key.text() == nullptr) return key;
  return Value(LOCKSTEP_TRY(change_case(runtime, *key.get<TextPtr>(), CaseChange::Lower)));
}

/// The keys of a sort, of which the attribute may name several with commas between them.
Result<Value> sort_key(Runtime& runtime, const Value& item, const Value& attribute, bool case_sensitive) {
  if (attribute.text() == nullptr) return key_of(runtime, item, attribute, case_sensitive);
  const TextPtr comma = make_constant(",");
  std::vector<Value> keys;
  for (const Value& part : LOCKSTEP_TRY(split(runtime, *attribute.get<TextPtr>(), *comma, -1))) {
    keys.push_back(LOCKSTEP_TRY(key_of(runtime, item, part, case_sensitive)));
  }
  return runtime.list(std::move(keys));
}

/// Sorts stably; with `reverse`, equal elements keep their order too, as in Python.
Status sort_keyed(Runtime& runtime, std::vector<Keyed>& all, bool reverse) {
  Status status;
  std::stable_sort(all.begin(), all.end(), [&](const Keyed& left, const Keyed& right) {
    if (!status) return false;
    const auto order = compare(runtime, reverse ? right.key : left.key, reverse ? left.key : right.key);
    if (!order) status = tl::unexpected(order.error());
    return order && *order < 0;
  });
  return status;
}

std::vector<Value> items_of(std::vector<Keyed> all) {
  std::vector<Value> items;
  items.reserve(all.size());
  for (Keyed& keyed : all) items.push_back(std::move(keyed.item));
  return items;
}

Result<Value> list_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("list", arguments, {}));
  const SequencePtr items = LOCKSTEP_TRY(runtime.iterate(input));
  return runtime.list(items->items);
}

Result<Value> first_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("first", arguments, {}));
  const SequencePtr items = LOCKSTEP_TRY(runtime.iterate(input));
  return items->items.empty() ? Value(Undefined{nullptr, Absence::Empty}) : items->items.front();
}

Result<Value> last_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("last", arguments, {}));
  if (is_generator(input)) return fail(ErrorKind::Invalid, "last: a generator has no end; make it a list first");
  const SequencePtr items = LOCKSTEP_TRY(runtime.iterate(input));
  return items->items.empty() ? Value(Undefined{nullptr, Absence::Empty}) : items->items.back();
}

Result<Value> join_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("join", arguments, {"d", "attribute"}));
  const TextPtr separator = LOCKSTEP_TRY(to_text(runtime, bound.value(0)));
  const SequencePtr items = LOCKSTEP_TRY(runtime.iterate(input));
  if (bound.get(1) == nullptr || bound.get(1)->is_none()) {
    return Value(LOCKSTEP_TRY(join(runtime, *separator, items->items, true)));
  }
  std::vector<Value> parts;
  for (const Value& item : items->items) parts.push_back(LOCKSTEP_TRY(get_path(runtime, item, *bound.get(1))));
  return Value(LOCKSTEP_TRY(join(runtime, *separator, parts, true)));
}

Result<Value> items_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("items", arguments, {}));
  std::vector<Value> items;
  if (input.dict() == nullptr && !input.is_undefined()) return type_error("items: expected a dict", input);
  if (const Dict* dict = input.dict()) {
    for (const auto& [key, value] : dict->entries) items.push_back(LOCKSTEP_TRY(runtime.tuple({key, value})));
  }
  return runtime.sequence(SequenceKind::Generator, std::move(items));
}

Result<Value> dictsort_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("dictsort", arguments, {"case_sensitive", "by", "reverse"}));
  const TextPtr by = LOCKSTEP_TRY(bound.text(1, "key"));
  if (by->bytes != "key" && by->bytes != "value") return fail(ErrorKind::Invalid, "dictsort: by must be key or value");
  if (input.dict() == nullptr) return type_error("dictsort: expected a dict", input);
  std::vector<Keyed> all;
  for (const auto& [key, value] : input.dict()->entries) {
    Value by_value =
        LOCKSTEP_TRY(key_of(runtime, by->bytes == "key" ? key : value, Value(None{}), bound.truth(0, false)));
    Value pair = LOCKSTEP_TRY(runtime.tuple({key, value}));
    all.push_back({std::move(by_value), std::move(pair)});
  }
  LOCKSTEP_TRY(sort_keyed(runtime, all, bound.truth(2, false)));
  return runtime.list(items_of(std::move(all)));
}

Result<Value> sort_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("sort", arguments, {"reverse", "case_sensitive", "attribute"}));
  const SequencePtr items = LOCKSTEP_TRY(runtime.iterate(input));
  std::vector<Keyed> all;
  for (const Value& item : items->items) {
    all.push_back({LOCKSTEP_TRY(sort_key(runtime, item, bound.value(2), bound.truth(1, false))), item});
  }
  LOCKSTEP_TRY(sort_keyed(runtime, all, bound.truth(0, false)));
  return runtime.list(items_of(std::move(all)));
}

Result<Value> reverse_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("reverse", arguments, {}));
  const Value step(std::int64_t{-1});
  if (input.text() != nullptr) return get_slice(runtime, input, nullptr, nullptr, &step);
  std::vector<Value> items = LOCKSTEP_TRY(runtime.iterate(input))->items;
  std::reverse(items.begin(), items.end());
  // Python gives an iterator where the input can be walked backwards, and Jinja2 a list where it cannot.
  const bool walked = input.sequence() != nullptr && !is_generator(input);
  return runtime.sequence(walked || input.dict() != nullptr ? SequenceKind::Generator : SequenceKind::List,
                          std::move(items));
}

Result<Value> unique_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("unique", arguments, {"case_sensitive", "attribute"}));
  const SequencePtr items = LOCKSTEP_TRY(runtime.iterate(input));
  std::vector<std::pair<Value, Value>> seen;
  std::vector<Value> unique;
  for (const Value& item : items->items) {
    Value key = LOCKSTEP_TRY(key_of(runtime, item, bound.value(1), bound.truth(0, false)));
    if (LOCKSTEP_TRY(find_key(runtime, seen, key)) < seen.size()) continue;
    seen.emplace_back(std::move(key), Value());
    unique.push_back(item);
  }
  return runtime.sequence(SequenceKind::Generator, std::move(unique));
}

Result<Value> sum_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("sum", arguments, {"attribute", "start"}));
  const SequencePtr items = LOCKSTEP_TRY(runtime.iterate(input));
  Value total = bound.get(1) == nullptr ? Value(std::int64_t{0}) : *bound.get(1);
  if (total.text() != nullptr) return fail(ErrorKind::Invalid, "sum: strings cannot be summed");
  for (const Value& item : items->items) {
    const Value term = LOCKSTEP_TRY(get_path(runtime, item, bound.value(0)));
    total = LOCKSTEP_TRY(arithmetic(runtime, Operator::Add, total, term));
  }
  return total;
}

template <bool kMax>
Result<Value> extreme_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind(kMax ? "max" : "min", arguments, {"case_sensitive", "attribute"}));
  const SequencePtr items = LOCKSTEP_TRY(runtime.iterate(input));
  if (items->items.empty()) return Value(Undefined{nullptr, Absence::Empty});
  Keyed best;
  for (const Value& item : items->items) {
    Value key = LOCKSTEP_TRY(key_of(runtime, item, bound.value(1), bound.truth(0, false)));
    const bool first = &item == items->items.data();
    const auto order = first ? std::partial_ordering::less
                             : LOCKSTEP_TRY(compare(runtime, kMax ? best.key : key, kMax ? key : best.key));
    if (order < 0) best = {std::move(key), item};
  }
  return best.item;
}

Result<Value> batch_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("batch", arguments, {"linecount", "fill_with"}, 1));
  const std::int64_t size = LOCKSTEP_TRY(bound.integer(0, 1));
  const SequencePtr items = LOCKSTEP_TRY(runtime.iterate(input));
  std::vector<Value> batches, batch;
  for (const Value& item : items->items) {
    if (static_cast<std::int64_t>(batch.size()) == size) {
      batches.push_back(LOCKSTEP_TRY(runtime.list(std::exchange(batch, {}))));
    }
    batch.push_back(item);
  }
  if (!batch.empty()) {
    if (bound.get(1) != nullptr && !bound.get(1)->is_none() && static_cast<std::int64_t>(batch.size()) < size) {
      if (size > runtime.limits().max_range) return fail(ErrorKind::Limit, "batch: a batch of {} elements", size);
      batch.resize(static_cast<std::size_t>(size), *bound.get(1));
    }
    batches.push_back(LOCKSTEP_TRY(runtime.list(std::move(batch))));
  }
  return runtime.sequence(SequenceKind::Generator, std::move(batches));
}

Result<Value> groupby_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto bound =
      LOCKSTEP_TRY(Parameters::bind("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1));
  const SequencePtr items = LOCKSTEP_TRY(runtime.iterate(input));
  std::vector<Keyed> all;
  for (const Value& item : items->items) {
    Value key = LOCKSTEP_TRY(key_of(runtime, item, *bound.get(0), bound.truth(2, false), bound.get(1)));
    all.push_back({std::move(key), item});
  }
  LOCKSTEP_TRY(sort_keyed(runtime, all, false));
  std::vector<Value> groups, members;
  for (std::size_t i = 0; i < all.size(); ++i) {
    members.push_back(all[i].item);
    if (i + 1 < all.size() && LOCKSTEP_TRY(equal(runtime, all[i].key, all[i + 1].key))) continue;
    Value name = LOCKSTEP_TRY(get_path(runtime, members.front(), *bound.get(0), bound.get(1)));
    Value list = LOCKSTEP_TRY(runtime.list(std::exchange(members, {})));
    groups.push_back(LOCKSTEP_TRY(runtime.sequence(SequenceKind::Group, {std::move(name), std::move(list)})));
  }
  return runtime.list(std::move(groups));
}

constexpr std::pair<std::string_view, FilterFunction> kSequenceFilters[] = {
    {"list", list_filter},   {"first", first_filter},        {"last", last_filter},
    {"join", join_filter},   {"items", items_filter},        {"dictsort", dictsort_filter},
    {"sort", sort_filter},   {"reverse", reverse_filter},    {"unique", unique_filter},
    {"sum", sum_filter},     {"min", extreme_filter<false>}, {"max", extreme_filter<true>},
    {"batch", batch_filter}, {"groupby", groupby_filter},
};

}  // namespace

FilterTable sequence_filters() {
  return kSequenceFilters;
}

}  // namespace lockstep::text::jinja
