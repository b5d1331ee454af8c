// Strings that know which of their characters came from outside the template.
//
// A chat template mixes its own markup with what users and tools wrote. A special token inside a message must reach the
// model as plain characters, so every character carries one bit, "literal": it came from the input. The bit follows the
// character through slicing, trimming, joining, replacing, case changes and JSON.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "text/byte_range.hpp"
#include "text/jinja/budget.hpp"

namespace lockstep::text::jinja {

/// An immutable string of valid UTF-8.
struct Text {
  std::string bytes;
  std::vector<ByteRange> literal;  ///< ascending, disjoint, not adjacent, none empty
  std::size_t characters = 0;
  Charge charge;

  [[nodiscard]] std::string_view view() const { return bytes; }
  [[nodiscard]] bool is_ascii() const { return characters == bytes.size(); }
  /// The byte at which character `index` (<= characters) starts.
  [[nodiscard]] std::size_t byte_of(std::size_t index) const;
};

using TextPtr = std::shared_ptr<const Text>;

/// A text of the program or of the caller, outside any budget. `bytes` must be valid UTF-8.
TextPtr make_constant(std::string bytes);

/// Builds a text piece by piece. A piece that does not fit is dropped and makes finish() fail, so that callers need to
/// look at errors only once.
class TextBuilder {
 public:
  explicit TextBuilder(Budget& budget, std::size_t max_bytes = SIZE_MAX) : budget_(&budget), max_bytes_(max_bytes) {}

  /// Appends bytes that are all literal or all not.
  void append(std::string_view bytes, bool literal = false);
  void append(const Text& text) { append(text, 0, text.bytes.size()); }
  /// Appends bytes [begin, end) of a text together with their marks.
  void append(const Text& text, std::size_t begin, std::size_t end);

  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] bool full() const { return full_; }
  /// The text, charged to the budget. Errors: Limit.
  Result<TextPtr> finish();

  /// What was built, without making a text of it (the output of the template).
  [[nodiscard]] std::string& bytes() { return bytes_; }
  [[nodiscard]] std::vector<ByteRange>& literal() { return literal_; }

 private:
  bool admit(std::size_t more);
  void mark(std::size_t begin, std::size_t end);

  Budget* budget_;
  std::size_t max_bytes_;
  std::string bytes_;
  std::vector<ByteRange> literal_;
  bool full_ = false;
};

/// Bytes [begin, end) of a text, which is shared when that is all of it. Errors: Limit.
Result<TextPtr> slice(Budget& budget, const TextPtr& text, std::size_t begin, std::size_t end);

/// Whether byte `at` of the text is literal.
[[nodiscard]] bool is_literal(const Text& text, std::size_t at);

}  // namespace lockstep::text::jinja
