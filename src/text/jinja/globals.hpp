// The functions that every chat template can call: range, namespace, dict, raise_exception, strftime_now.
#pragma once

#include <ctime>
#include <span>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "text/jinja/runtime.hpp"

namespace lockstep::text::jinja {

struct Global {
  std::string_view name;
  NativeFunction native;
};
[[nodiscard]] std::span<const Global> globals();

/// datetime.strftime of a local time without zone, in the C locale. Errors: Limit (a long format).
Result<std::string> format_time(const std::tm& time, std::string_view format);

}  // namespace lockstep::text::jinja
