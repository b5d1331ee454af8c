// Errors as values. Everything that can fail on outside input returns Result<T>; exceptions do not cross layers and
// aborts are kept for broken invariants.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <type_traits>
#include <utility>

namespace lockstep {

/// What kind of failure it is. The command line maps Usage to exit code 2 and everything else to 1.
enum class ErrorKind : std::uint8_t {
  Usage,        ///< the user's flags or arguments are wrong
  Invalid,      ///< a file, request or prompt has unusable content
  NotFound,     ///< a file, tensor or name does not exist
  Io,           ///< the system refused a read, write or map
  Unsupported,  ///< valid input that this program does not implement, said instead of ignored
  Limit,        ///< a documented limit was exceeded (memory, context, size, steps)
  Cancelled,    ///< the user interrupted
  Internal,     ///< a failure that is nobody's input, e.g. non-finite logits
};

/// A failure: its kind and one line that says what happened, where, and what to do.
struct Error {
  ErrorKind kind = ErrorKind::Internal;
  std::string message;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

/// Builds a failed Result: `return fail(ErrorKind::Invalid, "{}: header too short", path);`
template <class... Args>
[[nodiscard]] tl::unexpected<Error> fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{kind, fmt::format(format, std::forward<Args>(args)...)});
}

/// Prefixes the message of a failure with where it happened: `return with_context(result.error(), path);`
[[nodiscard]] inline tl::unexpected<Error> with_context(Error error, std::string_view where) {
  error.message = fmt::format("{}: {}", where, error.message);
  return tl::unexpected<Error>(std::move(error));
}

namespace detail {
template <class T>
T take(Result<T>&& result) {
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}
}  // namespace detail

}  // namespace lockstep

/// Evaluates to the value of a Result, or returns its error from the enclosing function:
/// `auto bytes = LOCKSTEP_TRY(read_file(path));`  For a Status it is a plain statement.
#define LOCKSTEP_TRY(expression)                                                             \
  __extension__({                                                                            \
    auto lockstep_try_result = (expression);                                                 \
    if (!lockstep_try_result) return tl::unexpected(std::move(lockstep_try_result).error()); \
    ::lockstep::detail::take(std::move(lockstep_try_result));                                \
  })
