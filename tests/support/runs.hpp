// Running generations and decoders to their end and comparing what came out.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "decode/generation.hpp"
#include "decode/lanes/ar_pipeline.hpp"
#include "support/state_parts.hpp"

namespace lockstep::decode::testing {

/// Everything that a request leaves behind.
struct Trace {
  std::vector<TokenId> ids;
  std::vector<double> probabilities;
  std::vector<Logprobs> logprobs;
  Finish finish = Finish::None;
  DecodeStats stats;
  std::vector<TokenId> tokens;  ///< of the sequence
  test::StateParts state;       ///< without the draft layer's part, which plain decoding leaves empty
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

/// Decodes a request; failures are failures of the test.
inline Trace decode(Decoder& decoder, Driver& driver, const DecodeRequest& request) {
  Trace out;
  const TokenSink sink = [&](std::span<const Choice> tokens) -> Result<bool> {
    for (const Choice& token : tokens) {
      out.ids.push_back(token.id);
      out.probabilities.push_back(token.probability);
    }
    return true;
  };
  const Status started = decoder.start(request, {});
  EXPECT_TRUE(started) << (started ? "" : started.error().message);
  if (!started) return out;
  const Status ran = driver.run(decoder, sink, [] {});
  EXPECT_TRUE(ran) << (ran ? "" : ran.error().message);
  if (!ran) return out;
  out.finish = decoder.finish();
  out.stats = decoder.stats();
  out.tokens = decoder.sequence()->tokens();
  out.state = decoder.sequence()->save_parts(false);
  return out;
}

/// The same in the plain loop.
inline Trace decode(Decoder& decoder, const DecodeRequest& request) {
  return decode(decoder, *make_plain_driver(), request);
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
  return test::part_difference(a.state, b.state);
}

}  // namespace lockstep::decode::testing
