// Recognising tags at the front of a text that is still growing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::text {

enum class Scan : std::uint8_t {
  No,       ///< whatever follows, this is not it
  Partial,  ///< it may become it
  Full,
};

/// Longest white space between two tags that belong together; what is further apart does not.
inline constexpr std::size_t kMaxTagGap = 64;
/// Longest name of a function or parameter.
inline constexpr std::size_t kMaxTagName = 256;

/// Reads parts of a tag one after the other. After the first part that is not Full, the others are not tried.
class TagScanner {
 public:
  explicit TagScanner(std::string_view text) : rest_(text), size_(text.size()) {}

  /// Exactly this text.
  TagScanner& literal(std::string_view expected);
  /// Up to kMaxTagGap spaces, tabs and line ends. Partial where the text ends in them.
  TagScanner& gap();
  /// A name of 1 to kMaxTagName bytes other than <, > and control characters, and the > behind it.
  TagScanner& name();

  [[nodiscard]] Scan result() const { return result_; }
  /// The bytes read so far.
  [[nodiscard]] std::size_t length() const { return size_ - rest_.size(); }
  [[nodiscard]] std::string_view last_name() const { return name_; }
  /// Whether all parts fit and nothing follows them; a gap that the text ends in counts as fitting.
  [[nodiscard]] bool ends_text() const { return result_ != Scan::No && complete_ && rest_.empty(); }

 private:
  std::string_view rest_;
  std::size_t size_;
  Scan result_ = Scan::Full;
  bool complete_ = true;  ///< no part is cut in its middle
  std::string_view name_;
};

/// `<tool_call>`, a gap, `<function=`: a call begins here, and not only a mention of the tag.
Scan scan_call_opener(std::string_view text);

}  // namespace lockstep::text
