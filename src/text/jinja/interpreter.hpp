// Runs a parsed template.
#pragma once

#include <ctime>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "text/jinja/ast.hpp"
#include "text/jinja/loop.hpp"
#include "text/jinja/runtime.hpp"

namespace lockstep::text::jinja {

/// Variables of one scope. Scopes are shared, since a macro keeps the one that it was defined in.
struct Frame {
  std::shared_ptr<Frame> parent;
  std::vector<std::pair<NameId, Value>> variables;
};
using FramePtr = std::shared_ptr<Frame>;

/// A macro together with the scope that its body sees.
struct MacroClosure {
  const Macro* macro = nullptr;
  FramePtr frame;
  Charge charge;
};

/// One rendering. Everything it makes dies with it.
class Interpreter {
 public:
  Interpreter(const Program& program, const TemplateLimits& limits, std::function<std::tm()> clock);
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  [[nodiscard]] Runtime& runtime() { return runtime_; }
  /// Whether the template mentions a name at all; values of other names need not be made.
  [[nodiscard]] bool mentions(const std::string& name) const { return program_.names.contains(name); }
  /// Defines a variable of the context.
  void define(const std::string& name, Value value);

  /// Runs the template into `out`. An error names the line, except for the message of raise_exception, which is passed
  /// on as it is.
  Status run(TextBuilder& out);

 private:
  enum class Flow : std::uint8_t { Next, Break, Continue };
  class Scope;
  class Output;

  Result<Flow> execute(const Block& block);
  Result<Flow> execute(const Stmt& stmt);
  Result<Flow> dispatch(const Stmt& stmt);
  Result<Flow> run_output(const Stmt& stmt);
  Result<Flow> run_if(const Stmt& stmt);
  Result<Flow> run_for(const Stmt& stmt);
  Result<Flow> run_iterations(const Stmt& stmt, const LoopPtr& loop);
  Result<Flow> run_set(const Stmt& stmt);
  Result<Flow> run_set_block(const Stmt& stmt);
  Result<Flow> run_macro(const Stmt& stmt);
  Result<Flow> run_call(const Stmt& stmt);
  Result<Flow> run_filter_block(const Stmt& stmt);
  Result<Flow> run_with(const Stmt& stmt);
  Result<std::optional<Value>> next_item(const Stmt& stmt, const Sequence& items, std::size_t& index,
                                         const FramePtr& around);
  Status assign(const Target& target, const Value& value);
  /// Runs a block in a scope of its own and keeps what it writes.
  Result<Flow> capture(const Block& block, Value& text);
  Result<Value> make_macro(const Macro& macro);

  Result<Value> evaluate(const Expr& expr);
  Result<Value> dispatch(const Expr& expr);
  Result<Value> name(const Expr& expr);
  Result<Value> collection(const Expr& expr);
  Result<Value> dict(const Expr& expr);
  Result<Value> arithmetic_chain(const Expr& expr);
  Result<Value> concatenation(const Expr& expr);
  Result<Value> logical(const Expr& expr);
  Result<Value> sign(const Expr& expr);
  Result<Value> comparison(const Expr& expr);
  Result<Value> conditional(const Expr& expr);
  Result<Value> member(const Expr& expr);
  Result<Value> slice_of(const Expr& expr);
  Result<Value> call(const Expr& expr);
  Result<Value> filter(const Expr& expr);
  Result<Value> test(const Expr& expr);
  Result<Arguments> arguments_of(const Expr& expr);
  Result<Value> call_value(const Value& callee, const Arguments& arguments);
  Result<Value> call_macro(const MacroClosure& closure, const Arguments& arguments);
  Status bind_parameters(const Macro& macro, const Arguments& arguments);
  Status bind_rest(const Macro& macro, const Arguments& arguments);

  Status enter(std::uint32_t line);
  void set(NameId id, Value value);
  [[nodiscard]] const Value* find(NameId id) const;

  Runtime runtime_;  // first, since all values are charged to it
  const Program& program_;
  std::deque<MacroClosure> closures_;
  FramePtr frame_;
  TextBuilder* out_ = nullptr;
  Value block_input_;  ///< what the filter of a filter block is applied to
  std::size_t depth_ = 0;
  std::uint32_t error_line_ = 0;  ///< of the innermost part that failed
};

}  // namespace lockstep::text::jinja
