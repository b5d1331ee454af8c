#include "text/utf8.hpp"

namespace lockstep::text {
namespace {

/// What a lead byte announces: the number of continuation bytes and the range of the first of them.
struct Lead {
  std::uint8_t continuation = 0;  ///< 0: not a lead byte of a longer sequence
  std::uint8_t low = 0x80, high = 0xBF;
  std::uint8_t bits = 0;  ///< payload of the lead byte
};

Lead lead_of(std::uint8_t byte) {
  Lead lead;
  if (byte >= 0xC2 && byte <= 0xDF) {
    lead.continuation = 1;
    lead.bits = byte & 0x1F;
  } else if (byte >= 0xE0 && byte <= 0xEF) {
    lead.continuation = 2;
    lead.bits = byte & 0x0F;
    if (byte == 0xE0) lead.low = 0xA0;   // no overlong forms
    if (byte == 0xED) lead.high = 0x9F;  // no surrogates
  } else if (byte >= 0xF0 && byte <= 0xF4) {
    lead.continuation = 3;
    lead.bits = byte & 0x07;
    if (byte == 0xF0) lead.low = 0x90;
    if (byte == 0xF4) lead.high = 0x8F;  // nothing beyond U+10FFFF
  }
  return lead;
}

/// The length of the ASCII prefix.
std::size_t ascii_prefix(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size() && static_cast<unsigned char>(text[length]) < 0x80) ++length;
  return length;
}

}  // namespace

Utf8Unit next_utf8(std::string_view text) {
  const auto byte_at = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte_at(0);
  if (first < 0x80) return {first, 1, Utf8Kind::Valid};
  const Lead lead = lead_of(first);
  if (lead.continuation == 0) return {0, 1, Utf8Kind::Invalid};
  char32_t code_point = lead.bits;
  for (std::uint8_t i = 1; i <= lead.continuation; ++i) {
    if (i == text.size()) return {0, i, Utf8Kind::Truncated};
    const std::uint8_t low = i == 1 ? lead.low : 0x80;
    const std::uint8_t high = i == 1 ? lead.high : 0xBF;
    if (byte_at(i) < low || byte_at(i) > high) return {0, i, Utf8Kind::Invalid};
    code_point = (code_point << 6) | (byte_at(i) & 0x3F);
  }
  return {code_point, static_cast<std::uint8_t>(lead.continuation + 1), Utf8Kind::Valid};
}

std::size_t first_invalid_utf8(std::string_view text) {
  const std::size_t size = text.size();
  while (true) {
    text.remove_prefix(ascii_prefix(text));
    if (text.empty()) return size;
    const Utf8Unit unit = next_utf8(text);
    if (unit.kind != Utf8Kind::Valid) return size - text.size();
    text.remove_prefix(unit.length);
  }
}

bool is_valid_utf8(std::string_view text) {
  return first_invalid_utf8(text) == text.size();
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Unit unit = next_utf8(text);
    out += unit.kind == Utf8Kind::Valid ? text.substr(0, unit.length) : kReplacementCharacter;
    text.remove_prefix(unit.length);
  }
  return out;
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace lockstep::text
