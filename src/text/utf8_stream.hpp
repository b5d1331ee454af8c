// Incremental decoding: tokens in, whole UTF-8 characters out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/tokenizer.hpp"

namespace lockstep::text {

/// Cuts a stream of bytes at character borders. The concatenation of everything that push() and finish() return is
/// replace_invalid_utf8() of the whole input, however it was cut; no more than 3 bytes are held back.
class Utf8Stream {
 public:
  /// Returns the characters that are complete. Ill-formed bytes become U+FFFD as soon as no further byte can complete
  /// them.
  std::string push(std::string_view bytes);
  /// Returns the replacement of an unfinished character at the end, and starts over.
  std::string finish();

 private:
  std::string held_;  ///< a truncated character
};

/// Turns tokens into text one by one, with the same result as Tokenizer::decode on all of them.
class Detokenizer {
 public:
  /// The tokenizer must outlive this object.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  /// Returns the text that the token completes, often none. Ids without a token are nothing, as in Tokenizer::decode.
  std::string push(std::int32_t id);
  std::string finish() { return stream_.finish(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  Utf8Stream stream_;
};

}  // namespace lockstep::text
