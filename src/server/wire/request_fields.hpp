// Parts of requests that several APIs share.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "server/wire/generation_request.hpp"
#include "server/wire/object_reader.hpp"

namespace lockstep::server {

/// Why a model that reads text only refuses a part of a message.
inline constexpr std::string_view kTextOnly = "is not supported: this model reads text only";
/// The kinds of a field that takes a string too, for ObjectReader::array().
inline constexpr std::string_view kStringOrArray = "a string or an array";

/// temperature, which ends at 1 in Anthropic's API, top_p, top_k, min_p.
void read_sampling(ObjectReader& reader, SamplingFields& fields, double most_temperature = 2);
/// presence_penalty, frequency_penalty, logit_bias, seed: what only OpenAI's APIs have.
void read_openai_sampling(ObjectReader& reader, SamplingFields& fields);
/// What OpenAI's clients may say about a request and what changes nothing here: user, metadata, store and the like.
void read_labels(ObjectReader& reader);
/// "stop", a string or a list of strings.
void read_stop(ObjectReader& reader, std::vector<std::string>& stop);
/// "stop_sequences", a list of strings.
void read_stop_sequences(ObjectReader& reader, std::vector<std::string>& stop);
/// OpenAI's effort as template variables: "none" turns thinking off, "minimal" is low, "high" is xhigh.
void set_effort(const std::string& effort, OrderedJson& variables);
/// response_format and the like: anything but plain text answers 400.
void read_text_format(ObjectReader& reader, std::string_view key, bool strict);

/// cache_control of a part, a block or a tool: where a prefix may be kept, which the bank does not need to be told.
void read_cache_control(ObjectReader& reader, bool strict);

/// Text of a string or of a list of parts, joined with `separator`. `types` are the part types that carry text.
std::string read_text(const OrderedJson& content, const std::string& path, const RequestLimits& limits,
                      std::initializer_list<std::string_view> types, std::string_view separator, Problems& problems);

/// A tool in the form of chat templates. Complains about names that the model's format cannot carry.
OrderedJson make_tool(ObjectReader& reader, std::string_view name_key, std::string_view schema_key);
/// Arguments of a call of the history as an object, from an object or the text of one.
OrderedJson read_arguments(const OrderedJson* value, const std::string& path, Problems& problems);
/// A message that calls tools; "tool_calls" grows by one.
void append_call(OrderedJson& message, std::string id, std::string name, OrderedJson arguments);

/// The tool_choice of OpenAI's APIs: "auto" and "none" (which takes the tools away).
void read_tool_choice(ObjectReader& reader, GenerationRequest& request);

}  // namespace lockstep::server
