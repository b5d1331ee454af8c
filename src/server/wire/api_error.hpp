// A request that gets no answer: the HTTP status and the words, in the shape that the API's clients expect.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "base/json.hpp"
#include "base/result.hpp"
#include "engine/request.hpp"

namespace lockstep::server {

/// Whose error shape and conventions a route follows.
enum class ErrorShape : std::uint8_t { OpenAi, Anthropic };

struct ApiError {
  int status = 400;
  std::string code;     ///< machine-readable: "invalid_value", "unknown_field", "queue_full", ...
  std::string param;    ///< path of the field, "messages[2].content[0].type"; empty when no field is to blame
  std::string message;  ///< one line: what is wrong and what to do
  std::int64_t retry_after_seconds = 0;  ///< for the Retry-After header; 0: none
};

template <class T>
using Parsed = tl::expected<T, ApiError>;

/// {"error": {"message", "type", "param", "code"}} or {"type": "error", "error": {"type", "message"}}. Anthropic's
/// shape has no place for the field, so its message begins with it.
[[nodiscard]] OrderedJson error_body(const ApiError& error, ErrorShape shape);

/// What an engine's refusal is over HTTP.
[[nodiscard]] ApiError from_refusal(const engine::Refusal& refusal);
/// A failure of the program: Limit is 413, Cancelled 499, Invalid and Unsupported 400, the rest 500.
[[nodiscard]] ApiError from_error(const Error& error, std::string param = {});

}  // namespace lockstep::server
