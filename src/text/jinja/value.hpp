// Values of the template language: Python's, as far as chat templates can see them.
//
// Containers are immutable, as in Jinja2's immutable sandbox, and know their nesting depth, which is bounded; so there
// are no cycles among them and every walk over a value ends. The only thing a template can change is a namespace, which
// the rendering owns; values merely point to it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.hpp"
#include "text/jinja/budget.hpp"
#include "text/jinja/text.hpp"

namespace lockstep::text::jinja {

struct Expr;
struct Sequence;
struct Dict;
struct Namespace;
struct Function;
struct Loop;

using SequencePtr = std::shared_ptr<const Sequence>;
using DictPtr = std::shared_ptr<const Dict>;
using FunctionPtr = std::shared_ptr<const Function>;
using LoopPtr = std::shared_ptr<Loop>;

/// Why a value is undefined; only for the error of whoever uses it.
enum class Absence : std::uint8_t {
  Missing,    ///< no such variable, attribute or element
  Unsafe,     ///< an attribute that the sandbox hides
  Empty,      ///< first, last, min, max of nothing
  Parameter,  ///< a macro's parameter that was not given
  NoElse,     ///< an inline if without else
};

struct Undefined {
  const Expr* origin = nullptr;  ///< the expression that found nothing, if there is one
  Absence absence = Absence::Missing;
};

struct None {};

/// An integer of the input between 2^63 and 2^64 - 1. It can be printed and compared; arithmetic on it is a Limit
/// error.
struct BigInteger {
  std::uint64_t value;
};

/// No container is nested deeper than this.
inline constexpr std::uint32_t kMaxValueDepth = 250;

/// Whether T is one of the alternatives of a variant.
template <class T, class Variant>
inline constexpr bool kIsAlternative = false;
template <class T, class... Alternatives>
inline constexpr bool kIsAlternative<T, std::variant<Alternatives...>> = (std::is_same_v<T, Alternatives> || ...);

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, std::int64_t, BigInteger, double, TextPtr, SequencePtr, DictPtr,
                            Namespace*, FunctionPtr, LoopPtr>;

  Value() = default;
  /// Implicit from exactly the alternatives of Data, without conversions between them.
  template <class T>
  // NOLINTNEXTLINE(google-explicit-constructor,bugprone-forwarding-reference-overload)
  requires kIsAlternative<std::remove_cvref_t<T>, Data> Value(T&& data)
      : data_(std::in_place_type<std::remove_cvref_t<T>>, std::forward<T>(data)) {}

  template <class T>
  [[nodiscard]] const T* get() const {
    return std::get_if<T>(&data_);
  }
  [[nodiscard]] bool is_undefined() const { return get<Undefined>() != nullptr; }
  [[nodiscard]] bool is_none() const { return get<None>() != nullptr; }
  [[nodiscard]] const Text* text() const { return raw<TextPtr>(); }
  [[nodiscard]] const Sequence* sequence() const { return raw<SequencePtr>(); }
  [[nodiscard]] const Dict* dict() const { return raw<DictPtr>(); }
  [[nodiscard]] const Function* function() const { return raw<FunctionPtr>(); }
  [[nodiscard]] Namespace* name_space() const { return raw<Namespace*>(); }
  [[nodiscard]] Loop* loop() const { return raw<LoopPtr>(); }
  [[nodiscard]] const Data& data() const { return data_; }
  [[nodiscard]] std::uint32_t depth() const;

 private:
  template <class P>
  [[nodiscard]] auto raw() const -> decltype(&**std::declval<const P*>()) {
    const P* pointer = std::get_if<P>(&data_);
    return pointer == nullptr ? nullptr : &**pointer;
  }
  Data data_;
};

enum class SequenceKind : std::uint8_t { List, Tuple, Range, Generator, Keys, Values, Items, Group };

struct RangeBounds {
  std::int64_t start = 0, stop = 0, step = 1;
};

/// An ordered collection. A generator can be walked once; `spent` remembers that it was.
struct Sequence {
  SequenceKind kind = SequenceKind::List;
  std::vector<Value> items;
  RangeBounds range;  ///< only for Range, and used to print it
  std::uint32_t depth = 1;
  mutable bool spent = false;
  Charge charge;
};

/// Keys in order of insertion; hashable values (text, numbers, booleans, none, tuples of these).
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  std::uint32_t depth = 1;
  Charge charge;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
  [[nodiscard]] const Value* find(std::string_view name) const;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Runtime;
struct MacroClosure;

/// A function or method of the language. `self` is what a method is bound to.
using NativeFunction = Result<Value> (*)(Runtime& runtime, const Value& self, const Arguments& arguments);

/// Something to call: a macro of the template, or a native function.
struct Function {
  std::string_view name;
  NativeFunction native = nullptr;
  Value self;
  const MacroClosure* macro = nullptr;
};

/// The name of the type as Python has it ("str", "NoneType").
[[nodiscard]] std::string_view type_name(const Value& value);
[[nodiscard]] bool is_truthy(const Value& value);
/// A generator cannot be counted or indexed.
[[nodiscard]] bool is_generator(const Value& value);
[[nodiscard]] bool is_list(const Value& value);
[[nodiscard]] bool is_tuple(const Value& value);

}  // namespace lockstep::text::jinja
