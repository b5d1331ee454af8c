#include "text/jinja/filters.hpp"

#include <algorithm>
#include <array>

namespace lockstep::text::jinja {

FilterFunction find_filter(std::string_view name) {
  for (const FilterTable table : {text_filters(), value_filters(), sequence_filters(), selection_filters()}) {
    for (const auto& [known, filter] : table) {
      if (known == name) return filter;
    }
  }
  return nullptr;
}

Status check_filter(std::string_view name) {
  static constexpr std::array<std::string_view, 9> kMissing = {
      "filesizeformat", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr", "slice", "urlencode"};
  if (find_filter(name) != nullptr) return {};
  if (std::find(kMissing.begin(), kMissing.end(), name) != kMissing.end()) {
    return fail(ErrorKind::Unsupported, "the filter '{}' is not supported in chat templates", name);
  }
  return fail(ErrorKind::Invalid, "there is no filter named '{}'", name.substr(0, 60));
}

}  // namespace lockstep::text::jinja
