// What the routes do.
#include <algorithm>
#include <limits>

#include "server/generation.hpp"
#include "server/router.hpp"
#include "server/wire/object_reader.hpp"

namespace lockstep::server {
namespace {

/// When the model was made is not known; clients want a number.
constexpr std::int64_t kModelCreated = 0;

}  // namespace

std::shared_ptr<const ModelContext> Router::loaded(const std::shared_ptr<Exchange>& exchange) {
  std::shared_ptr<const ModelContext> model = service_.model();
  if (!model) respond_error(*exchange, ApiError{503, "loading", "", "the model is still loading; see /health", 1});
  return model;
}

Parsed<void> Router::check_model(const std::string& name) const {
  if (!service_.options().limits.strict || name == service_.options().model_id) return {};
  return tl::unexpected(ApiError{404, "model_not_found", "model",
                                 fmt::format("this server has the model '{}' only", service_.options().model_id), 0});
}

void Router::health(const std::shared_ptr<Exchange>& exchange, std::string_view /*id*/) {
  const auto [body, ready] = service_.health();
  respond_json(*exchange, body, ready ? 200 : 503);
}

void Router::stats(const std::shared_ptr<Exchange>& exchange, std::string_view /*id*/) {
  respond_json(*exchange, service_.stats());
}

void Router::metrics(const std::shared_ptr<Exchange>& exchange, std::string_view /*id*/) {
  std::optional<engine::Statistics> statistics;
  if (const auto model = service_.model()) statistics = model->engine->stats();
  const HttpServer* server = server_.load();
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body =
      service_.metrics().text(statistics ? &*statistics : nullptr, server == nullptr ? 0 : server->connections());
  exchange->respond(std::move(response));
}

OrderedJson Router::model_entry() const {
  // OpenAI's and Anthropic's clients each find their fields.
  OrderedJson entry = {{"id", service_.options().model_id}, {"object", "model"}};
  entry["created"] = kModelCreated;
  entry["owned_by"] = "lockstep";
  entry["type"] = "model";
  entry["display_name"] = service_.options().model_id;
  entry["created_at"] = "1970-01-01T00:00:00Z";
  if (const auto model = service_.model()) entry["max_model_len"] = model->engine->limits().context;
  return entry;
}

void Router::models(const std::shared_ptr<Exchange>& exchange, std::string_view /*id*/) {
  OrderedJson body = {{"object", "list"}, {"data", OrderedJson::array({model_entry()})}};
  body["has_more"] = false;
  body["first_id"] = service_.options().model_id;
  body["last_id"] = service_.options().model_id;
  respond_json(*exchange, body);
}

void Router::model(const std::shared_ptr<Exchange>& exchange, std::string_view id) {
  if (id == service_.options().model_id) return respond_json(*exchange, model_entry());
  respond_error(*exchange,
                ApiError{404, "model_not_found", "model",
                         fmt::format("this server has the model '{}' only", service_.options().model_id), 0});
}

void Router::generate(Api api, const std::shared_ptr<Exchange>& exchange) {
  const std::shared_ptr<const ModelContext> model = loaded(exchange);
  if (!model) return;
  RequestLimits limits = service_.options().limits;
  limits.choices = std::min(limits.choices, model->engine->limits().max_choices);
  Parsed<GenerationRequest> request = parse_request(api, exchange->request().body, limits);
  if (!request) return respond_error(*exchange, request.error());
  if (const auto known = check_model(request->model); !known) return respond_error(*exchange, known.error());
  std::make_shared<Generation>(exchange, service_, model, *std::move(request))->run();
}

void Router::chat(const std::shared_ptr<Exchange>& exchange, std::string_view /*id*/) {
  generate(Api::Chat, exchange);
}

void Router::completions(const std::shared_ptr<Exchange>& exchange, std::string_view /*id*/) {
  generate(Api::Completions, exchange);
}

void Router::responses(const std::shared_ptr<Exchange>& exchange, std::string_view /*id*/) {
  generate(Api::Responses, exchange);
}

void Router::messages(const std::shared_ptr<Exchange>& exchange, std::string_view /*id*/) {
  generate(Api::Messages, exchange);
}

void Router::count_tokens(const std::shared_ptr<Exchange>& exchange, std::string_view /*id*/) {
  const std::shared_ptr<const ModelContext> model = loaded(exchange);
  if (!model) return;
  const RequestLimits& limits = service_.options().limits;
  const Parsed<OrderedJson> body = parse_body(exchange->request().body, limits);
  if (!body) return respond_error(*exchange, body.error());
  const Parsed<GenerationRequest> request = parse_message(*body, limits, true);
  if (!request) return respond_error(*exchange, request.error());
  const auto prompts = prepare_prompts(*model, *request);
  if (!prompts) return respond_error(*exchange, prompts.error());
  respond_json(*exchange, {{"input_tokens", (*prompts)[0].tokens.size()}});
}

void Router::tokenize(const std::shared_ptr<Exchange>& exchange, std::string_view /*id*/) {
  const std::shared_ptr<const ModelContext> model = loaded(exchange);
  if (!model) return;
  const RequestLimits& limits = service_.options().limits;
  const Parsed<OrderedJson> body = parse_body(exchange->request().body, limits);
  if (!body) return respond_error(*exchange, body.error());
  Problems problems;
  ObjectReader reader(*body, "", problems);
  std::optional<std::string> text = reader.string("content");
  if (!text) text = reader.string("prompt");
  if (!text) reader.complain("content", "is required: the text", "missing_required_parameter");
  const bool pieces = reader.boolean("with_pieces").value_or(false);
  const bool special = reader.boolean("parse_special").value_or(true);
  reader.ignore({"model"});
  reader.finish(limits.strict);
  if (problems.any()) return respond_error(*exchange, problems.first());
  text::EncodeOptions options;
  options.added_tokens = special;
  const auto ids = model->tokenizer.encode(*text, options);
  if (!ids) return respond_error(*exchange, from_error(ids.error(), "content"));
  OrderedJson out = {{"tokens", *ids}, {"count", ids->size()}};
  out["max_model_len"] = model->engine->limits().context;
  if (pieces) {
    out["pieces"] = OrderedJson::array();
    for (const std::int32_t id : *ids) out["pieces"].push_back(model->tokenizer.token_bytes(id));
  }
  respond_json(*exchange, out);
}

void Router::detokenize(const std::shared_ptr<Exchange>& exchange, std::string_view /*id*/) {
  const std::shared_ptr<const ModelContext> model = loaded(exchange);
  if (!model) return;
  const RequestLimits& limits = service_.options().limits;
  const Parsed<OrderedJson> body = parse_body(exchange->request().body, limits);
  if (!body) return respond_error(*exchange, body.error());
  Problems problems;
  ObjectReader reader(*body, "", problems);
  reader.require("tokens");
  std::vector<std::int32_t> ids;
  if (const OrderedJson* tokens = reader.array("tokens", std::size_t{1} << 22)) {
    for (std::size_t i = 0; i < tokens->size(); ++i) {
      const OrderedJson& id = (*tokens)[i];
      if (id.is_number_unsigned() && id.get<std::uint64_t>() <= INT32_MAX) {
        ids.push_back(id.get<std::int32_t>());
      } else {
        problems.add(element_path("tokens", i), "must be a token id");
      }
    }
  }
  const bool skip = reader.boolean("skip_special_tokens").value_or(false);
  reader.ignore({"model"});
  reader.finish(limits.strict);
  if (problems.any()) return respond_error(*exchange, problems.first());
  const Result<std::string> text = model->tokenizer.decode_checked(ids, skip);
  if (!text) return respond_error(*exchange, from_error(text.error(), "tokens"));
  respond_json(*exchange, {{"content", *text}, {"prompt", *text}});
}

void Router::apply_template(const std::shared_ptr<Exchange>& exchange, std::string_view /*id*/) {
  const std::shared_ptr<const ModelContext> model = loaded(exchange);
  if (!model) return;
  RequestLimits limits = service_.options().limits;
  Parsed<OrderedJson> body = parse_body(exchange->request().body, limits);
  if (!body) return respond_error(*exchange, body.error());
  if (!body->contains("model")) (*body)["model"] = service_.options().model_id;
  const Parsed<GenerationRequest> request = parse_chat(*body, limits);
  if (!request) return respond_error(*exchange, request.error());
  const auto prompts = prepare_prompts(*model, *request);
  if (!prompts) return respond_error(*exchange, prompts.error());
  const PreparedPrompt& prompt = (*prompts)[0];
  respond_json(*exchange, {{"prompt", prompt.text}, {"tokens", prompt.tokens}, {"count", prompt.tokens.size()}});
}

void Router::cancel(const std::shared_ptr<Exchange>& exchange, std::string_view id) {
  // The id of a response has a prefix, that of x-request-id has none.
  const std::size_t mark = id.find_last_of("-_");
  if (mark != std::string_view::npos) id.remove_prefix(mark + 1);
  const std::shared_ptr<Generation> generation = service_.find(std::string(id));
  if (!generation) {
    return respond_error(*exchange, ApiError{404, "request_not_found", "", "no such request is running", 0});
  }
  generation->cancel();
  respond_json(*exchange, {{"id", id}, {"object", "request"}, {"cancelled", true}});
}

}  // namespace lockstep::server
