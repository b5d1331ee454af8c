// A cursor over tokens with the checks that both halves of the parser need.
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "text/jinja/lexer.hpp"

namespace lockstep::text::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  [[nodiscard]] const Token& current() const { return tokens_[at_]; }
  [[nodiscard]] const Token& look() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  [[nodiscard]] bool is(TokenKind kind) const { return current().kind == kind; }
  [[nodiscard]] bool is_name(std::string_view name) const { return is(TokenKind::Name) && current().text == name; }
  [[nodiscard]] bool is_name(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      if (is_name(name)) return true;
    }
    return false;
  }
  [[nodiscard]] bool is_symbol(std::string_view symbol) const {
    return is(TokenKind::Symbol) && current().text == symbol;
  }
  Token take() { return at_ + 1 < tokens_.size() ? std::move(tokens_[at_++]) : tokens_[at_]; }
  bool skip_name(std::string_view name) { return is_name(name) && (take(), true); }
  bool skip_symbol(std::string_view symbol) { return is_symbol(symbol) && (take(), true); }

  Status expect_symbol(std::string_view symbol) {
    return skip_symbol(symbol) ? Status() : unexpected(fmt::format("'{}'", symbol));
  }
  Status expect_name(std::string_view name) {
    return skip_name(name) ? Status() : unexpected(fmt::format("'{}'", name));
  }
  Status expect(TokenKind kind, std::string_view what) {
    if (!is(kind)) return unexpected(what);
    take();
    return {};
  }
  Result<std::string> name() {
    if (!is(TokenKind::Name)) return unexpected("a name");
    return take().text;
  }

  /// "line 3: expected X, got Y".
  [[nodiscard]] tl::unexpected<Error> unexpected(std::string_view wanted) const;
  [[nodiscard]] tl::unexpected<Error> error(std::string_view message) const {
    return fail(ErrorKind::Invalid, "line {}: {}", current().line, message);
  }

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

}  // namespace lockstep::text::jinja
