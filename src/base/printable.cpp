#include "base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace lockstep {
namespace {

struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;  ///< 0: no UTF-8 character starts here
};

/// The character at the start of `text`, by the table of well-formed sequences in the Unicode standard (3.9, D92).
Character first_character(std::string_view text) {
  const auto at = [&](std::size_t i) -> std::uint32_t { return static_cast<unsigned char>(text[i]); };
  const std::uint32_t lead = at(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : (lead >= 0xe0 ? 3 : 2);
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  std::uint32_t code = lead & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xc0U) != 0x80) return {};
    code = (code << 6U) | (at(i) & 0x3fU);
  }
  const bool too_long = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  const bool no_character = (code >= 0xd800 && code <= 0xdfff) || code > 0x10ffff;
  return too_long || no_character ? Character{} : Character{code, bytes};
}

/// Characters that act on the line instead of standing in it.
bool acts(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c || code == 0x200e || code == 0x200f ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) || code == 0xfeff;
}

/// What stands for the start of `text`; `used` receives how many of its bytes that covers.
std::string shown(std::string_view text, std::size_t& used) {
  const Character character = first_character(text);
  used = character.bytes == 0 ? 1 : character.bytes;
  if (character.bytes == 0) return fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
  if (character.code == '\n' || character.code == '\r' || character.code == '\t') return " ";
  if (!acts(character.code)) return std::string(text.substr(0, used));
  return character.code < 0x80 ? fmt::format("\\x{:02x}", character.code) : fmt::format("\\u{{{:x}}}", character.code);
}

/// The longest beginning of `text` that ends between characters and has at most `bytes` bytes.
std::string_view head(std::string_view text, std::size_t bytes) {
  while (bytes > 0 && bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xc0U) == 0x80) --bytes;
  return text.substr(0, bytes);
}

std::string_view tail(std::string_view text, std::size_t bytes) {
  std::size_t begin = text.size() - bytes;
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xc0U) == 0x80) ++begin;
  return text.substr(begin);
}

}  // namespace

std::string printable(std::string_view text, std::size_t max_bytes) {
  constexpr std::string_view kGap = " ... ";
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  std::string out;
  while (!text.empty()) {
    std::size_t used = 0;
    out += shown(text, used);
    text.remove_prefix(used);
  }
  if (out.size() <= max_bytes) return out;
  const std::size_t kept = max_bytes - std::min(max_bytes, kGap.size());
  return fmt::format("{}{}{}", head(out, kept - kept / 4), kGap, tail(out, kept / 4));
}

}  // namespace lockstep
