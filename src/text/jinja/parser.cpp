#include "text/jinja/parser.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "text/jinja/expression_parser.hpp"
#include "text/jinja/token_stream.hpp"
#include "text/utf8.hpp"

namespace lockstep::text::jinja {
namespace {

using Names = std::initializer_list<std::string_view>;

class Parser {
 public:
  Parser(std::vector<Token> tokens, Program& program, const TemplateLimits& limits)
      : tokens_(std::move(tokens)), program_(program), expressions_(tokens_, program, limits) {}

  /// Statements up to one of the words `end`, which is left as the current token; with no words, up to the end.
  Result<Block> block(Names end) {
    Block all;
    while (!tokens_.is(TokenKind::End)) {
      if (tokens_.is(TokenKind::BlockBegin)) {
        tokens_.take();
        if (tokens_.is_name(end)) return all;
        all.push_back(LOCKSTEP_TRY(nested_statement()));
        LOCKSTEP_TRY(tokens_.expect(TokenKind::BlockEnd, "'%}'"));
      } else if (tokens_.is(TokenKind::Data)) {
        Stmt stmt = make(StmtKind::Data);
        stmt.text = make_constant(tokens_.take().text);
        all.push_back(std::move(stmt));
      } else {
        Stmt stmt = make(StmtKind::Output);
        LOCKSTEP_TRY(tokens_.expect(TokenKind::VariableBegin, "'{{'"));
        stmt.expression = LOCKSTEP_TRY(expressions_.tuple());
        LOCKSTEP_TRY(tokens_.expect(TokenKind::VariableEnd, "'}}'"));
        all.push_back(std::move(stmt));
      }
    }
    if (end.size() > 0) return tokens_.unexpected(fmt::format("'{}'", *end.begin()));
    return all;
  }

  Result<Block> whole() {
    Block all = LOCKSTEP_TRY(block({}));
    if (!expressions_.unknown.empty()) return tl::unexpected(std::move(expressions_.unknown.front()));
    return all;
  }

 private:
  [[nodiscard]] Stmt make(StmtKind kind) const {
    Stmt stmt;
    stmt.kind = kind;
    stmt.line = tokens_.current().line;
    return stmt;
  }

  Result<Stmt> nested_statement() {
    LOCKSTEP_TRY(expressions_.enter());
    auto result = statement();
    expressions_.leave();
    return result;
  }

  Result<Stmt> statement() {
    using Rule = Result<Stmt> (Parser::*)();
    static constexpr std::pair<std::string_view, Rule> kRules[] = {{"if", &Parser::if_statement},
                                                                   {"for", &Parser::for_statement},
                                                                   {"set", &Parser::set_statement},
                                                                   {"macro", &Parser::macro_statement},
                                                                   {"call", &Parser::call_statement},
                                                                   {"filter", &Parser::filter_statement},
                                                                   {"with", &Parser::with_statement},
                                                                   {"generation", &Parser::generation_statement},
                                                                   {"break", &Parser::jump_statement},
                                                                   {"continue", &Parser::jump_statement},
                                                                   {"print", &Parser::print_statement},
                                                                   {"do", &Parser::unsupported_statement},
                                                                   {"block", &Parser::unsupported_statement},
                                                                   {"extends", &Parser::unsupported_statement},
                                                                   {"include", &Parser::unsupported_statement},
                                                                   {"import", &Parser::unsupported_statement},
                                                                   {"from", &Parser::unsupported_statement},
                                                                   {"autoescape", &Parser::unsupported_statement},
                                                                   {"trans", &Parser::unsupported_statement},
                                                                   {"debug", &Parser::unsupported_statement}};
    for (const auto& [word, rule] : kRules) {
      if (tokens_.is_name(word)) return (this->*rule)();
    }
    return tokens_.unexpected("a statement");
  }

  Result<Stmt> unsupported_statement() {
    return fail(ErrorKind::Unsupported, "line {}: '{}' blocks are not supported in chat templates",
                tokens_.current().line, tokens_.current().text);
  }

  Status block_end() { return tokens_.expect(TokenKind::BlockEnd, "'%}'"); }

  /// A body that ends with the word `end`, which is consumed.
  Result<Block> body_until(std::string_view end) {
    LOCKSTEP_TRY(block_end());
    Block body = LOCKSTEP_TRY(block({end}));
    tokens_.take();
    return body;
  }

  Result<Stmt> if_statement() {
    Stmt stmt = make(StmtKind::If);
    const std::size_t unknown_before = expressions_.unknown.size();
    while (true) {
      tokens_.take();  // if, elif
      Branch branch;
      branch.condition = LOCKSTEP_TRY(expressions_.tuple(false));
      LOCKSTEP_TRY(block_end());
      branch.body = LOCKSTEP_TRY(block({"elif", "else", "endif"}));
      stmt.branches.push_back(std::move(branch));
      if (!tokens_.is_name("elif")) break;
    }
    if (tokens_.skip_name("else")) {
      LOCKSTEP_TRY(block_end());
      stmt.otherwise = LOCKSTEP_TRY(block({"endif"}));
    }
    tokens_.take();
    expressions_.unknown.resize(unknown_before);
    return stmt;
  }

  Result<Stmt> for_statement() {
    Stmt stmt = make(StmtKind::For);
    tokens_.take();
    stmt.target = LOCKSTEP_TRY(target(false));
    LOCKSTEP_TRY(tokens_.expect_name("in"));
    stmt.expression = LOCKSTEP_TRY(expressions_.tuple(false, "recursive"));
    if (tokens_.skip_name("if")) stmt.condition = LOCKSTEP_TRY(expressions_.expression());
    if (tokens_.is_name("recursive")) return tokens_.error("recursive loops are not supported");
    LOCKSTEP_TRY(block_end());
    ++loops_;
    auto body = block({"endfor", "else"});
    --loops_;
    stmt.body = LOCKSTEP_TRY(std::move(body));
    if (tokens_.skip_name("else")) {
      LOCKSTEP_TRY(block_end());
      stmt.otherwise = LOCKSTEP_TRY(block({"endfor"}));
    }
    tokens_.take();
    return stmt;
  }

  /// A name, ns.attribute if allowed, or names with commas between them.
  Result<Target> target(bool with_attribute) {
    Target all;
    bool is_tuple = false;
    while (true) {
      if (is_tuple && !tokens_.is(TokenKind::Name) && !tokens_.is_symbol("(")) break;  // trailing comma
      if (is_tuple && tokens_.is_name("in")) break;
      all.elements.push_back(LOCKSTEP_TRY(single_target(with_attribute && !is_tuple)));
      if (!tokens_.skip_symbol(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) {
      Target only = std::move(all.elements[0]);
      return only;
    }
    all.is_tuple = true;
    return all;
  }

  Result<Target> single_target(bool with_attribute) {
    if (tokens_.skip_symbol("(")) {
      LOCKSTEP_TRY(expressions_.enter());
      auto inner = target(false);
      expressions_.leave();
      if (inner) LOCKSTEP_TRY(tokens_.expect_symbol(")"));
      return inner;
    }
    static constexpr std::array<std::string_view, 6> kConstants = {"true", "false", "none", "True", "False", "None"};
    Target result;
    result.name = LOCKSTEP_TRY(tokens_.name());
    if (std::find(kConstants.begin(), kConstants.end(), result.name) != kConstants.end()) {
      return tokens_.error(fmt::format("cannot assign to '{}'", result.name));
    }
    result.id = program_.intern(result.name);
    if (with_attribute && tokens_.skip_symbol(".")) result.attribute = LOCKSTEP_TRY(tokens_.name());
    return result;
  }

  Result<Stmt> set_statement() {
    Stmt stmt = make(StmtKind::Set);
    tokens_.take();
    stmt.target = LOCKSTEP_TRY(target(true));
    if (tokens_.skip_symbol("=")) {
      stmt.expression = LOCKSTEP_TRY(expressions_.tuple());
      return stmt;
    }
    stmt.kind = StmtKind::SetBlock;
    stmt.expression = LOCKSTEP_TRY(expressions_.filters(nullptr, false));
    stmt.body = LOCKSTEP_TRY(body_until("endset"));
    return stmt;
  }

  Status signature(Macro& macro) {
    LOCKSTEP_TRY(tokens_.expect_symbol("("));
    while (!tokens_.is_symbol(")")) {
      if (!macro.parameters.empty()) LOCKSTEP_TRY(tokens_.expect_symbol(","));
      const Target name = LOCKSTEP_TRY(single_target(false));
      if (name.is_tuple) return tokens_.error("a parameter must be a name");
      Parameter parameter;
      parameter.id = name.id;
      parameter.name = name.name;
      if (tokens_.skip_symbol("=")) {
        parameter.default_value = LOCKSTEP_TRY(expressions_.expression());
      } else if (!macro.parameters.empty() && macro.parameters.back().default_value != nullptr) {
        return tokens_.error("a parameter without default after one with a default");
      }
      macro.parameters.push_back(std::move(parameter));
    }
    return tokens_.expect_symbol(")");
  }

  /// The body of a macro or of a call block, in which loops outside cannot be left.
  Status macro_body(Macro& macro, std::string_view end) {
    expressions_.open_macros.push_back(&macro);
    const int loops = std::exchange(loops_, 0);
    auto body = body_until(end);
    loops_ = loops;
    expressions_.open_macros.pop_back();
    macro.body = LOCKSTEP_TRY(std::move(body));
    return {};
  }

  Result<Stmt> macro_statement() {
    Stmt stmt = make(StmtKind::Macro);
    tokens_.take();
    stmt.macro = std::make_unique<Macro>();
    stmt.macro->name = LOCKSTEP_TRY(tokens_.name());
    stmt.macro->id = program_.intern(stmt.macro->name);
    LOCKSTEP_TRY(signature(*stmt.macro));
    LOCKSTEP_TRY(macro_body(*stmt.macro, "endmacro"));
    return stmt;
  }

  Result<Stmt> call_statement() {
    Stmt stmt = make(StmtKind::Call);
    tokens_.take();
    stmt.macro = std::make_unique<Macro>();
    stmt.macro->name = "caller";
    stmt.macro->id = program_.caller;
    if (tokens_.is_symbol("(")) LOCKSTEP_TRY(signature(*stmt.macro));
    stmt.expression = LOCKSTEP_TRY(expressions_.expression());
    if (stmt.expression->kind != ExprKind::Call) return tokens_.error("a call block needs a call");
    LOCKSTEP_TRY(macro_body(*stmt.macro, "endcall"));
    return stmt;
  }

  Result<Stmt> filter_statement() {
    Stmt stmt = make(StmtKind::FilterBlock);
    tokens_.take();
    stmt.expression = LOCKSTEP_TRY(expressions_.filters(nullptr, true));
    stmt.body = LOCKSTEP_TRY(body_until("endfilter"));
    return stmt;
  }

  Result<Stmt> with_statement() {
    Stmt stmt = make(StmtKind::With);
    tokens_.take();
    while (!tokens_.is(TokenKind::BlockEnd)) {
      if (!stmt.bindings.empty()) LOCKSTEP_TRY(tokens_.expect_symbol(","));
      Target name = LOCKSTEP_TRY(single_target(false));
      LOCKSTEP_TRY(tokens_.expect_symbol("="));
      ExprPtr value = LOCKSTEP_TRY(expressions_.expression());
      stmt.bindings.emplace_back(std::move(name), std::move(value));
    }
    stmt.body = LOCKSTEP_TRY(body_until("endwith"));
    return stmt;
  }

  Result<Stmt> generation_statement() {
    Stmt stmt = make(StmtKind::Scope);
    tokens_.take();
    stmt.body = LOCKSTEP_TRY(body_until("endgeneration"));
    return stmt;
  }

  Result<Stmt> jump_statement() {
    Stmt stmt = make(tokens_.is_name("break") ? StmtKind::Break : StmtKind::Continue);
    if (loops_ == 0) return tokens_.error(fmt::format("'{}' outside of a loop", tokens_.current().text));
    tokens_.take();
    return stmt;
  }

  Result<Stmt> print_statement() {
    Stmt stmt = make(StmtKind::Output);
    tokens_.take();
    auto all = std::make_unique<Expr>();
    all->kind = ExprKind::Concat;
    all->line = stmt.line;
    do all->operands.push_back(LOCKSTEP_TRY(expressions_.expression()));
    while (tokens_.skip_symbol(","));
    stmt.expression = std::move(all);
    return stmt;
  }

  TokenStream tokens_;
  Program& program_;
  ExpressionParser expressions_;
  int loops_ = 0;
};

}  // namespace

Result<Program> parse_template(std::string_view source, const TemplateLimits& limits) {
  if (source.size() > limits.max_source_bytes) {
    return fail(ErrorKind::Limit, "{} bytes of template, more than the limit of {}", source.size(),
                limits.max_source_bytes);
  }
  if (!is_valid_utf8(source)) return fail(ErrorKind::Invalid, "the template is not valid UTF-8");
  Program program;
  program.loop = program.intern("loop");
  program.caller = program.intern("caller");
  program.varargs = program.intern("varargs");
  program.kwargs = program.intern("kwargs");
  std::vector<Token> tokens = LOCKSTEP_TRY(tokenize(source));
  Parser parser(std::move(tokens), program, limits);
  program.body = LOCKSTEP_TRY(parser.whole());
  return program;
}

}  // namespace lockstep::text::jinja
