// Encoding and decoding arbitrary text, and the incremental decoder, with a small tokenizer that has awkward added
// tokens.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"
#include "text/tokenizer.hpp"
#include "text/unicode_nfc.hpp"
#include "text/utf8.hpp"
#include "text/utf8_stream.hpp"

namespace {

using lockstep::text::ByteRange;
using lockstep::text::Tokenizer;

void require(bool condition) {
  if (!condition) std::abort();
}

/// A tokenizer of single bytes with a few merges and overlapping added tokens.
Tokenizer small_tokenizer() {
  lockstep::Json vocab;
  std::int32_t id = 0;
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    std::string entry;
    lockstep::text::append_utf8(printable ? byte : next++, entry);
    vocab[entry] = id++;
  }
  vocab["aa"] = id++;
  vocab["aaa"] = id++;
  lockstep::Json json = lockstep::Json::parse(R"({
    "model": {"type": "BPE", "merges": [["a", "a"], ["aa", "a"]]},
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "behavior": "Isolated", "pattern": {"Regex":
        "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
      {"type": "ByteLevel", "use_regex": false}]},
    "decoder": {"type": "ByteLevel"},
    "added_tokens": [{"id": 300, "content": "<a>", "special": true}, {"id": 301, "content": "<a><"},
                     {"id": 302, "content": "\u65e5"}]})");
  json["model"]["vocab"] = vocab;
  auto tokenizer = Tokenizer::from_json(json.dump());
  require(tokenizer.has_value());
  return *std::move(tokenizer);
}

void check(const Tokenizer& tokenizer, std::string_view text, const std::vector<ByteRange>& literal) {
  const auto ids = tokenizer.encode(text, {.added_tokens = true, .literal = literal});
  require(ids.has_value());
  const std::string decoded = tokenizer.decode(*ids, false);
  require(lockstep::text::is_valid_utf8(decoded));
  const auto plain = tokenizer.encode(text, {.added_tokens = false});
  const std::string expected = *lockstep::text::to_nfc(lockstep::text::replace_invalid_utf8(text));
  require(plain && tokenizer.decode_checked(*plain, true).value() == expected);
  for (const bool skip_special : {false, true}) {
    lockstep::text::Detokenizer stream(tokenizer, skip_special);
    std::string streamed;
    for (const std::int32_t id : *ids) streamed += stream.push(id);
    streamed += stream.finish();
    require(streamed == tokenizer.decode(*ids, skip_special));
  }
}

}  // namespace

/// The first bytes choose literal ranges, the rest is the text.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Tokenizer kSmall = small_tokenizer();
  if (size < 4) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 4), size - 4);
  std::vector<ByteRange> literal;
  std::size_t at = 0;
  for (int i = 0; i < 4; i += 2) {
    const std::size_t begin = std::min(text.size(), at + data[i] % 32);
    at = std::min(text.size(), begin + data[i + 1] % 32);
    literal.push_back({begin, at});
  }
  check(kSmall, text, literal);
  return 0;
}
