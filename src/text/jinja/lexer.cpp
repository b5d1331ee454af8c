#include "text/jinja/lexer.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "text/jinja/unicode.hpp"

namespace lockstep::text::jinja {
namespace {

/// Line ends become "\n", and one at the end of the template is dropped.
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize(source)), view_(source_) {}

  Result<std::vector<Token>> run() {
    while (at_ < view_.size()) LOCKSTEP_TRY(root());
    push(TokenKind::End);
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] bool starts(std::size_t at, std::string_view what) const {
    return view_.compare(at, what.size(), what) == 0;
  }

  /// Moves to byte `to`, counting lines.
  void advance(std::size_t to) {
    const auto begin = view_.begin() + static_cast<std::ptrdiff_t>(at_);
    const auto end = view_.begin() + static_cast<std::ptrdiff_t>(to);
    line_ += static_cast<std::uint32_t>(std::count(begin, end, '\n'));
    if (to > at_) line_starting_ = view_[to - 1] == '\n';
    at_ = to;
  }

  Token& push(TokenKind kind) {
    Token& token = tokens_.emplace_back();
    token.kind = kind;
    token.line = line_;
    return token;
  }

  tl::unexpected<Error> error(std::string_view message) const {
    return fail(ErrorKind::Invalid, "line {}: {}", line_, message);
  }

  [[nodiscard]] std::size_t find_tag(std::size_t from) const {
    for (; from + 1 < view_.size(); ++from) {
      from = std::min(view_.find('{', from), view_.size());
      if (from + 1 < view_.size() && (view_[from + 1] == '{' || view_[from + 1] == '%' || view_[from + 1] == '#')) {
        return from;
      }
    }
    return std::string_view::npos;
  }

  /// Emits the text up to a tag at byte `tag`, whose sign and kind say which blanks before it go.
  void data(std::size_t tag, char sign, bool is_variable) {
    std::size_t end = tag;
    const std::string_view text = view_.substr(at_, tag - at_);
    if (sign == '-') {
      end = at_ + trim_space_end(text, text.size());
    } else if (sign != '+' && !is_variable) {
      const std::size_t newline = text.rfind('\n');
      const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line > 0 || line_starting_) && skip_space(text, line) == text.size()) end = at_ + line;
    }
    if (end > at_) push(TokenKind::Data).text = std::string(view_.substr(at_, end - at_));
  }

  Status root() {
    const std::size_t tag = find_tag(at_);
    if (tag == std::string_view::npos) {
      push(TokenKind::Data).text = std::string(view_.substr(at_));
      advance(view_.size());
      return {};
    }
    const char kind = view_[tag + 1];
    std::size_t next = tag + 2;
    char sign = 0;
    if (next < view_.size() && (view_[next] == '-' || view_[next] == '+')) sign = view_[next++];
    data(tag, sign, kind == '{');
    if (kind == '%') {
      if (const std::size_t raw = raw_begin(next); raw != std::string_view::npos) {
        advance(raw);
        return raw_block();
      }
    }
    advance(next);
    if (kind == '#') return comment();
    push(kind == '{' ? TokenKind::VariableBegin : TokenKind::BlockBegin);
    return expression(kind == '{' ? "}}" : "%}");
  }

  /// The byte after "raw %}" if that is what stands at `from`.
  [[nodiscard]] std::size_t raw_begin(std::size_t from) const {
    std::size_t at = skip_space(view_, from);
    if (!starts(at, "raw")) return std::string_view::npos;
    at = skip_space(view_, at + 3);
    if (starts(at, "-%}")) return skip_space(view_, at + 3);
    return starts(at, "%}") ? at + 2 : std::string_view::npos;
  }

  Status raw_block() {
    for (std::size_t tag = at_; (tag = view_.find("{%", tag)) != std::string_view::npos; ++tag) {
      std::size_t at = tag + 2;
      char sign = 0;
      if (at < view_.size() && (view_[at] == '-' || view_[at] == '+')) sign = view_[at++];
      at = skip_space(view_, at);
      if (!starts(at, "endraw")) continue;
      const std::size_t end = tag_end(skip_space(view_, at + 6), "%}");
      if (end == std::string_view::npos) continue;
      data(tag, sign, false);
      advance(end);
      return {};
    }
    return error("a raw block has no endraw");
  }

  Status comment() {
    const std::size_t mark = view_.find("#}", at_);
    if (mark == std::string_view::npos) return error("a comment has no #}");
    const bool signed_end = mark > at_ && (view_[mark - 1] == '-' || view_[mark - 1] == '+');
    advance(tag_end(signed_end ? mark - 1 : mark, "#}"));
    return {};
  }

  /// The byte after the end of a tag that stands at `at`, with the blanks that it removes; npos if none stands there.
  [[nodiscard]] std::size_t tag_end(std::size_t at, std::string_view mark) const {
    if (starts(at, mark)) {
      const std::size_t end = at + mark.size();
      return mark != "}}" && starts(end, "\n") ? end + 1 : end;
    }
    if (at < view_.size() && starts(at + 1, mark)) {
      if (view_[at] == '-') return skip_space(view_, at + 1 + mark.size());
      if (view_[at] == '+' && mark != "}}") return at + 1 + mark.size();
    }
    return std::string_view::npos;
  }

  Status expression(std::string_view mark) {
    const std::uint32_t begin_line = line_;
    std::string open;
    while (true) {
      advance(skip_space(view_, at_));
      if (at_ >= view_.size()) {
        return fail(ErrorKind::Invalid, "line {}: a block has no {}", begin_line, mark);
      }
      if (open.empty()) {
        if (const std::size_t end = tag_end(at_, mark); end != std::string_view::npos) {
          push(mark == "}}" ? TokenKind::VariableEnd : TokenKind::BlockEnd);
          advance(end);
          return {};
        }
      }
      LOCKSTEP_TRY(token(open));
    }
  }

  Status token(std::string& open) {
    const char c = view_[at_];
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return string(c);
    const std::size_t end = word_end();
    if (end > at_) {
      push(TokenKind::Name).text = std::string(view_.substr(at_, end - at_));
      advance(end);
      return {};
    }
    return symbol(open);
  }

  [[nodiscard]] std::size_t word_end() const {
    std::size_t end = at_;
    while (end < view_.size() && is_word(character_at(view_, end))) end += character_length(view_[end]);
    return end;
  }

  Status symbol(std::string& open) {
    static constexpr std::array<std::string_view, 28> kSymbols = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
        "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "",  ""};
    for (const std::string_view symbol : kSymbols) {
      if (symbol.empty() || !starts(at_, symbol)) continue;
      if (symbol == "(" || symbol == "[" || symbol == "{") open.push_back(symbol[0]);
      if (symbol == ")" || symbol == "]" || symbol == "}") {
        const char opening = symbol == ")" ? '(' : symbol == "]" ? '[' : '{';
        if (open.empty() || open.back() != opening) return error(fmt::format("unexpected '{}'", symbol));
        open.pop_back();
      }
      push(TokenKind::Symbol).text = std::string(symbol);
      advance(at_ + symbol.size());
      return {};
    }
    return error(fmt::format("unexpected character '{}'", view_.substr(at_, character_length(view_[at_]))));
  }

  /// Digits with single underscores between them, from `at`.
  [[nodiscard]] std::size_t digits(std::size_t at) const {
    while (at < view_.size() &&
           (is_digit(view_[at]) || (view_[at] == '_' && at + 1 < view_.size() && is_digit(view_[at + 1])))) {
      ++at;
    }
    return at;
  }

  Status number() {
    if (view_[at_] == '0' && at_ + 2 < view_.size()) {
      const char base = static_cast<char>(view_[at_ + 1] | 0x20);
      if (base == 'x' || base == 'o' || base == 'b') return based_integer(base == 'x' ? 16 : base == 'o' ? 8 : 2);
    }
    const std::size_t whole = digits(at_);
    std::size_t end = whole;
    // After a dot, as in "x.0.1", digits are an index and not the start of a fraction.
    if (at_ == 0 || view_[at_ - 1] != '.') {
      if (end + 1 < view_.size() && view_[end] == '.' && is_digit(view_[end + 1])) end = digits(end + 1);
      if (end < view_.size() && (view_[end] == 'e' || view_[end] == 'E')) {
        std::size_t exponent = end + 1;
        if (exponent < view_.size() && (view_[exponent] == '+' || view_[exponent] == '-')) ++exponent;
        if (exponent < view_.size() && is_digit(view_[exponent])) end = digits(exponent);
      }
    }
    std::string text(view_.substr(at_, end - at_));
    std::erase(text, '_');
    if (end > whole) {
      push(TokenKind::Float).real = std::strtod(text.c_str(), nullptr);
      advance(end);
      return {};
    }
    return integer(text, 10, end);
  }

  Status based_integer(int base) {
    std::size_t end = at_ + 2;
    std::string text;
    for (; end < view_.size(); ++end) {
      const char c = view_[end];
      const char lower = static_cast<char>(c | 0x20);
      const int digit = is_digit(c) ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 99;
      if (c != '_' && digit >= base) break;
      if (c != '_') text.push_back(c);
    }
    if (text.empty()) return error("a number without digits");
    return integer(text, base, end);
  }

  Status integer(std::string_view text, int base, std::size_t end) {
    std::int64_t value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (parsed.ec != std::errc()) return fail(ErrorKind::Limit, "line {}: an integer beyond 64 bits", line_);
    push(TokenKind::Integer).integer = value;
    advance(end);
    return {};
  }

  Status string(char quote) {
    std::size_t end = at_ + 1;
    while (end < view_.size() && view_[end] != quote) end += view_[end] == '\\' ? 2 : 1;
    if (end >= view_.size()) return error("a string has no end");
    push(TokenKind::String).text = LOCKSTEP_TRY(unescape(view_.substr(at_ + 1, end - at_ - 1)));
    advance(end + 1);
    return {};
  }

  /// Python's escapes; an unknown one stays as it is.
  Result<std::string> unescape(std::string_view body) const {
    std::string out;
    for (std::size_t i = 0; i < body.size(); ++i) {
      if (body[i] != '\\') {
        out.push_back(body[i]);
        continue;
      }
      const char c = body[++i];
      static constexpr std::string_view kNames = "abfnrtv\\'\"", kCodes = "\a\b\f\n\r\t\v\\'\"";
      if (const std::size_t simple = kNames.find(c); simple != std::string_view::npos) {
        out.push_back(kCodes[simple]);
      } else if (c == '\n') {
        continue;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t length = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_utf8(LOCKSTEP_TRY(code(body, i + 1, length, 16)), out);
        i += length;
      } else if (c >= '0' && c <= '7') {
        std::size_t length = 1;
        while (length < 3 && i + length < body.size() && body[i + length] >= '0' && body[i + length] <= '7') ++length;
        append_utf8(LOCKSTEP_TRY(code(body, i, length, 8)), out);
        i += length - 1;
      } else if (c == 'N') {
        return error("escapes by character name are not supported");
      } else {
        out.push_back('\\');
        out.push_back(c);
      }
    }
    return out;
  }

  Result<char32_t> code(std::string_view body, std::size_t at, std::size_t length, int base) const {
    std::uint32_t value = 0;
    const char* const begin = body.data() + std::min(at, body.size());
    const char* const end = body.data() + std::min(at + length, body.size());
    const auto parsed = std::from_chars(begin, end, value, base);
    if (parsed.ec != std::errc() || parsed.ptr != begin + length) return error("a truncated escape in a string");
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return error("an escape that is no character");
    return static_cast<char32_t>(value);
  }

  std::string source_;
  std::string_view view_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace lockstep::text::jinja
