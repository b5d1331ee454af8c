// Where in a request's body the object is that has too many members.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::server {

/// The path of the first object of `body` with more than `most` members, "messages[2].tool_calls"; empty when there is
/// none, or when it is the body itself. `body` is JSON at least as far as that object, of bounded size and depth.
[[nodiscard]] std::string place_of_large_object(std::string_view body, std::size_t most);

}  // namespace lockstep::server
