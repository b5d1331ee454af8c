// Running generations to their end and comparing what came out.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "decode/generation.hpp"

namespace lockstep::decode::testing {

/// Everything that a request leaves behind.
struct Trace {
  std::vector<TokenId> ids;
  std::vector<double> probabilities;
  std::vector<Logprobs> logprobs;
  Finish finish = Finish::None;
  DecodeStats stats;
  std::vector<TokenId> tokens;  ///< of the sequence
  std::vector<std::pair<std::string_view, std::vector<std::byte>>> state;
};

inline std::unique_ptr<Generation> must(Result<std::unique_ptr<Generation>> made) {
  if (!made) throw std::runtime_error(made.error().message);
  return std::move(*made);
}

/// Runs a generation until it needs nothing more.
inline void finish(Generation& generation, model::Runner& runner, std::int64_t chunk) {
  while (generation.need() != Generation::Need::Nothing) {
    const Status status = run_need(generation, runner, chunk);
    if (!status) throw std::runtime_error(status.error().message);
  }
}

inline Trace trace(Generation& generation, model::Runner& runner, std::int64_t chunk) {
  finish(generation, runner, chunk);
  Trace out;
  for (const Choice& choice : generation.emitted()) {
    out.ids.push_back(choice.id);
    out.probabilities.push_back(choice.probability);
  }
  out.logprobs.assign(generation.logprobs().begin(), generation.logprobs().end());
  out.finish = generation.finish();
  out.stats = generation.stats();
  out.tokens = generation.sequence().tokens();
  out.state = generation.sequence().save_parts(false);
  return out;
}

/// Where two traces differ, or nothing.
inline std::string difference(const Trace& a, const Trace& b) {
  if (a.ids != b.ids) return "ids";
  if (a.probabilities != b.probabilities) return "probabilities";
  if (a.finish != b.finish) return "the reason of the end";
  if (a.tokens != b.tokens) return "tokens of the sequence";
  if (a.logprobs.size() != b.logprobs.size()) return "number of log-probabilities";
  for (std::size_t i = 0; i < a.logprobs.size(); ++i) {
    if (a.logprobs[i].chosen != b.logprobs[i].chosen) return "log-probability of token " + std::to_string(i);
    const bool same = std::equal(
        a.logprobs[i].top.begin(), a.logprobs[i].top.end(), b.logprobs[i].top.begin(), b.logprobs[i].top.end(),
        [](const TokenLogprob& x, const TokenLogprob& y) { return x.id == y.id && x.logprob == y.logprob; });
    if (!same) return "alternatives of token " + std::to_string(i);
  }
  if (a.state.size() != b.state.size()) return "number of state parts";
  for (std::size_t i = 0; i < a.state.size(); ++i) {
    if (a.state[i] != b.state[i]) return "state: " + std::string(a.state[i].first);
  }
  return {};
}

}  // namespace lockstep::decode::testing
