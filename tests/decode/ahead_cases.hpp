// Requests decoded a step ahead against plain decoding, on any backend.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "decode/draw_cases.hpp"
#include "model/runner.hpp"
#include "support/runs.hpp"

namespace lockstep::decode::testing {

inline DecodeRequest ahead_request(std::mt19937_64& random, std::int64_t vocabulary) {
  DecodeRequest request;
  const unsigned range = random() % 2 == 0 ? static_cast<unsigned>(vocabulary - 4) : 4;
  for (std::size_t i = random() % 40 + 1; i > 0; --i) request.prompt.push_back(static_cast<TokenId>(random() % range));
  request.sampler = draw_params(random);
  request.max_tokens = static_cast<std::int64_t>(random() % 24 + 1);
  request.vocab = vocabulary - static_cast<std::int64_t>(random() % 5);
  if (random() % 2 == 0) {
    const auto step = static_cast<TokenId>(random() % 20 + 5);
    for (auto id = static_cast<TokenId>(random() % 5); id < static_cast<TokenId>(vocabulary); id += step)
      request.stop_ids.push_back(id);
  }
  return request;
}

/// The state of a new sequence of these tokens.
inline test::StateParts state_after(const model::Model& model, std::span<const TokenId> tokens) {
  model::Runner runner = model::Runner::create(model, 64).value();
  model::Sequence sequence = model::Sequence::create(model).value();
  while (!tokens.empty()) {
    const auto some = tokens.first(std::min<std::size_t>(tokens.size(), 64));
    const model::Segment segment{&sequence, some, model::LogitsWanted::None};
    const Status ran = runner.forward({&segment, 1});
    if (!ran) throw std::runtime_error(ran.error().message);
    tokens = tokens.subspan(some.size());
  }
  return sequence.save_parts(false);
}

/// Ids, probabilities and the end are those of plain decoding; the sequence holds what a request leaves, a stop token
/// at most besides, with the state that these tokens have on the reference.
inline void expect_plain(const Trace& plain, const Trace& ahead, const model::Model& reference) {
  ASSERT_EQ(plain.ids, ahead.ids);
  ASSERT_EQ(plain.probabilities, ahead.probabilities);
  ASSERT_EQ(plain.finish, ahead.finish);
  ASSERT_EQ(plain.stats.steps, ahead.stats.steps);
  if (plain.finish == Finish::Stop && ahead.tokens.size() > plain.tokens.size()) {
    ASSERT_EQ(ahead.tokens.size(), plain.tokens.size() + 1);
    ASSERT_TRUE(std::equal(plain.tokens.begin(), plain.tokens.end(), ahead.tokens.begin()));
    ASSERT_EQ(test::part_difference(state_after(reference, ahead.tokens), ahead.state), "");
  } else {
    ASSERT_EQ(plain.tokens, ahead.tokens);
    ASSERT_EQ(test::part_difference(plain.state, ahead.state), "");
  }
}

struct AheadCount {
  std::int64_t launched = 0, stopped = 0, reused = 0;
};

/// Random requests, each with a second turn that goes on from what the first one left.
inline void expect_equal_turns(const model::Model& reference, const model::Model& model, unsigned seed, int requests,
                               AheadCount& count) {
  std::mt19937_64 random(seed);
  const auto plain = make_plain_decoder(reference).value();
  const auto ahead = make_plain_decoder(model).value();
  const auto pipelined = make_pipelined_driver().value();
  for (int i = 0; i < requests; ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    DecodeRequest request = ahead_request(random, reference.config().vocab_size);
    for (int turn = 0; turn < 2; ++turn) {
      SCOPED_TRACE("turn " + std::to_string(turn));
      const Trace expected = decode(*plain, request);
      const Trace got = decode(*ahead, *pipelined, request);
      expect_plain(expected, got, reference);
      if (::testing::Test::HasFatalFailure()) return;
      // The first token comes from no step; there is none over a token that is known to be the last.
      ASSERT_EQ(got.stats.launched_steps, std::max<std::int64_t>(std::min(got.stats.steps, request.max_tokens - 2), 0));
      ASSERT_EQ(got.stats.device_rows, got.stats.steps);
      count.launched += got.stats.launched_steps;
      count.stopped += got.finish == Finish::Stop && got.stats.steps > 0 ? 1 : 0;
      count.reused += got.stats.reused_tokens;
      request.prompt = got.tokens;
      request.prompt.push_back(static_cast<TokenId>(random() % 20));
    }
  }
}

}  // namespace lockstep::decode::testing
