// What the routes do.
#include <algorithm>

#include "server/generation.hpp"
#include "server/router.hpp"

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
  response.body = service_.metrics().text(statistics ? &*statistics : nullptr,
                                          server == nullptr ? 0 : server->connections(), service_.disk_faults());
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

void Router::prepare(const std::shared_ptr<Exchange>& exchange, std::function<Next(const Unwanted&)> work) {
  // A hand-over between threads would cost more than the work itself.
  constexpr std::size_t kAtOnce = 4096;
  const std::size_t bytes = exchange->request().body.size();
  if (bytes <= kAtOnce) {
    if (const Next next = work([] { return false; })) next();
    return;
  }
  auto task = std::make_shared<Workers::Task>([this, exchange, work = std::move(work)](const Unwanted& unwanted) {
    Next next;
    try {
      next = work(unwanted);
    } catch (const std::exception&) {
      next = [this, exchange] { exchange->respond(failure(exchange->request(), failed_request())); };
    }
    exchange->post([exchange, next = std::move(next), unwanted] {
      if (next && !unwanted()) next();
    });
  });
  exchange->on_gone([task] { task->abandon(); });
  service_.workers().add(bytes, std::move(task));
}

void Router::generate(Api api, const std::shared_ptr<Exchange>& exchange) {
  const std::shared_ptr<const ModelContext> model = loaded(exchange);
  if (!model) return;
  RequestLimits limits = service_.options().limits;
  limits.choices = std::min(limits.choices, model->engine->limits().max_choices);
  prepare(exchange, [this, api, exchange, model, limits](const Unwanted& unwanted) -> Next {
    const auto refuse = [&exchange](ApiError error) {
      return [exchange, error = std::move(error)] { respond_error(*exchange, error); };
    };
    Parsed<GenerationRequest> request = parse_request(api, exchange->request().body, limits);
    if (!request) return refuse(request.error());
    if (const auto known = check_model(request->model); !known) return refuse(known.error());
    auto generation = std::make_shared<Generation>(exchange, service_, model, *std::move(request));
    if (const auto ready = generation->prepare(unwanted); !ready) return refuse(ready.error());
    return [generation = std::move(generation)] { generation->run(); };
  });
}

void Router::answer(const std::shared_ptr<Exchange>& exchange, TextRoute make) {
  const std::shared_ptr<const ModelContext> model = loaded(exchange);
  if (!model) return;
  prepare(exchange, [this, exchange, model, make](const Unwanted& unwanted) -> Next {
    const auto refuse = [&exchange](ApiError error) {
      return [exchange, error = std::move(error)] { respond_error(*exchange, error); };
    };
    Parsed<OrderedJson> body = parse_body(exchange->request().body, service_.options().limits);
    if (!body) return refuse(body.error());
    TextCall call{*model, service_.options(), *std::move(body), unwanted};
    const Parsed<OrderedJson> made = make(call);
    if (!made) return refuse(made.error());
    HttpResponse response;
    response.body = dump(*made) + "\n";
    return [exchange, response = std::move(response)]() mutable { exchange->respond(std::move(response)); };
  });
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
  answer(exchange, count_message_tokens);
}

void Router::tokenize(const std::shared_ptr<Exchange>& exchange, std::string_view /*id*/) {
  answer(exchange, tokenize_text);
}

void Router::detokenize(const std::shared_ptr<Exchange>& exchange, std::string_view /*id*/) {
  answer(exchange, detokenize_ids);
}

void Router::apply_template(const std::shared_ptr<Exchange>& exchange, std::string_view /*id*/) {
  answer(exchange, apply_chat_template);
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
