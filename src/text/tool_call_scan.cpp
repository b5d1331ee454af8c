#include "text/tool_call_scan.hpp"

#include <algorithm>

namespace lockstep::text {

TagScanner& TagScanner::literal(std::string_view expected) {
  if (result_ != Scan::Full) return *this;
  const std::size_t common = std::min(expected.size(), rest_.size());
  if (rest_.substr(0, common) != expected.substr(0, common)) {
    result_ = Scan::No;
  } else if (common < expected.size()) {
    result_ = Scan::Partial;
    complete_ = false;
  } else {
    rest_.remove_prefix(common);
  }
  return *this;
}

TagScanner& TagScanner::gap() {
  if (result_ != Scan::Full) return *this;
  const std::size_t length = std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size());
  if (length > kMaxTagGap) {
    result_ = Scan::No;
  } else {
    rest_.remove_prefix(length);
    if (rest_.empty()) result_ = Scan::Partial;
  }
  return *this;
}

TagScanner& TagScanner::name() {
  if (result_ != Scan::Full) return *this;
  const auto stop = std::find_if(rest_.begin(), rest_.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return c == '<' || c == '>' || byte < 0x20 || byte == 0x7F;
  });
  const auto length = static_cast<std::size_t>(stop - rest_.begin());
  if (length > kMaxTagName || (stop != rest_.end() && (*stop != '>' || length == 0))) {
    result_ = Scan::No;
  } else if (stop == rest_.end()) {
    result_ = Scan::Partial;
    complete_ = false;
  } else {
    name_ = rest_.substr(0, length);
    rest_.remove_prefix(length + 1);
  }
  return *this;
}

Scan scan_call_opener(std::string_view text) {
  return TagScanner(text).literal("<tool_call>").gap().literal("<function=").result();
}

}  // namespace lockstep::text
