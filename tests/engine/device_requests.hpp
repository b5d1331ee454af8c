// Requests that a device can draw for.
#pragma once

#include "engine/fixture.hpp"

namespace lockstep::engine {

/// The request without what only the host can draw.
inline void let_device_draw(Request& request) {
  request.sampler.presence_penalty = request.sampler.frequency_penalty = 0;
  request.sampler.logit_bias.clear();
  request.sampler.top_k = 20;
  request.sampler.draw_rule = decode::DrawRule::Pcg64;
  request.sampler.acceptance = decode::AcceptanceRule::Stream;
  request.logprobs = false;
  request.top_logprobs = 0;
}

}  // namespace lockstep::engine
