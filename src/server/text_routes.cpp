// Routes about text and tokens, without generation.
#include "server/router.hpp"
#include "server/wire/object_reader.hpp"

namespace lockstep::server {
namespace {

std::vector<std::int32_t> read_ids(ObjectReader& reader, std::size_t most) {
  std::vector<std::int32_t> ids;
  reader.require("tokens");
  const OrderedJson* tokens = reader.array("tokens", most);
  if (tokens == nullptr) return ids;
  for (std::size_t i = 0; i < tokens->size(); ++i) {
    if (const auto id = token_id((*tokens)[i], element_path("tokens", i), reader.problems())) ids.push_back(*id);
  }
  return ids;
}

}  // namespace

Parsed<OrderedJson> count_message_tokens(TextCall& call) {
  const Parsed<GenerationRequest> request = parse_message(call.body, call.options.limits, true);
  if (!request) return tl::unexpected(request.error());
  const auto prompts = prepare_prompts(call.model, *request, call.unwanted);
  if (!prompts) return tl::unexpected(prompts.error());
  return OrderedJson{{"input_tokens", (*prompts)[0].tokens.size()}};
}

Parsed<OrderedJson> tokenize_text(TextCall& call) {
  Problems problems;
  ObjectReader reader(call.body, "", problems);
  std::optional<std::string> text = reader.string("content");
  std::optional<std::string> prompt = reader.string("prompt");
  const char* const param = text || !prompt ? "content" : "prompt";
  if (!text) text = std::move(prompt);
  if (!text) reader.complain("content", "is required: the text", "missing_required_parameter");
  const bool pieces = reader.boolean("with_pieces").value_or(false);
  text::EncodeOptions options = encode_options(call.model, call.unwanted);
  options.added_tokens = reader.boolean("parse_special").value_or(true);
  reader.string("model");
  reader.finish(call.options.limits.strict);
  if (problems.any()) return tl::unexpected(problems.first());
  const auto ids = call.model.tokenizer.encode(*text, options);
  if (!ids) return tl::unexpected(encode_error(call.model, ids.error(), param));
  OrderedJson out = {{"tokens", *ids}, {"count", ids->size()}};
  out["max_model_len"] = call.model.engine->limits().context;
  if (pieces) {
    out["pieces"] = OrderedJson::array();
    for (const std::int32_t id : *ids) out["pieces"].push_back(call.model.tokenizer.token_bytes(id));
  }
  return out;
}

Parsed<OrderedJson> detokenize_ids(TextCall& call) {
  Problems problems;
  ObjectReader reader(call.body, "", problems);
  const std::vector<std::int32_t> ids = read_ids(reader, static_cast<std::size_t>(call.model.engine->limits().context));
  const bool skip = reader.boolean("skip_special_tokens").value_or(false);
  reader.string("model");
  reader.finish(call.options.limits.strict);
  if (problems.any()) return tl::unexpected(problems.first());
  const Result<std::string> text = call.model.tokenizer.decode_checked(ids, skip);
  if (!text) return tl::unexpected(from_error(text.error(), "tokens"));
  return OrderedJson{{"content", *text}, {"prompt", *text}};
}

Parsed<OrderedJson> apply_chat_template(TextCall& call) {
  if (!call.body.contains("model")) call.body["model"] = call.options.model_id;
  const Parsed<GenerationRequest> request = parse_chat(call.body, call.options.limits);
  if (!request) return tl::unexpected(request.error());
  const auto prompts = prepare_prompts(call.model, *request, call.unwanted);
  if (!prompts) return tl::unexpected(prompts.error());
  const PreparedPrompt& prompt = (*prompts)[0];
  return OrderedJson{{"prompt", prompt.text}, {"tokens", prompt.tokens}, {"count", prompt.tokens.size()}};
}

}  // namespace lockstep::server
