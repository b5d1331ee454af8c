#include "report/markdown.hpp"

#include "base/printable.hpp"

namespace lockstep::report {

std::string markdown_text(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    if (std::string_view("\\`*|<[&").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string markdown_code(std::string_view text) {
  std::string out = "`";
  for (const char c : printable(text)) {
    if (c == '|') out += '\\';   // tables end their cells inside code too
    out += c == '`' ? '\'' : c;  // there is no escape in code
  }
  return out + "`";
}

}  // namespace lockstep::report
