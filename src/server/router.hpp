// Which request goes where, and who may ask.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/access_log.hpp"
#include "server/api_keys.hpp"
#include "server/http/http_server.hpp"
#include "server/service.hpp"

namespace lockstep::server {

class Router;

/// What the routes without generation get.
struct TextCall {
  const ModelContext& model;
  const ServiceOptions& options;
  OrderedJson body;
  const Unwanted& unwanted;
};
using TextRoute = Parsed<OrderedJson> (*)(TextCall& call);
// text_routes.cpp
Parsed<OrderedJson> count_message_tokens(TextCall& call);
Parsed<OrderedJson> tokenize_text(TextCall& call);
Parsed<OrderedJson> detokenize_ids(TextCall& call);
Parsed<OrderedJson> apply_chat_template(TextCall& call);

struct Route {
  std::string_view method;
  std::string_view path;  ///< a final {id} stands for the rest of the path
  void (Router::*action)(const std::shared_ptr<Exchange>&, std::string_view id);
  bool open = false;  ///< needs no API key
};

struct RouterOptions {
  ApiKeys keys;
  std::vector<std::string> origins;  ///< of web pages that may ask; "*" is all. Empty: none
  std::shared_ptr<AccessLog> log;    ///< may be null
  std::string bound;                 ///< the address that the server was told to listen on
  std::vector<std::string> hosts;    ///< more names that requests may have come to
};

class Router final : public HttpHandler {
 public:
  Router(Service& service, RouterOptions options) : service_(service), options_(std::move(options)) {}

  [[nodiscard]] static std::span<const Route> routes();
  /// Whose connections the metrics count. Any thread; the server outlives its own requests.
  void set_server(const HttpServer* server) { server_.store(server); }

  std::optional<HttpResponse> refuse(const HttpRequest& request) override;
  void handle(const std::shared_ptr<Exchange>& exchange) override;
  Headers extra_headers(const HttpRequest& request) override;
  HttpResponse failure(const HttpRequest& request, HttpFailure failure) override;
  void record(const HttpRecord& record) override;

 private:
  void health(const std::shared_ptr<Exchange>& exchange, std::string_view id);
  void metrics(const std::shared_ptr<Exchange>& exchange, std::string_view id);
  void stats(const std::shared_ptr<Exchange>& exchange, std::string_view id);
  void models(const std::shared_ptr<Exchange>& exchange, std::string_view id);
  void model(const std::shared_ptr<Exchange>& exchange, std::string_view id);
  void chat(const std::shared_ptr<Exchange>& exchange, std::string_view id);
  void completions(const std::shared_ptr<Exchange>& exchange, std::string_view id);
  void responses(const std::shared_ptr<Exchange>& exchange, std::string_view id);
  void messages(const std::shared_ptr<Exchange>& exchange, std::string_view id);
  void count_tokens(const std::shared_ptr<Exchange>& exchange, std::string_view id);
  void tokenize(const std::shared_ptr<Exchange>& exchange, std::string_view id);
  void detokenize(const std::shared_ptr<Exchange>& exchange, std::string_view id);
  void apply_template(const std::shared_ptr<Exchange>& exchange, std::string_view id);
  void cancel(const std::shared_ptr<Exchange>& exchange, std::string_view id);

  void generate(Api api, const std::shared_ptr<Exchange>& exchange);
  /// What is to be done on the exchange's sequence once the work is done.
  using Next = std::function<void()>;
  /// Does work that reads the request's body: here and now when that is short, else on a thread for it, which the
  /// client's leaving ends.
  void prepare(const std::shared_ptr<Exchange>& exchange, std::function<Next(const Unwanted&)> work);
  /// Answers with the JSON that `make` makes of the body.
  void answer(const std::shared_ptr<Exchange>& exchange, TextRoute make);
  /// The model, or null after having answered that it is still loading.
  std::shared_ptr<const ModelContext> loaded(const std::shared_ptr<Exchange>& exchange);
  /// Without keys, what only this machine can reach takes only what was sent to this machine (host_check.hpp).
  [[nodiscard]] bool host_allowed(const HttpRequest& request) const;
  [[nodiscard]] bool origin_allowed(std::string_view origin) const;
  [[nodiscard]] Parsed<void> check_model(const std::string& name) const;
  [[nodiscard]] OrderedJson model_entry() const;

  Service& service_;
  const RouterOptions options_;
  std::atomic<const HttpServer*> server_{nullptr};
};

/// Anthropic's error shape on its own routes.
[[nodiscard]] ErrorShape shape_of(const HttpRequest& request);
void respond_json(Exchange& exchange, const OrderedJson& json, int status = 200);
void respond_error(Exchange& exchange, const ApiError& error);

}  // namespace lockstep::server
