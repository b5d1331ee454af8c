// E4 down to the state: steps of several generations leave every sequence as it would be alone, byte for byte.
#include "engine/stepper.hpp"

#include <gtest/gtest.h>

#include "engine/fixture.hpp"

namespace lockstep::engine {
namespace {

using decode::Generation;

struct Member {
  Request request;
  std::unique_ptr<Generation> generation;
  Answer answer;
};

std::unique_ptr<Generation> make(const model::Model& model, const Request& request, bool drafts, bool capture) {
  decode::DecodeRequest decode = decode_request(request, model.config().vocab_size);
  if (!drafts) return decode::make_plain_generation(model, std::move(decode), std::nullopt).value();
  decode::SpeculativeOptions options;
  options.capture = capture;
  return decode::make_speculative_generation(model, options, std::move(decode), std::nullopt).value();
}

void collect(Generation& generation, Answer& answer) {
  for (std::size_t t = 0; t < generation.emitted().size(); ++t) {
    answer.ids.push_back(generation.emitted()[t].id);
    answer.bits.push_back(std::bit_cast<std::uint64_t>(generation.emitted()[t].probability));
    if (generation.request().logprobs) add_logprobs(answer.bits, generation.logprobs()[t]);
  }
  generation.clear_emitted();
}

class StepperEquality : public testing::TestWithParam<std::string> {};

TEST_P(StepperEquality, StatesAreThoseOfRequestsAlone) {
  const model::Model& model = shared_model(GetParam());
  const std::int64_t vocab = model.config().vocab_size;
  const bool demo = GetParam() == kDemo;
  for (unsigned seed = 0; seed < (demo ? 2U : 8U); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const bool drafts = random() % 4 != 0;
    const bool capture = random() % 3 != 0;
    Stepper stepper = Stepper::create(model, 400).value();
    std::vector<Member> members(6);
    for (Member& member : members) {
      member.request = random_request(random, vocab, 80);
      if (!drafts) member.request.sampler.acceptance = decode::AcceptanceRule::Stream;
      member.generation = make(model, member.request, drafts, capture);
    }
    bool busy = true;
    while (busy) {
      busy = false;
      std::vector<Part> parts;
      std::vector<Member*> of;
      for (Member& member : members) {
        if (member.generation->need() == Generation::Need::Nothing) continue;
        busy = true;
        if (random() % 3 == 0) continue;  // left out of this step
        parts.push_back({member.generation.get(), static_cast<std::int64_t>(random() % 40 + 1)});
        of.push_back(&member);
      }
      stepper.run(parts);
      if (random() % 2 == 0) stepper.first(parts);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        ASSERT_TRUE(parts[i].status) << parts[i].status.error().message;
        collect(*of[i]->generation, of[i]->answer);
      }
      if (parts.empty() || random() % 2 == 0) continue;
      stepper.first(parts);
      for (Member* member : of) collect(*member->generation, member->answer);
    }
    for (Member& member : members) {
      const auto single = make(model, member.request, drafts, true);
      auto runner = model::Runner::create(model, 256).value();
      Answer expected;
      while (single->need() != Generation::Need::Nothing) {
        ASSERT_TRUE(decode::run_need(*single, runner, 256));
        collect(*single, expected);
      }
      ASSERT_EQ(member.answer, expected);
      ASSERT_EQ(member.generation->finish(), single->finish());
      ASSERT_EQ(member.generation->sequence().save(), single->sequence().save());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, StepperEquality, testing::Values(kToyPack, kToyHf, kDemo), test_name);

}  // namespace
}  // namespace lockstep::engine
