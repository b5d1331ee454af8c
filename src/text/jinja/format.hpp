// How values become text: str(), repr() and the two kinds of Python format strings.
#pragma once

#include <string>

#include "base/result.hpp"
#include "text/jinja/runtime.hpp"
#include "text/jinja/text.hpp"
#include "text/jinja/value.hpp"

namespace lockstep::text::jinja {

/// str(value); an undefined value is the empty text. Errors: Limit.
Result<TextPtr> to_text(Runtime& runtime, const Value& value);
/// Appends repr(value). Errors: Limit.
Status append_repr(Runtime& runtime, const Value& value, TextBuilder& out);
/// The shortest digits that read back as the number, in Python's layout: "1.0", "1e-07", "inf".
[[nodiscard]] std::string format_float(double number);

/// `format % arguments` with %s %r %d %i %x %o %f %e %g %c %%. Errors: Invalid, Unsupported.
Result<Value> percent_format(Runtime& runtime, const Text& format, const Value& arguments);
/// str.format with positions, names and specifications of alignment, width, precision and type; no attributes or
/// elements of arguments. Errors: Invalid, Unsupported.
Result<Value> brace_format(Runtime& runtime, const Text& format, const Arguments& arguments);

}  // namespace lockstep::text::jinja
