// Text to token ids and back: byte-level BPE as tokenizer.json describes it.
//
// Encoding: added tokens are cut out literally; between them ill-formed UTF-8 is replaced (text/utf8.hpp), the text is
// brought to NFC, split by the pre-tokeniser's pattern, and every piece is merged from single bytes. All steps take
// O(n log n) time and no recursion, whatever the text. Decoding concatenates the tokens' bytes and replaces what is not
// UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "text/tokenizer_added.hpp"

namespace lockstep::text {

struct EncodeOptions {
  /// Whether added tokens in the text become their ids. When off the whole text is plain text.
  bool added_tokens = true;
  /// Byte ranges of the input, ascending and disjoint, that are plain text: no added token is matched that shares a
  /// byte with one. A chat template's output marks the messages' contents with them, so that a user who writes
  /// "<|im_end|>" cannot end a turn. Splitting and merging do not stop at their borders.
  std::span<const ByteRange> literal = {};
  /// Longest result. A longer one is the error Limit, as soon as it is certain: before any work where the number of
  /// bytes tells.
  std::size_t max_tokens = SIZE_MAX;
  /// Asked at least every few thousand steps; true ends the call with the error Cancelled. May be empty.
  std::function<bool()> stop = {};
};

/// An immutable tokenizer; every method may be called from several threads at once.
class Tokenizer {
 public:
  /// Longest input of encode().
  static constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20;

  /// Reads tokenizer.json and, if it is there, tokenizer_config.json. Errors: NotFound, Io, and those of from_json.
  static Result<Tokenizer> open(const std::filesystem::path& directory);
  /// `config_json` may be empty. Errors: Invalid, Unsupported (see parse_tokenizer), Limit.
  static Result<Tokenizer> from_json(std::string_view tokenizer_json, std::string_view config_json = {});

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  ~Tokenizer();

  /// The token ids of a text, which need not be valid UTF-8. Errors: Limit (text longer than kMaxTextBytes or than
  /// options.max_tokens, or a split pattern that takes more steps than SplitPattern::Budget allows), Cancelled
  /// (options.stop), Invalid (literal ranges out of order or beyond the text).
  [[nodiscard]] Result<std::vector<std::int32_t>> encode(std::string_view text,
                                                         const EncodeOptions& options = {}) const;

  /// The text of the ids as valid UTF-8. Ids without a token (negative, padding rows, beyond the vocabulary) are
  /// nothing. With `skip_special`, special added tokens are left out; other added tokens such as <think> stay.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids, bool skip_special) const;
  /// The same, but an id without a token is an error. Error: Invalid, with the id and its position.
  [[nodiscard]] Result<std::string> decode_checked(std::span<const std::int32_t> ids, bool skip_special) const;

  /// The bytes of a token, which need not be whole characters; empty for an id without a token. Lives as long as the
  /// tokenizer.
  [[nodiscard]] std::string_view token_bytes(std::int32_t id) const;
  /// A text of `bytes` bytes has at least as many tokens as this: no token is longer than the longest, and NFC makes
  /// no text shorter than a third.
  [[nodiscard]] std::size_t least_tokens(std::size_t bytes) const;
  /// One more than the largest id that has a token. A model's embedding may have more rows than that.
  [[nodiscard]] std::int32_t vocabulary_size() const;
  /// Whether the id is an added token that is marked special.
  [[nodiscard]] bool is_special(std::int32_t id) const;
  /// The id of the added token with exactly this text.
  [[nodiscard]] std::optional<std::int32_t> added_token(std::string_view text) const;
  [[nodiscard]] std::span<const AddedToken> added_tokens() const;
  /// The "eos_token" of tokenizer_config.json. Generation stops at the ids of the generation configuration instead.
  [[nodiscard]] std::optional<std::int32_t> eos() const;
  /// The split pattern in use, as the files write it.
  [[nodiscard]] std::string_view split_pattern() const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::text
