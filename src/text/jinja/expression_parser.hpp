// The expression half of the parser. Precedence, lowest first: inline if, or, and, not, comparisons, + -, ~, * / // %,
// **, unary signs, filters and tests, attributes, elements and calls.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "text/jinja/ast.hpp"
#include "text/jinja/limits.hpp"
#include "text/jinja/token_stream.hpp"

namespace lockstep::text::jinja {

class ExpressionParser {
 public:
  ExpressionParser(TokenStream& tokens, Program& program, const TemplateLimits& limits)
      : tokens_(tokens), program_(program), max_nesting_(limits.max_nesting) {}

  Result<ExprPtr> expression(bool with_condition = true);
  /// One expression, or several with commas between them as a tuple. `end_name` is a word that may end the tuple.
  Result<ExprPtr> tuple(bool with_condition = true, std::string_view end_name = {}, bool in_parentheses = false);
  /// A name, literal or parenthesised expression.
  Result<ExprPtr> primary();
  /// A filter chain; `inline_start` when it begins without a bar, as in a filter block. `operand` may be null.
  Result<ExprPtr> filters(ExprPtr operand, bool inline_start);

  /// Enters a level of nesting, left by leave(). Errors: Limit.
  Status enter();
  void leave() { --nesting_; }

  /// Macros whose bodies are being parsed, innermost last; names inside mark what they use.
  std::vector<Macro*> open_macros;
  /// Filters and tests that do not exist. Inside of an if they are errors only when they run, so whoever parses one
  /// cuts this list back to its size before.
  std::vector<Error> unknown;

 private:
  Result<ExprPtr> conditional();
  Result<ExprPtr> logical_or();
  Result<ExprPtr> logical_and();
  Result<ExprPtr> logical_not();
  Result<ExprPtr> comparison();
  Result<ExprPtr> sum();
  Result<ExprPtr> concatenation();
  Result<ExprPtr> product();
  Result<ExprPtr> power();
  Result<ExprPtr> unary(bool with_filters);
  Result<ExprPtr> signed_operand(ExprKind kind);
  Result<ExprPtr> postfix(ExprPtr operand);
  Result<ExprPtr> filters_and_tests(ExprPtr operand);
  Result<ExprPtr> attribute(ExprPtr operand);
  Result<ExprPtr> subscript(ExprPtr operand);
  Result<ExprPtr> call(ExprPtr operand);
  Result<ExprPtr> test(ExprPtr operand);
  Result<ExprPtr> name();
  Result<ExprPtr> string();
  Result<ExprPtr> list();
  Result<ExprPtr> dict();
  Result<std::unique_ptr<CallArguments>> arguments();
  Status argument(CallArguments& arguments);
  Result<std::string> dotted_name();

  using Rule = Result<ExprPtr> (ExpressionParser::*)();
  Result<ExprPtr> chain(ExprKind kind, Rule operand,
                        std::initializer_list<std::pair<std::string_view, Operator>> symbols);
  ExprPtr make(ExprKind kind) const;
  /// Computes the depth of a finished node and checks it.
  Result<ExprPtr> finish(ExprPtr expr) const;

  TokenStream& tokens_;
  Program& program_;
  std::size_t max_nesting_, nesting_ = 0;
};

}  // namespace lockstep::text::jinja
