#include "decode/params.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace lockstep::decode {
namespace {

constexpr double kPenaltyLimit = 2.0;
constexpr double kBiasLimit = 100.0;

Status check_range(std::string_view name, double value, double low, double high) {
  // Written so that a NaN fails too.
  if (value >= low && value <= high) return {};
  return fail(ErrorKind::Invalid, "{} is {}; it must be between {} and {}", name, value, low, high);
}

Status check_bias(const SamplerParams& params, std::int64_t vocab) {
  for (const auto& [id, bias] : params.logit_bias) {
    if (id < 0 || id >= vocab) {
      return fail(ErrorKind::Invalid, "logit_bias names token {}; the vocabulary has ids 0 to {}", id, vocab - 1);
    }
    LOCKSTEP_TRY(check_range(fmt::format("logit_bias of token {}", id), bias, -kBiasLimit, kBiasLimit));
  }
  return {};
}

}  // namespace

Result<SamplerParams> checked_params(SamplerParams params, std::int64_t vocab) {
  if (!(params.temperature >= 0 && std::isfinite(params.temperature))) {
    return fail(ErrorKind::Invalid, "temperature is {}; it must be a finite number of at least 0 (0 is greedy)",
                params.temperature);
  }
  if (params.top_k < -1) {
    return fail(ErrorKind::Invalid, "top_k is {}; it must be positive, or 0 or -1 for off", params.top_k);
  }
  params.top_k = std::max<std::int64_t>(params.top_k, 0);
  LOCKSTEP_TRY(check_range("top_p", params.top_p, 0.0, 1.0));
  LOCKSTEP_TRY(check_range("min_p", params.min_p, 0.0, 1.0));
  for (auto [name, value] : {std::pair("presence_penalty", &params.presence_penalty),
                             std::pair("frequency_penalty", &params.frequency_penalty)}) {
    if (!std::isfinite(*value)) return fail(ErrorKind::Invalid, "{} is {}; it must be a finite number", name, *value);
    *value = std::clamp(*value, -kPenaltyLimit, kPenaltyLimit);
  }
  LOCKSTEP_TRY(check_bias(params, vocab));
  if (params.acceptance == AcceptanceRule::Rejection && params.draw_rule == DrawRule::Race) {
    return fail(ErrorKind::Invalid, "rejection acceptance needs the pcg64 draw rule; use stream acceptance with race");
  }
  return params;
}

}  // namespace lockstep::decode
