#include "text/jinja/token_stream.hpp"

namespace lockstep::text::jinja {
namespace {

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::Data:
      return "text";
    case TokenKind::VariableBegin:
      return "'{{'";
    case TokenKind::VariableEnd:
      return "'}}'";
    case TokenKind::BlockBegin:
      return "'{%'";
    case TokenKind::BlockEnd:
      return "'%}'";
    case TokenKind::Name:
    case TokenKind::Symbol:
      return fmt::format("'{}'", token.text.substr(0, 60));
    case TokenKind::String:
      return "a string";
    case TokenKind::Integer:
    case TokenKind::Float:
      return "a number";
    case TokenKind::End:
      return "the end of the template";
  }
  return "a token";
}

}  // namespace

tl::unexpected<Error> TokenStream::unexpected(std::string_view wanted) const {
  return fail(ErrorKind::Invalid, "line {}: expected {}, got {}", current().line, wanted, describe(current()));
}

}  // namespace lockstep::text::jinja
