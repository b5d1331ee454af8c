// Text from outside (names, flags, messages) in Markdown.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::report {

/// The text on one line (base/printable.hpp), also in the cell of a table, with nothing in it that Markdown or HTML
/// would act on.
[[nodiscard]] std::string markdown_text(std::string_view text);

/// The same as `code`.
[[nodiscard]] std::string markdown_code(std::string_view text);

}  // namespace lockstep::report
