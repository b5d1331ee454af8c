#include "server/router.hpp"

#include <algorithm>
#include <charconv>

#include "server/generation.hpp"
#include "server/host_check.hpp"

namespace lockstep::server {
namespace {

/// What stands for {id} when the route matches.
std::optional<std::string_view> match(const Route& route, std::string_view path) {
  constexpr std::string_view kId = "{id}";
  if (!route.path.ends_with(kId)) return path == route.path ? std::optional(std::string_view()) : std::nullopt;
  const std::string_view prefix = route.path.substr(0, route.path.size() - kId.size());
  if (!path.starts_with(prefix) || path.size() == prefix.size()) return std::nullopt;
  return path.substr(prefix.size());
}

bool same_method(const Route& route, std::string_view method) {
  return route.method == method || (method == "HEAD" && route.method == "GET");
}

const Route* find_route(const HttpRequest& request) {
  const auto routes = Router::routes();
  const auto found = std::ranges::find_if(routes, [&](const Route& route) {
    return same_method(route, request.method) && match(route, request.path).has_value();
  });
  return found == routes.end() ? nullptr : &*found;
}

/// A piece of a path without its percent-escapes; what is no escape stays as it is.
std::string unescaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* const end = text.data() + std::min(text.size(), i + 3);
    if (text[i] == '%' && end - (text.data() + i) == 3 &&
        std::from_chars(text.data() + i + 1, end, value, 16).ptr == end) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

/// The methods that a path takes, for the Allow header; empty for an unknown path.
std::string allowed_methods(std::string_view path) {
  std::string out;
  for (const Route& route : Router::routes()) {
    if (match(route, path)) out += fmt::format("{}{}", out.empty() ? "" : ", ", route.method);
  }
  return out;
}

}  // namespace

std::span<const Route> Router::routes() {
  static constexpr Route kRoutes[] = {
      {"GET", "/health", &Router::health, true},
      {"GET", "/metrics", &Router::metrics},
      {"GET", "/stats", &Router::stats},
      {"GET", "/v1/models", &Router::models},
      {"GET", "/v1/models/{id}", &Router::model},
      {"POST", "/v1/chat/completions", &Router::chat},
      {"POST", "/v1/completions", &Router::completions},
      {"POST", "/v1/responses", &Router::responses},
      {"POST", "/v1/messages", &Router::messages},
      {"POST", "/v1/messages/count_tokens", &Router::count_tokens},
      {"POST", "/tokenize", &Router::tokenize},
      {"POST", "/detokenize", &Router::detokenize},
      {"POST", "/apply-template", &Router::apply_template},
      {"DELETE", "/v1/requests/{id}", &Router::cancel},
  };
  return kRoutes;
}

ErrorShape shape_of(const HttpRequest& request) {
  return request.path.starts_with("/v1/messages") ? ErrorShape::Anthropic : ErrorShape::OpenAi;
}

void respond_json(Exchange& exchange, const OrderedJson& json, int status) {
  HttpResponse response;
  response.status = status;
  response.body = dump(json) + "\n";
  exchange.respond(std::move(response));
}

void respond_error(Exchange& exchange, const ApiError& error) {
  exchange.respond(error_response(error, shape_of(exchange.request())));
}

bool Router::origin_allowed(std::string_view origin) const {
  return std::ranges::any_of(options_.origins, [&](const std::string& one) { return one == "*" || one == origin; });
}

bool Router::host_allowed(const HttpRequest& request) const {
  const HttpServer* server = server_.load();
  if (options_.keys.required() || (server != nullptr && !server->loopback())) return true;
  const std::string_view host = request.header("host");
  // Browsers always send it; a client of HTTP/1.0 need not.
  return host.empty() || lockstep::server::host_allowed(host, options_.bound, options_.hosts);
}

std::optional<HttpResponse> Router::refuse(const HttpRequest& request) {
  const auto error = [&](int status, std::string_view code, std::string message) {
    return error_response(ApiError{status, std::string(code), "", std::move(message), 0}, shape_of(request));
  };
  if (!host_allowed(request)) {
    return error(403, "host_not_allowed", "this server does not go by the name in the header Host; see --allow-host");
  }
  const std::string_view origin = request.header("origin");
  if (request.method == "OPTIONS" && origin_allowed(origin)) return std::nullopt;
  const Route* route = find_route(request);
  if ((route == nullptr || !route->open) && !options_.keys.admit(request)) {
    HttpResponse response = error(401, "invalid_api_key",
                                  "the API key is missing or wrong; send it as 'authorization: Bearer KEY' or as "
                                  "'x-api-key: KEY'");
    response.headers.emplace_back("www-authenticate", "Bearer");
    return response;
  }
  // A web page can make a browser post here. Browsers say which page it was; other clients send no such header.
  if (!origin.empty() && request.method != "GET" && request.method != "HEAD" && !origin_allowed(origin)) {
    return error(403, "origin_not_allowed", "web pages of this origin may not ask; see --cors-origin");
  }
  if (route == nullptr) {
    const std::string allowed = allowed_methods(request.path);
    if (allowed.empty()) return error(404, "unknown_route", "there is no such route; see docs/server.md");
    HttpResponse response = error(405, "method_not_allowed", "this route takes " + allowed);
    response.headers.emplace_back("allow", allowed);
    return response;
  }
  const std::string_view encoding = request.header("content-encoding");
  if (!encoding.empty() && encoding != "identity") {
    return error(415, "unsupported_encoding", "send the body without content-encoding");
  }
  return std::nullopt;
}

Headers Router::extra_headers(const HttpRequest& request) {
  const std::string_view origin = request.header("origin");
  if (origin.empty() || !origin_allowed(origin)) return {};
  Headers headers = {{"access-control-allow-origin", std::string(origin)},
                     {"vary", "origin"},
                     {"access-control-expose-headers", "x-request-id, retry-after"}};
  if (request.method == "OPTIONS") {
    headers.emplace_back("access-control-allow-methods", "GET, POST, DELETE");
    // What was asked for, so that clients with headers of their own work: keys are no ambient authority.
    headers.emplace_back("access-control-allow-headers", request.header("access-control-request-headers"));
    headers.emplace_back("access-control-max-age", "600");
  }
  return headers;
}

void Router::handle(const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  const Route* route = find_route(request);
  if (route == nullptr) {  // refuse() let it through: a preflight
    HttpResponse response;
    response.status = 204;
    return exchange->respond(std::move(response));
  }
  (this->*route->action)(exchange, unescaped(*match(*route, request.path)));
}

HttpResponse Router::failure(const HttpRequest& request, HttpFailure failure) {
  return error_response(
      ApiError{failure.status, std::move(failure.code), "", std::move(failure.message), failure.retry_after_seconds},
      shape_of(request));
}

void Router::record(const HttpRecord& record) {
  const Route* route = find_route(*record.request);
  service_.metrics().http_response(route == nullptr ? "other" : route->path, record.status, record.seconds);
  if (options_.log) options_.log->write(record);
}

}  // namespace lockstep::server
