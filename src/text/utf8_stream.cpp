#include "text/utf8_stream.hpp"

#include "text/utf8.hpp"

namespace lockstep::text {

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  std::string out;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Utf8Unit unit = next_utf8(rest);
    if (unit.kind == Utf8Kind::Truncated) break;
    out += unit.kind == Utf8Kind::Valid ? rest.substr(0, unit.length) : kReplacementCharacter;
    rest.remove_prefix(unit.length);
  }
  held_ = std::string(rest);
  return out;
}

std::string Utf8Stream::finish() {
  std::string out = replace_invalid_utf8(held_);
  held_.clear();
  return out;
}

std::string Detokenizer::push(std::int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  return stream_.push(tokenizer_->token_bytes(id));
}

}  // namespace lockstep::text
