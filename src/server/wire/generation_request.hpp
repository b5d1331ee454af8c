// What every API's request comes down to, and the parsers of the four wire formats (docs/server.md).
//
// The parsers are pure functions of the body. Messages and tools come out in the form that chat templates expect,
// whatever the API: OpenAI's chat form with tool arguments as objects and contents as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/json.hpp"
#include "decode/params.hpp"
#include "server/wire/api_error.hpp"

namespace lockstep::server {

enum class Api : std::uint8_t { Chat, Completions, Responses, Messages };

/// Values that a request names; the model's own defaults stand in for the others.
struct SamplingFields {
  std::optional<double> temperature, top_p, min_p, presence_penalty, frequency_penalty;
  std::optional<std::int64_t> top_k;
  std::optional<std::uint64_t> seed;
  std::map<decode::TokenId, double> logit_bias;
};

struct GenerationRequest {
  using Prompt = std::variant<std::string, std::vector<decode::TokenId>>;

  Api api = Api::Chat;
  std::string model;
  OrderedJson messages = OrderedJson::array();    ///< not for Completions
  OrderedJson tools;                              ///< an array for the template, or null
  OrderedJson variables = OrderedJson::object();  ///< of the template: enable_thinking, reasoning_effort, ...
  std::vector<Prompt> prompts;                    ///< Completions only
  bool one_prompt = true;                         ///< the field is the prompt itself, not a list of prompts
  SamplingFields sampling;
  std::optional<std::int64_t> max_tokens;
  std::vector<std::string> stop;
  std::int64_t n = 1;
  std::int64_t top_logprobs = 0;
  bool logprobs = false, echo = false, stream = false, include_usage = false;
  bool one_call = false;                         ///< the answer ends after its first tool call
  OrderedJson repeated = OrderedJson::object();  ///< Responses: fields that the response shows again
};

struct RequestLimits {
  std::size_t messages = 4096, parts = 4096, tools = 512, prompts = 64;
  std::int64_t choices = 16, top_logprobs = 20;
  std::size_t body_bytes = std::size_t{32} << 20;
  int json_depth = 100;
  std::size_t json_values = std::size_t{1} << 20;
  bool strict = false;  ///< unknown fields are errors
};

/// The body as JSON: within the limits, with unique keys. Errors: 400, 413.
Parsed<OrderedJson> parse_body(std::string_view body, const RequestLimits& limits);

/// POST /v1/chat/completions
Parsed<GenerationRequest> parse_chat(const OrderedJson& body, const RequestLimits& limits);
/// POST /v1/completions
Parsed<GenerationRequest> parse_completion(const OrderedJson& body, const RequestLimits& limits);
/// POST /v1/responses
Parsed<GenerationRequest> parse_response(const OrderedJson& body, const RequestLimits& limits);
/// POST /v1/messages; with `counting` POST /v1/messages/count_tokens, which takes the same without max_tokens.
Parsed<GenerationRequest> parse_message(const OrderedJson& body, const RequestLimits& limits, bool counting);

/// The body and then the parser of its API.
Parsed<GenerationRequest> parse_request(Api api, std::string_view body, const RequestLimits& limits);

[[nodiscard]] constexpr ErrorShape error_shape(Api api) {
  return api == Api::Messages ? ErrorShape::Anthropic : ErrorShape::OpenAi;
}

}  // namespace lockstep::server
