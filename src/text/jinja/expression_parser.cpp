#include "text/jinja/expression_parser.hpp"

#include <algorithm>

#include "text/jinja/filters.hpp"
#include "text/jinja/predicates.hpp"

namespace lockstep::text::jinja {
namespace {

void deepen(Expr& expr, const ExprPtr& child) {
  if (child != nullptr) expr.depth = std::max(expr.depth, child->depth + 1);
}

}  // namespace

ExprPtr ExpressionParser::make(ExprKind kind) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = tokens_.current().line;
  return expr;
}

Result<ExprPtr> ExpressionParser::finish(ExprPtr expr) const {
  for (const ExprPtr& child : expr->operands) deepen(*expr, child);
  if (expr->arguments != nullptr) {
    for (const ExprPtr& child : expr->arguments->positional) deepen(*expr, child);
    for (const auto& [key, child] : expr->arguments->named) deepen(*expr, child);
    deepen(*expr, expr->arguments->extra_positional);
    deepen(*expr, expr->arguments->extra_named);
  }
  if (expr->depth > max_nesting_) {
    return fail(ErrorKind::Limit, "line {}: an expression nested deeper than {} levels", expr->line, max_nesting_);
  }
  return expr;
}

Status ExpressionParser::enter() {
  if (nesting_ >= max_nesting_) {
    return fail(ErrorKind::Limit, "line {}: nested deeper than {} levels", tokens_.current().line, max_nesting_);
  }
  ++nesting_;
  return {};
}

Result<ExprPtr> ExpressionParser::expression(bool with_condition) {
  LOCKSTEP_TRY(enter());
  auto result = with_condition ? conditional() : logical_or();
  leave();
  return result;
}

Result<ExprPtr> ExpressionParser::tuple(bool with_condition, std::string_view end_name, bool in_parentheses) {
  ExprPtr all = make(ExprKind::Tuple);
  bool is_tuple = false;
  while (true) {
    if (!all->operands.empty()) LOCKSTEP_TRY(tokens_.expect_symbol(","));
    if (tokens_.is(TokenKind::VariableEnd) || tokens_.is(TokenKind::BlockEnd) || tokens_.is_symbol(")") ||
        (!end_name.empty() && tokens_.is_name(end_name))) {
      break;
    }
    all->operands.push_back(LOCKSTEP_TRY(expression(with_condition)));
    if (!tokens_.is_symbol(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && all->operands.size() == 1) return std::move(all->operands[0]);
  if (!is_tuple && !in_parentheses) return tokens_.unexpected("an expression");
  return finish(std::move(all));
}

Result<ExprPtr> ExpressionParser::conditional() {
  const std::size_t unknown_before = unknown.size();
  ExprPtr value = LOCKSTEP_TRY(logical_or());
  while (tokens_.is_name("if")) {
    ExprPtr expr = make(ExprKind::Conditional);
    tokens_.take();
    ExprPtr condition = LOCKSTEP_TRY(logical_or());
    expr->operands.push_back(std::move(condition));
    expr->operands.push_back(std::move(value));
    if (tokens_.skip_name("else")) expr->operands.push_back(LOCKSTEP_TRY(expression()));
    value = LOCKSTEP_TRY(finish(std::move(expr)));
    unknown.resize(unknown_before);
  }
  return value;
}

Result<ExprPtr> ExpressionParser::logical_or() {
  ExprPtr first = LOCKSTEP_TRY(logical_and());
  if (!tokens_.is_name("or")) return first;
  ExprPtr expr = make(ExprKind::Or);
  expr->operands.push_back(std::move(first));
  while (tokens_.skip_name("or")) expr->operands.push_back(LOCKSTEP_TRY(logical_and()));
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::logical_and() {
  ExprPtr first = LOCKSTEP_TRY(logical_not());
  if (!tokens_.is_name("and")) return first;
  ExprPtr expr = make(ExprKind::And);
  expr->operands.push_back(std::move(first));
  while (tokens_.skip_name("and")) expr->operands.push_back(LOCKSTEP_TRY(logical_not()));
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::logical_not() {
  if (!tokens_.is_name("not")) return comparison();
  ExprPtr expr = make(ExprKind::Not);
  tokens_.take();
  LOCKSTEP_TRY(enter());
  auto operand = logical_not();
  leave();
  expr->operands.push_back(LOCKSTEP_TRY(std::move(operand)));
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::comparison() {
  static constexpr std::pair<std::string_view, Operator> kSymbols[] = {
      {"==", Operator::Equal},     {"!=", Operator::NotEqual}, {"<", Operator::Less},
      {"<=", Operator::LessEqual}, {">", Operator::Greater},   {">=", Operator::GreaterEqual}};
  ExprPtr expr = make(ExprKind::Compare);
  expr->operands.push_back(LOCKSTEP_TRY(sum()));
  while (true) {
    const auto* const symbol = std::find_if(std::begin(kSymbols), std::end(kSymbols),
                                            [&](const auto& entry) { return tokens_.is_symbol(entry.first); });
    if (symbol != std::end(kSymbols)) {
      expr->operators.push_back(symbol->second);
      tokens_.take();
    } else if (tokens_.skip_name("in")) {
      expr->operators.push_back(Operator::In);
    } else if (tokens_.is_name("not") && tokens_.look().kind == TokenKind::Name && tokens_.look().text == "in") {
      tokens_.take();
      tokens_.take();
      expr->operators.push_back(Operator::NotIn);
    } else {
      break;
    }
    expr->operands.push_back(LOCKSTEP_TRY(sum()));
  }
  if (expr->operators.empty()) return std::move(expr->operands[0]);
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::chain(ExprKind kind, Rule operand,
                                        std::initializer_list<std::pair<std::string_view, Operator>> symbols) {
  ExprPtr first = LOCKSTEP_TRY((this->*operand)());
  ExprPtr expr;
  while (true) {
    const auto* const symbol =
        std::find_if(symbols.begin(), symbols.end(), [&](const auto& entry) { return tokens_.is_symbol(entry.first); });
    if (symbol == symbols.end()) break;
    if (expr == nullptr) {
      expr = make(kind);
      expr->operands.push_back(std::move(first));
    }
    expr->operators.push_back(symbol->second);
    tokens_.take();
    expr->operands.push_back(LOCKSTEP_TRY((this->*operand)()));
  }
  return expr == nullptr ? Result<ExprPtr>(std::move(first)) : finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::sum() {
  return chain(ExprKind::Arithmetic, &ExpressionParser::concatenation,
               {{"+", Operator::Add}, {"-", Operator::Subtract}});
}

Result<ExprPtr> ExpressionParser::concatenation() {
  return chain(ExprKind::Concat, &ExpressionParser::product, {{"~", Operator::Add}});
}

Result<ExprPtr> ExpressionParser::product() {
  return chain(
      ExprKind::Arithmetic, &ExpressionParser::power,
      {{"*", Operator::Multiply}, {"/", Operator::Divide}, {"//", Operator::FloorDivide}, {"%", Operator::Modulo}});
}

Result<ExprPtr> ExpressionParser::power() {
  ExprPtr first = LOCKSTEP_TRY(unary(true));
  if (!tokens_.is_symbol("**")) return first;
  ExprPtr expr = make(ExprKind::Arithmetic);
  expr->operands.push_back(std::move(first));
  while (tokens_.skip_symbol("**")) {
    expr->operators.push_back(Operator::Power);
    expr->operands.push_back(LOCKSTEP_TRY(unary(true)));
  }
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::unary(bool with_filters) {
  ExprPtr expr;
  if (tokens_.is_symbol("-")) {
    expr = LOCKSTEP_TRY(signed_operand(ExprKind::Negate));
  } else if (tokens_.is_symbol("+")) {
    expr = LOCKSTEP_TRY(signed_operand(ExprKind::Plus));
  } else {
    expr = LOCKSTEP_TRY(primary());
  }
  expr = LOCKSTEP_TRY(postfix(std::move(expr)));
  return with_filters ? filters_and_tests(std::move(expr)) : Result<ExprPtr>(std::move(expr));
}

Result<ExprPtr> ExpressionParser::signed_operand(ExprKind kind) {
  ExprPtr expr = make(kind);
  tokens_.take();
  LOCKSTEP_TRY(enter());
  auto operand = unary(false);
  leave();
  expr->operands.push_back(LOCKSTEP_TRY(std::move(operand)));
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::primary() {
  if (tokens_.is(TokenKind::Name)) return name();
  if (tokens_.is(TokenKind::String)) return string();
  if (tokens_.is(TokenKind::Integer) || tokens_.is(TokenKind::Float)) {
    ExprPtr expr = make(ExprKind::Constant);
    const Token token = tokens_.take();
    expr->constant = token.kind == TokenKind::Integer ? Value(token.integer) : Value(token.real);
    return expr;
  }
  if (tokens_.is_symbol("[")) return list();
  if (tokens_.is_symbol("{")) return dict();
  if (!tokens_.skip_symbol("(")) return tokens_.unexpected("an expression");
  ExprPtr inner = LOCKSTEP_TRY(tuple(true, {}, true));
  LOCKSTEP_TRY(tokens_.expect_symbol(")"));
  return inner;
}

Result<ExprPtr> ExpressionParser::name() {
  ExprPtr expr = make(ExprKind::Constant);
  std::string text = tokens_.take().text;
  if (text == "true" || text == "True" || text == "false" || text == "False") {
    expr->constant = Value(text[0] == 't' || text[0] == 'T');
  } else if (text == "none" || text == "None") {
    expr->constant = Value(None{});
  } else {
    expr->kind = ExprKind::Name;
    expr->id = program_.intern(text);
    for (Macro* const macro : open_macros) {
      macro->uses_caller |= text == "caller";
      macro->uses_varargs |= text == "varargs";
      macro->uses_kwargs |= text == "kwargs";
    }
    expr->name = std::move(text);
  }
  return expr;
}

Result<ExprPtr> ExpressionParser::string() {
  ExprPtr expr = make(ExprKind::Constant);
  std::string all = tokens_.take().text;
  while (tokens_.is(TokenKind::String)) all += tokens_.take().text;
  expr->constant = Value(make_constant(std::move(all)));
  return expr;
}

Result<ExprPtr> ExpressionParser::list() {
  ExprPtr expr = make(ExprKind::List);
  LOCKSTEP_TRY(tokens_.expect_symbol("["));
  while (!tokens_.is_symbol("]")) {
    if (!expr->operands.empty()) LOCKSTEP_TRY(tokens_.expect_symbol(","));
    if (tokens_.is_symbol("]")) break;
    expr->operands.push_back(LOCKSTEP_TRY(expression()));
  }
  LOCKSTEP_TRY(tokens_.expect_symbol("]"));
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::dict() {
  ExprPtr expr = make(ExprKind::Dict);
  LOCKSTEP_TRY(tokens_.expect_symbol("{"));
  while (!tokens_.is_symbol("}")) {
    if (!expr->operands.empty()) LOCKSTEP_TRY(tokens_.expect_symbol(","));
    if (tokens_.is_symbol("}")) break;
    expr->operands.push_back(LOCKSTEP_TRY(expression()));
    LOCKSTEP_TRY(tokens_.expect_symbol(":"));
    expr->operands.push_back(LOCKSTEP_TRY(expression()));
  }
  LOCKSTEP_TRY(tokens_.expect_symbol("}"));
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::postfix(ExprPtr operand) {
  while (true) {
    if (tokens_.is_symbol(".")) {
      operand = LOCKSTEP_TRY(attribute(std::move(operand)));
    } else if (tokens_.is_symbol("[")) {
      operand = LOCKSTEP_TRY(subscript(std::move(operand)));
    } else if (tokens_.is_symbol("(")) {
      operand = LOCKSTEP_TRY(call(std::move(operand)));
    } else {
      return operand;
    }
  }
}

Result<ExprPtr> ExpressionParser::filters_and_tests(ExprPtr operand) {
  while (true) {
    if (tokens_.is_symbol("|")) {
      operand = LOCKSTEP_TRY(filters(std::move(operand), false));
    } else if (tokens_.is_name("is")) {
      operand = LOCKSTEP_TRY(test(std::move(operand)));
    } else if (tokens_.is_symbol("(")) {
      operand = LOCKSTEP_TRY(call(std::move(operand)));
    } else {
      return operand;
    }
  }
}

Result<ExprPtr> ExpressionParser::attribute(ExprPtr operand) {
  ExprPtr expr = make(ExprKind::Attribute);
  tokens_.take();
  expr->operands.push_back(std::move(operand));
  if (tokens_.is(TokenKind::Integer)) {
    expr->kind = ExprKind::Item;
    expr->operands.push_back(LOCKSTEP_TRY(primary()));
  } else {
    expr->name = LOCKSTEP_TRY(tokens_.name());
  }
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::subscript(ExprPtr operand) {
  ExprPtr expr = make(ExprKind::Item);
  tokens_.take();
  expr->operands.push_back(std::move(operand));
  const auto at_part_end = [&] { return tokens_.is_symbol(":") || tokens_.is_symbol("]"); };
  ExprPtr first;
  if (!tokens_.is_symbol(":")) first = LOCKSTEP_TRY(expression());
  if (tokens_.is_symbol(":")) {
    expr->kind = ExprKind::Slice;
    expr->operands.push_back(std::move(first));
    for (int part = 0; part < 2; ++part) {
      const bool given = tokens_.skip_symbol(":") && !at_part_end();
      ExprPtr bound;
      if (given) bound = LOCKSTEP_TRY(expression());
      expr->operands.push_back(std::move(bound));
    }
  } else if (tokens_.is_symbol(",")) {
    ExprPtr several = make(ExprKind::Tuple);
    several->operands.push_back(std::move(first));
    while (tokens_.skip_symbol(",")) several->operands.push_back(LOCKSTEP_TRY(expression()));
    expr->operands.push_back(LOCKSTEP_TRY(finish(std::move(several))));
  } else {
    expr->operands.push_back(std::move(first));
  }
  LOCKSTEP_TRY(tokens_.expect_symbol("]"));
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::call(ExprPtr operand) {
  ExprPtr expr = make(ExprKind::Call);
  expr->operands.push_back(std::move(operand));
  expr->arguments = LOCKSTEP_TRY(arguments());
  return finish(std::move(expr));
}

Result<std::unique_ptr<CallArguments>> ExpressionParser::arguments() {
  auto all = std::make_unique<CallArguments>();
  LOCKSTEP_TRY(tokens_.expect_symbol("("));
  bool first = true;
  while (!tokens_.is_symbol(")")) {
    if (!first) {
      LOCKSTEP_TRY(tokens_.expect_symbol(","));
      if (tokens_.is_symbol(")")) break;
    }
    first = false;
    LOCKSTEP_TRY(argument(*all));
  }
  LOCKSTEP_TRY(tokens_.expect_symbol(")"));
  return all;
}

Status ExpressionParser::argument(CallArguments& arguments) {
  const auto misplaced = [&] { return tokens_.error("arguments in the wrong order"); };
  if (tokens_.skip_symbol("*")) {
    if (arguments.extra_positional != nullptr || arguments.extra_named != nullptr) return misplaced();
    arguments.extra_positional = LOCKSTEP_TRY(expression());
  } else if (tokens_.skip_symbol("**")) {
    if (arguments.extra_named != nullptr) return misplaced();
    arguments.extra_named = LOCKSTEP_TRY(expression());
  } else if (tokens_.is(TokenKind::Name) && tokens_.look().kind == TokenKind::Symbol && tokens_.look().text == "=") {
    if (arguments.extra_named != nullptr) return misplaced();
    std::string key = tokens_.take().text;
    tokens_.take();
    for (const auto& [other, value] : arguments.named) {
      if (other == key) return tokens_.error(fmt::format("argument '{}' is given twice", key));
    }
    ExprPtr value = LOCKSTEP_TRY(expression());
    arguments.named.emplace_back(std::move(key), std::move(value));
  } else {
    if (arguments.extra_positional != nullptr || arguments.extra_named != nullptr || !arguments.named.empty()) {
      return misplaced();
    }
    arguments.positional.push_back(LOCKSTEP_TRY(expression()));
  }
  return {};
}

Result<std::string> ExpressionParser::dotted_name() {
  std::string all = LOCKSTEP_TRY(tokens_.name());
  while (tokens_.skip_symbol(".")) {
    all += '.';
    all += LOCKSTEP_TRY(tokens_.name());
  }
  return all;
}

Result<ExprPtr> ExpressionParser::filters(ExprPtr operand, bool inline_start) {
  while (inline_start || tokens_.is_symbol("|")) {
    if (!inline_start) tokens_.take();
    inline_start = false;
    ExprPtr expr = make(ExprKind::Filter);
    expr->name = LOCKSTEP_TRY(dotted_name());
    if (const Status known = check_filter(expr->name); !known) {
      unknown.push_back(with_context(known.error(), fmt::format("line {}", expr->line)).value());
    }
    expr->operands.push_back(std::move(operand));
    if (tokens_.is_symbol("(")) expr->arguments = LOCKSTEP_TRY(arguments());
    operand = LOCKSTEP_TRY(finish(std::move(expr)));
  }
  return operand;
}

Result<ExprPtr> ExpressionParser::test(ExprPtr operand) {
  tokens_.take();
  ExprPtr negation;
  if (tokens_.is_name("not")) {
    negation = make(ExprKind::Not);
    tokens_.take();
  }
  ExprPtr expr = make(ExprKind::Test);
  expr->name = LOCKSTEP_TRY(dotted_name());
  if (find_predicate(expr->name) == nullptr) {
    unknown.push_back(tokens_.error(fmt::format("there is no test named '{}'", expr->name)).value());
  }
  expr->operands.push_back(std::move(operand));
  const bool starts_argument = tokens_.is(TokenKind::Name) || tokens_.is(TokenKind::String) ||
                               tokens_.is(TokenKind::Integer) || tokens_.is(TokenKind::Float) ||
                               tokens_.is_symbol("[") || tokens_.is_symbol("{");
  if (tokens_.is_symbol("(")) {
    expr->arguments = LOCKSTEP_TRY(arguments());
  } else if (starts_argument && !tokens_.is_name({"else", "or", "and"})) {
    if (tokens_.is_name("is")) return tokens_.error("tests cannot be chained with is");
    ExprPtr argument = LOCKSTEP_TRY(primary());
    expr->arguments = std::make_unique<CallArguments>();
    expr->arguments->positional.push_back(LOCKSTEP_TRY(postfix(std::move(argument))));
  }
  ExprPtr result = LOCKSTEP_TRY(finish(std::move(expr)));
  if (negation == nullptr) return result;
  negation->operands.push_back(std::move(result));
  return finish(std::move(negation));
}

}  // namespace lockstep::text::jinja
