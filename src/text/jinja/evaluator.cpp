// Expressions. Each kind has a function of its own, kept out of line, so that a level of nesting takes little stack.

#include <algorithm>

#include "text/jinja/access.hpp"
#include "text/jinja/filters.hpp"
#include "text/jinja/format.hpp"
#include "text/jinja/interpreter.hpp"
#include "text/jinja/interpreter_scope.hpp"
#include "text/jinja/operators.hpp"
#include "text/jinja/predicates.hpp"

namespace lockstep::text::jinja {

Result<Value> Interpreter::evaluate(const Expr& expr) {
  if (expr.kind == ExprKind::Constant) return expr.constant;
  LOCKSTEP_TRY(enter(expr.line));
  auto value = dispatch(expr);
  --depth_;
  if (!value && error_line_ == 0) error_line_ = expr.line;
  return value;
}

Result<Value> Interpreter::dispatch(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::Constant:
      return expr.constant;
    case ExprKind::Name:
      return name(expr);
    case ExprKind::List:
    case ExprKind::Tuple:
      return collection(expr);
    case ExprKind::Dict:
      return dict(expr);
    case ExprKind::Arithmetic:
      return arithmetic_chain(expr);
    case ExprKind::Concat:
      return concatenation(expr);
    case ExprKind::And:
    case ExprKind::Or:
    case ExprKind::Not:
      return logical(expr);
    case ExprKind::Negate:
    case ExprKind::Plus:
      return sign(expr);
    case ExprKind::Compare:
      return comparison(expr);
    case ExprKind::Conditional:
      return conditional(expr);
    case ExprKind::Attribute:
    case ExprKind::Item:
      return member(expr);
    case ExprKind::Slice:
      return slice_of(expr);
    case ExprKind::Call:
      return call(expr);
    case ExprKind::Filter:
      return filter(expr);
    case ExprKind::Test:
      return test(expr);
  }
  return Value();
}

Result<Value> Interpreter::name(const Expr& expr) {
  if (const Value* found = find(expr.id)) {
    // An undefined parameter is reported by its name.
    return found->is_undefined() ? Value(Undefined{&expr, Absence::Missing}) : *found;
  }
  return Value(Undefined{&expr, Absence::Missing});
}

[[gnu::noinline]] Result<Value> Interpreter::collection(const Expr& expr) {
  std::vector<Value> items;
  items.reserve(expr.operands.size());
  for (const ExprPtr& operand : expr.operands) items.push_back(LOCKSTEP_TRY(evaluate(*operand)));
  return runtime_.sequence(expr.kind == ExprKind::List ? SequenceKind::List : SequenceKind::Tuple, std::move(items));
}

[[gnu::noinline]] Result<Value> Interpreter::dict(const Expr& expr) {
  std::vector<std::pair<Value, Value>> entries;
  entries.reserve(expr.operands.size() / 2);
  for (std::size_t i = 0; i < expr.operands.size(); i += 2) {
    Value key = LOCKSTEP_TRY(evaluate(*expr.operands[i]));
    Value value = LOCKSTEP_TRY(evaluate(*expr.operands[i + 1]));
    entries.emplace_back(std::move(key), std::move(value));
  }
  return runtime_.unique_dict(std::move(entries));
}

[[gnu::noinline]] Result<Value> Interpreter::arithmetic_chain(const Expr& expr) {
  Value left = LOCKSTEP_TRY(evaluate(*expr.operands[0]));
  for (std::size_t i = 0; i < expr.operators.size(); ++i) {
    const Value right = LOCKSTEP_TRY(evaluate(*expr.operands[i + 1]));
    left = LOCKSTEP_TRY(arithmetic(runtime_, expr.operators[i], left, right));
  }
  return left;
}

[[gnu::noinline]] Result<Value> Interpreter::concatenation(const Expr& expr) {
  TextBuilder out(runtime_.budget());
  for (const ExprPtr& operand : expr.operands) {
    const Value value = LOCKSTEP_TRY(evaluate(*operand));
    const TextPtr text = LOCKSTEP_TRY(to_text(runtime_, value));
    out.append(*text);
  }
  return Value(LOCKSTEP_TRY(out.finish()));
}

[[gnu::noinline]] Result<Value> Interpreter::logical(const Expr& expr) {
  Value value = LOCKSTEP_TRY(evaluate(*expr.operands[0]));
  if (expr.kind == ExprKind::Not) return Value(!is_truthy(value));
  const bool stops_at = expr.kind == ExprKind::Or;
  for (std::size_t i = 1; i < expr.operands.size() && is_truthy(value) != stops_at; ++i) {
    value = LOCKSTEP_TRY(evaluate(*expr.operands[i]));
  }
  return value;
}

[[gnu::noinline]] Result<Value> Interpreter::sign(const Expr& expr) {
  const Value value = LOCKSTEP_TRY(evaluate(*expr.operands[0]));
  if (expr.kind == ExprKind::Negate) return negate(value);
  if (value.get<double>() != nullptr) return value;
  const auto number = LOCKSTEP_TRY(as_integer(value));
  if (!number) return type_error("a sign needs a number", value);
  return Value(*number);
}

[[gnu::noinline]] Result<Value> Interpreter::comparison(const Expr& expr) {
  Value left = LOCKSTEP_TRY(evaluate(*expr.operands[0]));
  for (std::size_t i = 0; i < expr.operators.size(); ++i) {
    Value right = LOCKSTEP_TRY(evaluate(*expr.operands[i + 1]));
    if (!LOCKSTEP_TRY(compare_with(runtime_, expr.operators[i], left, right))) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

[[gnu::noinline]] Result<Value> Interpreter::conditional(const Expr& expr) {
  const Value condition = LOCKSTEP_TRY(evaluate(*expr.operands[0]));
  if (is_truthy(condition)) return evaluate(*expr.operands[1]);
  if (expr.operands.size() == 3) return evaluate(*expr.operands[2]);
  return Value(Undefined{&expr, Absence::NoElse});
}

[[gnu::noinline]] Result<Value> Interpreter::member(const Expr& expr) {
  const Value object = LOCKSTEP_TRY(evaluate(*expr.operands[0]));
  if (expr.kind == ExprKind::Attribute) return get_attribute(runtime_, object, expr.name, &expr);
  const Value index = LOCKSTEP_TRY(evaluate(*expr.operands[1]));
  return get_item(runtime_, object, index, &expr);
}

[[gnu::noinline]] Result<Value> Interpreter::slice_of(const Expr& expr) {
  const Value object = LOCKSTEP_TRY(evaluate(*expr.operands[0]));
  Value bounds[3];
  const Value* given[3] = {};
  for (std::size_t i = 0; i < 3; ++i) {
    if (expr.operands[i + 1] == nullptr) continue;
    bounds[i] = LOCKSTEP_TRY(evaluate(*expr.operands[i + 1]));
    given[i] = &bounds[i];
  }
  return get_slice(runtime_, object, given[0], given[1], given[2]);
}

[[gnu::noinline]] Result<Arguments> Interpreter::arguments_of(const Expr& expr) {
  Arguments all;
  if (expr.arguments == nullptr) return all;
  const CallArguments& given = *expr.arguments;
  for (const ExprPtr& argument : given.positional) all.positional.push_back(LOCKSTEP_TRY(evaluate(*argument)));
  for (const auto& [key, argument] : given.named) all.named.emplace_back(key, LOCKSTEP_TRY(evaluate(*argument)));
  if (given.extra_positional != nullptr) {
    const Value extra = LOCKSTEP_TRY(evaluate(*given.extra_positional));
    const SequencePtr items = LOCKSTEP_TRY(runtime_.iterate(extra));
    all.positional.insert(all.positional.end(), items->items.begin(), items->items.end());
  }
  if (given.extra_named == nullptr) return all;
  const Value extra = LOCKSTEP_TRY(evaluate(*given.extra_named));
  if (extra.dict() == nullptr) return type_error("** needs a dict", extra);
  LOCKSTEP_TRY(runtime_.budget().spend(extra.dict()->entries.size()));
  for (const auto& [key, value] : extra.dict()->entries) {
    if (key.text() == nullptr) return type_error("** needs names as keys", key);
    const std::string& name = key.text()->bytes;
    const bool twice =
        std::any_of(given.named.begin(), given.named.end(), [&](const auto& other) { return other.first == name; });
    if (twice) return fail(ErrorKind::Invalid, "argument '{}' is given twice", name);
    all.named.emplace_back(name, value);
  }
  return all;
}

[[gnu::noinline]] Result<Value> Interpreter::call(const Expr& expr) {
  const Value callee = LOCKSTEP_TRY(evaluate(*expr.operands[0]));
  const Arguments arguments = LOCKSTEP_TRY(arguments_of(expr));
  return call_value(callee, arguments);
}

Result<Value> Interpreter::call_value(const Value& callee, const Arguments& arguments) {
  const Function* const function = callee.function();
  if (function == nullptr) return type_error("only functions can be called", callee);
  if (function->macro != nullptr) return call_macro(*function->macro, arguments);
  return function->native(runtime_, function->self, arguments);
}

[[gnu::noinline]] Result<Value> Interpreter::call_macro(const MacroClosure& closure, const Arguments& arguments) {
  const Scope scope(*this, closure.frame);
  LOCKSTEP_TRY(bind_parameters(*closure.macro, arguments));
  TextBuilder builder(runtime_.budget());
  const Output output(*this, builder);
  LOCKSTEP_TRY(execute(closure.macro->body));
  return Value(LOCKSTEP_TRY(builder.finish()));
}

/// Parameters first, then what the body may ask for beyond them.
[[gnu::noinline]] Status Interpreter::bind_parameters(const Macro& macro, const Arguments& arguments) {
  for (const auto& [key, value] : arguments.named) {
    for (std::size_t i = 0; i < std::min(arguments.positional.size(), macro.parameters.size()); ++i) {
      if (macro.parameters[i].name == key) return fail(ErrorKind::Invalid, "argument '{}' is given twice", key);
    }
  }
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& argument) { return argument.first == parameter.name; });
    Value value(Undefined{nullptr, Absence::Parameter});
    if (i < arguments.positional.size()) {
      value = arguments.positional[i];
    } else if (named != arguments.named.end()) {
      value = named->second;
    } else if (parameter.default_value != nullptr) {
      value = LOCKSTEP_TRY(evaluate(*parameter.default_value));
    }
    set(parameter.id, std::move(value));
  }
  return bind_rest(macro, arguments);
}

[[gnu::noinline]] Status Interpreter::bind_rest(const Macro& macro, const Arguments& arguments) {
  const std::size_t count = macro.parameters.size();
  if (arguments.positional.size() > count && !macro.uses_varargs) {
    return fail(ErrorKind::Invalid, "macro '{}' takes at most {} arguments", macro.name, count);
  }
  Value caller(Undefined{nullptr, Absence::Parameter});
  std::vector<std::pair<Value, Value>> rest;
  for (const auto& [key, value] : arguments.named) {
    const bool is_parameter =
        std::any_of(macro.parameters.begin(), macro.parameters.end(),
                    [&, &name = key](const Parameter& parameter) { return parameter.name == name; });
    if (is_parameter) continue;
    if (key == "caller" && macro.uses_caller) {
      caller = value;
    } else if (macro.uses_kwargs) {
      rest.emplace_back(LOCKSTEP_TRY(runtime_.text(key)), value);
    } else {
      return fail(ErrorKind::Invalid, "macro '{}' has no parameter '{}'", macro.name,
                  std::string_view(key).substr(0, 60));
    }
  }
  if (macro.uses_caller) set(program_.caller, std::move(caller));
  if (macro.uses_kwargs) set(program_.kwargs, LOCKSTEP_TRY(runtime_.dict(std::move(rest))));
  if (macro.uses_varargs) {
    std::vector<Value> extra;
    for (std::size_t i = count; i < arguments.positional.size(); ++i) extra.push_back(arguments.positional[i]);
    set(program_.varargs, LOCKSTEP_TRY(runtime_.tuple(std::move(extra))));
  }
  return {};
}

[[gnu::noinline]] Result<Value> Interpreter::filter(const Expr& expr) {
  const Value input =
      expr.operands[0] == nullptr ? std::exchange(block_input_, Value()) : LOCKSTEP_TRY(evaluate(*expr.operands[0]));
  const Arguments arguments = LOCKSTEP_TRY(arguments_of(expr));
  LOCKSTEP_TRY(check_filter(expr.name));
  return find_filter(expr.name)(runtime_, input, arguments);
}

[[gnu::noinline]] Result<Value> Interpreter::test(const Expr& expr) {
  const Value value = LOCKSTEP_TRY(evaluate(*expr.operands[0]));
  const Arguments arguments = LOCKSTEP_TRY(arguments_of(expr));
  const Predicate predicate = find_predicate(expr.name);
  if (predicate == nullptr) return fail(ErrorKind::Invalid, "there is no test named '{}'", expr.name);
  return Value(LOCKSTEP_TRY(predicate(runtime_, value, arguments)));
}

}  // namespace lockstep::text::jinja
