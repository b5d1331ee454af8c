#include "text/stop_strings.hpp"

#include <algorithm>
#include <utility>

namespace lockstep::text {

Result<StopMatcher> StopMatcher::create(std::vector<std::string> strings) {
  if (strings.size() > kMaxStrings) {
    return fail(ErrorKind::Limit, "{} stop strings, more than the limit of {}", strings.size(), kMaxStrings);
  }
  StopMatcher matcher;
  for (std::string& text : strings) {
    if (text.empty()) return fail(ErrorKind::Invalid, "a stop string is empty");
    if (text.size() > kMaxBytes) {
      return fail(ErrorKind::Limit, "a stop string has {} bytes, more than the limit of {}", text.size(), kMaxBytes);
    }
    matcher.patterns_.push_back(make_pattern(std::move(text)));
  }
  return matcher;
}

StopMatcher::Pattern StopMatcher::make_pattern(std::string text) {
  Pattern pattern{std::move(text), {0, 0}, 0};
  for (std::size_t n = 1; n < pattern.text.size(); ++n) {
    std::size_t border = pattern.border[n];
    while (border > 0 && pattern.text[border] != pattern.text[n]) border = pattern.border[border];
    pattern.border.push_back(pattern.text[border] == pattern.text[n] ? border + 1 : 0);
  }
  return pattern;
}

/// One step of Knuth, Morris and Pratt's search. A whole match ends the stream, so it needs no continuation.
void StopMatcher::advance(Pattern& pattern, char byte) {
  while (pattern.matched > 0 && pattern.text[pattern.matched] != byte)
    pattern.matched = pattern.border[pattern.matched];
  if (pattern.text[pattern.matched] == byte) ++pattern.matched;
}

std::string StopMatcher::push(std::string_view text) {
  if (stopped()) return {};
  std::size_t end = held_.size();
  held_ += text;
  std::size_t open = 0;  // the longest unfinished match that ends the stream
  for (const char byte : text) {
    ++end;
    open = 0;
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& pattern = patterns_[i];
      advance(pattern, byte);
      open = std::max(open, pattern.matched);
      const bool whole = pattern.matched == pattern.text.size();
      if (whole && (!matched_ || pattern.text.size() > matched().size())) matched_ = i;
    }
    if (matched_) {
      std::string before = held_.substr(0, end - matched().size());
      held_.clear();
      return before;
    }
  }
  if (text.empty()) return {};
  std::string out = held_.substr(0, held_.size() - open);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::finish() {
  return std::exchange(held_, {});
}

}  // namespace lockstep::text
