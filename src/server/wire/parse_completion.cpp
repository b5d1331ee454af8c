// POST /v1/completions
#include <limits>

#include "server/wire/generation_request.hpp"
#include "server/wire/request_fields.hpp"

namespace lockstep::server {
namespace {

bool is_ids(const OrderedJson& value) {
  return value.is_array() && !value.empty() && value[0].is_number();
}

std::vector<decode::TokenId> read_ids(const OrderedJson& value, const std::string& path, Problems& problems) {
  std::vector<decode::TokenId> ids;
  ids.reserve(value.size());
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::optional<decode::TokenId> id = token_id(value[i], element_path(path, i), problems);
    if (!id) return {};
    ids.push_back(*id);
  }
  return ids;
}

void read_prompts(ObjectReader& reader, const RequestLimits& limits, GenerationRequest& request) {
  reader.require("prompt");
  const OrderedJson* prompt = reader.find("prompt");
  if (prompt == nullptr) return;
  if (prompt->is_string()) {
    request.prompts.emplace_back(prompt->get<std::string>());
  } else if (is_ids(*prompt)) {
    request.prompts.emplace_back(read_ids(*prompt, "prompt", reader.problems()));
  } else if (reader.array("prompt", limits.prompts, kStringOrArray) != nullptr) {
    request.one_prompt = false;
    if (prompt->empty()) reader.complain("prompt", "is empty");
    for (std::size_t i = 0; i < prompt->size(); ++i) {
      const OrderedJson& one = (*prompt)[i];
      if (one.is_string()) {
        request.prompts.emplace_back(one.get<std::string>());
      } else if (is_ids(one)) {
        request.prompts.emplace_back(read_ids(one, element_path("prompt", i), reader.problems()));
      } else {
        reader.complain(element_path("prompt", i), "must be a string or an array of token ids", "invalid_type");
      }
    }
  }
}

void read_amounts(ObjectReader& reader, const RequestLimits& limits, GenerationRequest& request) {
  request.echo = reader.boolean("echo").value_or(false);
  // OpenAI's default for this API is 16.
  request.max_tokens = reader.integer("max_tokens", 0, std::numeric_limits<std::int64_t>::max()).value_or(16);
  if (request.max_tokens == 0 && !request.echo) reader.complain("max_tokens", "0 needs echo to be true");
  request.n = reader.integer("n", 1, limits.choices).value_or(1);
  const auto best_of = reader.integer("best_of", 1, limits.choices);
  if (best_of && *best_of != request.n) {
    reader.complain("best_of", "is not supported; it must equal n", "unsupported_parameter");
  }
  const OrderedJson* logprobs = reader.find("logprobs");
  if (logprobs == nullptr || *logprobs == false) return;
  const auto top = reader.integer("logprobs", 0, limits.top_logprobs);
  request.logprobs = true;
  request.top_logprobs = top.value_or(0);
}

}  // namespace

Parsed<GenerationRequest> parse_completion(const OrderedJson& body, const RequestLimits& limits) {
  Problems problems;
  ObjectReader reader(body, "", problems);
  GenerationRequest request;
  request.api = Api::Completions;
  reader.require("model");
  request.model = reader.string("model").value_or("");
  read_prompts(reader, limits, request);
  read_sampling(reader, request.sampling);
  read_openai_sampling(reader, request.sampling);
  read_stop(reader, request.stop);
  read_amounts(reader, limits, request);
  request.stream = reader.boolean("stream").value_or(false);
  if (const OrderedJson* options = reader.object("stream_options")) {
    if (!request.stream) reader.complain("stream_options", "needs stream to be true");
    ObjectReader fields(*options, "stream_options", problems);
    request.include_usage = fields.boolean("include_usage").value_or(false);
    fields.boolean("include_obfuscation");
    fields.finish(limits.strict);
  }
  reader.refuse("suffix", "is not supported");
  read_text_format(reader, "response_format", limits.strict);
  read_labels(reader);
  reader.finish(limits.strict);
  if (problems.any()) return tl::unexpected(problems.first());
  return request;
}

}  // namespace lockstep::server
