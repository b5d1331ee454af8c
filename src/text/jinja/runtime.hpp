// What native functions, filters and tests get to work with: the budget, and the ways to make values under it.
#pragma once

#include <ctime>
#include <deque>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.hpp"
#include "base/result.hpp"
#include "text/jinja/budget.hpp"
#include "text/jinja/limits.hpp"
#include "text/jinja/value.hpp"

namespace lockstep::text::jinja {

class Runtime {
 public:
  Runtime(const TemplateLimits& limits, std::function<std::tm()> clock)
      : budget_(limits), limits_(limits), clock_(std::move(clock)) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  ~Runtime();

  [[nodiscard]] Budget& budget() { return budget_; }
  [[nodiscard]] const TemplateLimits& limits() const { return limits_; }
  [[nodiscard]] std::tm now() const { return clock_(); }

  /// A text that is literal as a whole or not at all. `bytes` must be valid UTF-8.
  Result<Value> text(std::string_view bytes, bool literal = false);
  /// Collections; their depth and size are checked.
  Result<Value> sequence(SequenceKind kind, std::vector<Value> items, const RangeBounds& bounds = {});
  Result<Value> list(std::vector<Value> items) { return sequence(SequenceKind::List, std::move(items)); }
  Result<Value> tuple(std::vector<Value> items) { return sequence(SequenceKind::Tuple, std::move(items)); }
  Result<Value> range(const RangeBounds& bounds);
  /// Entries with distinct, hashable keys.
  Result<Value> dict(std::vector<std::pair<Value, Value>> entries);
  /// Entries in which a later key replaces the value of an equal one. Errors: Invalid (a key that cannot be hashed).
  Result<Value> unique_dict(std::vector<std::pair<Value, Value>> entries);
  Result<Value> bound_method(std::string_view name, NativeFunction native, Value self);
  /// A namespace or a macro lives until the rendering ends.
  Result<Namespace*> make_namespace();
  Status set_attribute(Namespace& space, std::string_view name, Value value);

  /// A value of the context. Every string in it, keys included, is literal if `literal` is set. Errors: Invalid (not
  /// UTF-8), Limit.
  Result<Value> from_json(const OrderedJson& json, bool literal);

  /// The elements of anything that can be walked: characters, keys, elements; a generator is used up. Errors: Invalid.
  Result<SequencePtr> iterate(const Value& value);
  /// len(). Errors: Invalid.
  Result<std::int64_t> length(const Value& value);

  /// The text of raise_exception, once a template called it.
  [[nodiscard]] bool raised() const { return raised_; }
  void set_raised() { raised_ = true; }

 private:
  Result<Value> from_json(const OrderedJson& json, bool literal, std::uint32_t depth);
  Result<SequencePtr> share(Result<Value> made);

  Budget budget_;
  TemplateLimits limits_;
  std::function<std::tm()> clock_;
  std::deque<Namespace> namespaces_;
  std::vector<Charge> namespace_charges_;
  bool raised_ = false;
};

/// The arguments of a call matched with parameter names, as Python matches them.
class Parameters {
 public:
  /// Errors: Invalid (too many, unknown, given twice; one of the first `required` missing).
  static Result<Parameters> bind(std::string_view callee, const Arguments& arguments,
                                 std::initializer_list<std::string_view> names, std::size_t required = 0);

  /// The argument, or null if it was not given.
  [[nodiscard]] const Value* get(std::size_t index) const { return values_[index]; }
  /// The argument, or undefined.
  [[nodiscard]] Value value(std::size_t index) const { return values_[index] == nullptr ? Value() : *values_[index]; }
  [[nodiscard]] bool truth(std::size_t index, bool otherwise) const {
    return values_[index] == nullptr ? otherwise : is_truthy(*values_[index]);
  }
  /// An integer argument; none and a missing one give `otherwise`. Errors: Invalid.
  Result<std::int64_t> integer(std::size_t index, std::int64_t otherwise) const;
  /// A string argument. Errors: Invalid.
  Result<TextPtr> text(std::size_t index, std::string_view otherwise = {}) const;

 private:
  std::string_view callee_;
  std::vector<const Value*> values_;
};

/// "expected a str, got int" and the like, with the error of an undefined value in its place.
[[nodiscard]] tl::unexpected<Error> type_error(std::string_view what, const Value& value);
/// The error of using an undefined value.
[[nodiscard]] tl::unexpected<Error> undefined_error(const Value& value);

/// A Python integer: int or bool. Nothing for other types. Errors: Limit for integers beyond 63 bits.
Result<std::optional<std::int64_t>> as_integer(const Value& value);

}  // namespace lockstep::text::jinja
