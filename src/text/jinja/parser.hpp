// Builds the tree of a template.
#pragma once

#include <string_view>

#include "base/result.hpp"
#include "text/jinja/ast.hpp"
#include "text/jinja/limits.hpp"

namespace lockstep::text::jinja {

/// Parses a template. Errors: Invalid (syntax, with the line; a filter or test that does not exist outside of an if, as
/// Jinja2 has it), Unsupported (inheritance, imports, recursive loops, filters of Jinja2 that are not implemented),
/// Limit (size, nesting).
Result<Program> parse_template(std::string_view source, const TemplateLimits& limits);

}  // namespace lockstep::text::jinja
