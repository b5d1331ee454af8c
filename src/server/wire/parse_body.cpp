#include "server/wire/generation_request.hpp"
#include "server/wire/limit_place.hpp"

namespace lockstep::server {

Parsed<OrderedJson> parse_body(std::string_view body, const RequestLimits& limits) {
  const JsonLimits json{.max_bytes = limits.body_bytes,
                        .max_depth = limits.json_depth,
                        .max_values = limits.json_values,
                        .unique_keys = true};
  Result<OrderedJson> parsed = parse_ordered_json(body, "the request's body", json);
  if (!parsed) {
    const bool limit = parsed.error().kind == ErrorKind::Limit && body.size() <= json.max_bytes;
    ApiError error =
        from_error(parsed.error(), limit ? place_of_large_object(body, json.max_ordered_members) : std::string());
    error.code = error.status == 413 ? "limit_exceeded" : "invalid_json";
    return tl::unexpected(std::move(error));
  }
  if (!parsed->is_object()) {
    return tl::unexpected(ApiError{400, "invalid_json", "", "the request's body is not a JSON object", 0});
  }
  return *std::move(parsed);
}

Parsed<GenerationRequest> parse_request(Api api, std::string_view body, const RequestLimits& limits) {
  const Parsed<OrderedJson> json = parse_body(body, limits);
  if (!json) return tl::unexpected(json.error());
  switch (api) {
    case Api::Completions:
      return parse_completion(*json, limits);
    case Api::Responses:
      return parse_response(*json, limits);
    case Api::Messages:
      return parse_message(*json, limits, false);
    default:
      return parse_chat(*json, limits);
  }
}

}  // namespace lockstep::server
