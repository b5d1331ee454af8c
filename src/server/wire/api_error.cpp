#include "server/wire/api_error.hpp"

namespace lockstep::server {
namespace {

std::string_view openai_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

std::string_view anthropic_type(int status) {
  switch (status) {
    case 413:
      return "request_too_large";
    case 503:
      return "overloaded_error";
    default:
      break;
  }
  return status < 500 ? openai_type(status) : "api_error";
}

}  // namespace

OrderedJson error_body(const ApiError& error, ErrorShape shape) {
  if (shape == ErrorShape::Anthropic) {
    const std::string message = error.param.empty() ? error.message : error.param + ": " + error.message;
    return {{"type", "error"}, {"error", {{"type", anthropic_type(error.status)}, {"message", message}}}};
  }
  OrderedJson detail = {{"message", error.message}, {"type", openai_type(error.status)}};
  detail["param"] = error.param.empty() ? OrderedJson() : OrderedJson(error.param);
  detail["code"] = error.code.empty() ? OrderedJson() : OrderedJson(error.code);
  return {{"error", std::move(detail)}};
}

ApiError from_refusal(const engine::Refusal& refusal) {
  ApiError error;
  error.message = refusal.message;
  error.retry_after_seconds = refusal.retry_after_seconds;
  switch (refusal.reason) {
    case engine::RefusalReason::Invalid:
      error.code = "invalid_value";
      break;
    case engine::RefusalReason::TooLarge:
      error.status = 413;
      error.code = "context_length_exceeded";
      break;
    case engine::RefusalReason::QueueFull:
      error.status = 429;
      error.code = "queue_full";
      break;
    case engine::RefusalReason::Draining:
      error.status = 503;
      error.code = "draining";
      break;
    case engine::RefusalReason::Poisoned:
      error.status = 503;
      error.code = "poisoned";
      break;
  }
  return error;
}

ApiError from_error(const Error& error, std::string param) {
  ApiError out;
  out.message = error.message;
  out.param = std::move(param);
  switch (error.kind) {
    case ErrorKind::Usage:
    case ErrorKind::Invalid:
    case ErrorKind::Unsupported:
      out.code = "invalid_value";
      break;
    case ErrorKind::Limit:
      out.status = 413;
      out.code = "limit_exceeded";
      break;
    case ErrorKind::Cancelled:
      out.status = 499;
      out.code = "cancelled";
      break;
    default:
      out.status = 500;
      out.code = "internal_error";
      break;
  }
  return out;
}

}  // namespace lockstep::server
