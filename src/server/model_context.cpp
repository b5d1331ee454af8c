#include "server/model_context.hpp"

#include <algorithm>

#include "server/wire/answer.hpp"
#include "server/wire/object_reader.hpp"
#include "text/chat_prompt.hpp"

namespace lockstep::server {
namespace {

/// Positions behind the tokens that end a turn. What users write makes no such tokens.
std::vector<std::int64_t> message_ends(const ModelContext& model, const std::vector<decode::TokenId>& tokens) {
  std::vector<std::int64_t> ends;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (std::ranges::binary_search(model.defaults.stop_ids, tokens[i])) {
      ends.push_back(static_cast<std::int64_t>(i) + 1);
    }
  }
  return ends;
}

Parsed<PreparedPrompt> chat_prompt(const ModelContext& model, const GenerationRequest& request,
                                   const Unwanted& unwanted) {
  const char* const param = request.api == Api::Responses ? "input" : "messages";
  text::ChatOptions options;
  options.tools = request.tools;
  options.add_generation_prompt = true;
  options.extra = request.variables;
  Result<text::Rendered> rendered = model.chat_template.render(request.messages, options);
  if (!rendered) {
    ApiError error = from_error(rendered.error(), param);
    error.message = "the model's chat template: " + error.message;
    return tl::unexpected(std::move(error));
  }
  text::EncodeOptions encode = encode_options(model, unwanted);
  encode.literal = rendered->literal;
  Result<std::vector<decode::TokenId>> tokens = model.tokenizer.encode(rendered->text, encode);
  if (!tokens) return tl::unexpected(encode_error(model, tokens.error(), param));
  PreparedPrompt prompt;
  prompt.text = std::move(rendered->text);
  prompt.tokens = *std::move(tokens);
  prompt.reasoning_open = text::ends_in_reasoning(model.tokenizer, prompt.tokens);
  prompt.boundaries = message_ends(model, prompt.tokens);
  return prompt;
}

Parsed<PreparedPrompt> raw_prompt(const ModelContext& model, const GenerationRequest::Prompt& given, std::string param,
                                  const Unwanted& unwanted) {
  PreparedPrompt prompt;
  if (const auto* ids = std::get_if<std::vector<decode::TokenId>>(&given)) {
    const auto context = static_cast<std::size_t>(model.engine->limits().context);
    if (ids->size() > context) {
      return tl::unexpected(ApiError{413, "context_length_exceeded", std::move(param),
                                     fmt::format("has {} tokens; the context holds {}", ids->size(), context), 0});
    }
    for (std::size_t i = 0; i < ids->size(); ++i) {
      if ((*ids)[i] < model.vocab) continue;
      return tl::unexpected(
          ApiError{400, "invalid_value", element_path(param, i),
                   fmt::format("is token {}; the vocabulary has ids 0 to {}", (*ids)[i], model.vocab - 1), 0});
    }
    prompt.tokens = *ids;
    prompt.text = model.tokenizer.decode(*ids, false);
    return prompt;
  }
  prompt.text = std::get<std::string>(given);
  Result<std::vector<decode::TokenId>> tokens = model.tokenizer.encode(prompt.text, encode_options(model, unwanted));
  if (!tokens) return tl::unexpected(encode_error(model, tokens.error(), std::move(param)));
  prompt.tokens = *std::move(tokens);
  return prompt;
}

}  // namespace

text::EncodeOptions encode_options(const ModelContext& model, const Unwanted& unwanted) {
  text::EncodeOptions options;
  options.max_tokens = static_cast<std::size_t>(model.engine->limits().context);
  options.stop = unwanted;
  return options;
}

ApiError encode_error(const ModelContext& model, const Error& error, std::string param) {
  ApiError out = from_error(error, std::move(param));
  if (error.kind == ErrorKind::Limit) {
    out.code = "context_length_exceeded";
    out.message += fmt::format("; the context holds {}", model.engine->limits().context);
  }
  return out;
}

Parsed<std::vector<PreparedPrompt>> prepare_prompts(const ModelContext& model, const GenerationRequest& request,
                                                    const Unwanted& unwanted) {
  std::vector<PreparedPrompt> out;
  const bool chat = request.api != Api::Completions;
  const std::size_t count = chat ? 1 : request.prompts.size();
  for (std::size_t i = 0; i < count; ++i) {
    Parsed<PreparedPrompt> prompt =
        chat ? chat_prompt(model, request, unwanted)
             : raw_prompt(model, request.prompts[i], request.one_prompt ? "prompt" : element_path("prompt", i),
                          unwanted);
    if (!prompt) return tl::unexpected(prompt.error());
    prompt->ids_sha256 = ids_digest(prompt->tokens);
    out.push_back(*std::move(prompt));
  }
  return out;
}

engine::Request engine_request(const ModelContext& model, const GenerationRequest& request,
                               const PreparedPrompt& prompt, std::uint64_t seed, bool bypass_bank) {
  const auto set = [](auto& target, const auto& given) {
    if (given) target = *given;
  };
  engine::Request out;
  out.prompt = prompt.tokens;
  out.boundaries = prompt.boundaries;
  out.sampler = model.defaults.sampler;
  set(out.sampler.temperature, request.sampling.temperature);
  set(out.sampler.top_p, request.sampling.top_p);
  set(out.sampler.top_k, request.sampling.top_k);
  set(out.sampler.min_p, request.sampling.min_p);
  set(out.sampler.presence_penalty, request.sampling.presence_penalty);
  set(out.sampler.frequency_penalty, request.sampling.frequency_penalty);
  out.sampler.logit_bias = request.sampling.logit_bias;
  out.sampler.seed = seed;
  out.n = request.n;
  out.stop_ids = model.defaults.stop_ids;
  if (request.max_tokens) {
    // An answer ends with the context anyway; clients like to ask for more than there is.
    const std::int64_t room = model.engine->limits().context - static_cast<std::int64_t>(prompt.tokens.size());
    out.max_tokens = std::min(*request.max_tokens, std::max<std::int64_t>(room, 1));
  }
  out.logprobs = request.logprobs;
  out.top_logprobs = request.top_logprobs;
  out.prompt_logprobs = request.echo && request.logprobs;
  out.bypass_bank = bypass_bank;
  return out;
}

}  // namespace lockstep::server
