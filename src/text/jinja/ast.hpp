// The parsed template. Trees are never deeper than TemplateLimits::max_nesting, so that walks and destruction may
// recurse.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/jinja/value.hpp"

namespace lockstep::text::jinja {

using NameId = std::uint32_t;

enum class ExprKind : std::uint8_t {
  Constant,
  Name,         ///< name, id
  List,         ///< operands
  Tuple,        ///< operands
  Dict,         ///< operands: key, value, key, value, ...
  Arithmetic,   ///< operands joined by operators, from the left
  Concat,       ///< operands joined by ~
  And,          ///< operands
  Or,           ///< operands
  Not,          ///< operand
  Negate,       ///< operand
  Plus,         ///< operand
  Compare,      ///< operands joined by operators, a chain as in Python
  Conditional,  ///< operands: condition, value, and the value of else if there is one
  Attribute,    ///< operand . name
  Item,         ///< operands: object, index
  Slice,        ///< operands: object, start, stop, step; the last three may be null
  Call,         ///< operand (arguments)
  Filter,       ///< operand | name(arguments); the operand is null in a filter block
  Test,         ///< operand is name(arguments)
};

enum class Operator : std::uint8_t {
  Add,
  Subtract,
  Multiply,
  Divide,
  FloorDivide,
  Modulo,
  Power,
  Equal,
  NotEqual,
  Less,
  LessEqual,
  Greater,
  GreaterEqual,
  In,
  NotIn,
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr extra_positional, extra_named;  ///< *args, **kwargs; may be null
};

struct Expr {
  ExprKind kind = ExprKind::Constant;
  std::uint32_t line = 0;
  std::uint32_t depth = 1;
  NameId id = 0;
  std::string name;
  Value constant;
  std::vector<ExprPtr> operands;
  std::vector<Operator> operators;
  std::unique_ptr<CallArguments> arguments;
};

enum class StmtKind : std::uint8_t {
  Data,         ///< text
  Output,       ///< expression
  If,           ///< branches, otherwise
  For,          ///< target, expression, condition (may be null), body, otherwise
  Set,          ///< target, expression
  SetBlock,     ///< target, expression (a filter, may be null), body
  Macro,        ///< macro
  Call,         ///< expression, macro (the caller)
  FilterBlock,  ///< expression (the filter), body
  With,         ///< targets and values, body
  Scope,        ///< body in a scope of its own (generation blocks)
  Break,
  Continue,
};

/// Where an assignment goes: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  NameId id = 0;
  std::string name, attribute;
  bool is_tuple = false;
  std::vector<Target> elements;
};

struct Stmt;
using Block = std::vector<Stmt>;

struct Parameter {
  NameId id = 0;
  std::string name;
  ExprPtr default_value;  ///< may be null
};

struct Macro {
  std::string name;
  NameId id = 0;
  std::vector<Parameter> parameters;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
  Block body;
};

struct Branch {
  ExprPtr condition;
  Block body;
};

struct Stmt {
  StmtKind kind = StmtKind::Data;
  std::uint32_t line = 0;
  TextPtr text;
  ExprPtr expression, condition;
  Target target;
  std::vector<std::pair<Target, ExprPtr>> bindings;
  std::vector<Branch> branches;
  Block body, otherwise;
  std::unique_ptr<Macro> macro;
};

/// A compiled template. Names are numbered, so that variables are found without comparing strings.
struct Program {
  Block body;
  std::unordered_map<std::string, NameId> names;
  NameId loop = 0, caller = 0, varargs = 0, kwargs = 0;

  NameId intern(const std::string& name) {
    return names.try_emplace(name, static_cast<NameId>(names.size())).first->second;
  }
};

}  // namespace lockstep::text::jinja
