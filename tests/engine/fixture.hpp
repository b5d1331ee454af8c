// Requests, sinks and the answers that requests give alone.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "decode/generation.hpp"
#include "engine/engine.hpp"
#include "model/fixture.hpp"

namespace lockstep::engine {

inline const std::string kToyPack = std::string(LOCKSTEP_TEST_DATA) + "/toy-pack";
inline const std::string kToyHf = std::string(LOCKSTEP_TEST_DATA) + "/toy-hf";
inline const std::string kDemo = std::string(LOCKSTEP_SOURCE_DIR) + "/models/demo";

/// Loaded once per program.
inline const model::Model& shared_model(const std::string& directory) {
  static std::map<std::string, std::unique_ptr<model::Loaded>> loaded;
  auto& slot = loaded[directory];
  if (!slot) slot = std::make_unique<model::Loaded>(model::load(directory, backend::StateType::BF16));
  return *slot->model;
}

inline std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param.substr(info.param.rfind('/') + 1);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// Everything about an answer that must not depend on the neighbours, in bits.
struct Answer {
  std::vector<TokenId> ids;
  std::vector<std::uint64_t> bits;  ///< probability, log-probability, ids and log-probabilities of the alternatives
  std::optional<FinishReason> reason;
  bool operator==(const Answer&) const = default;
};

inline void add_logprobs(std::vector<std::uint64_t>& bits, const decode::Logprobs& logprobs) {
  bits.push_back(std::bit_cast<std::uint64_t>(logprobs.chosen));
  for (const decode::TokenLogprob& top : logprobs.top) {
    bits.push_back(static_cast<std::uint64_t>(top.id));
    bits.push_back(std::bit_cast<std::uint64_t>(top.logprob));
  }
}

/// Keeps what it is told.
class Recorder : public Sink {
 public:
  struct Choice {
    Answer answer;
    Summary summary;
    std::optional<Error> error;
    int ends = 0;
  };

  explicit Recorder(std::int64_t n = 1) : choices_(static_cast<std::size_t>(n)) {}

  bool writable() override { return !hold || !hold(); }
  void on_start(const Start& start) override {
    const std::lock_guard lock(mutex_);
    start_ = start;
    changed_.notify_all();
  }
  void on_prefill(std::int64_t done, std::int64_t total) override {
    if (prefill) prefill(done, total);
  }
  void on_prompt_token(const PromptToken& token) override {
    const std::lock_guard lock(mutex_);
    prompt_ids_.push_back(token.id);
    if (token.has_logprobs) add_logprobs(prompt_bits_, token.logprobs);
  }
  Flow on_token(std::int64_t choice, const Token& token) override {
    {
      const std::lock_guard lock(mutex_);
      Answer& answer = choices_[static_cast<std::size_t>(choice)].answer;
      answer.ids.push_back(token.id);
      answer.bits.push_back(std::bit_cast<std::uint64_t>(token.probability));
      if (token.has_logprobs) add_logprobs(answer.bits, token.logprobs);
      changed_.notify_all();
    }
    return token_seen ? token_seen(choice, token) : Flow::Continue;
  }
  void on_finish(std::int64_t choice, const Summary& summary) override {
    const std::lock_guard lock(mutex_);
    Choice& c = choices_[static_cast<std::size_t>(choice)];
    c.answer.reason = summary.reason;
    c.summary = summary;
    ++c.ends;
    changed_.notify_all();
  }
  void on_error(std::int64_t choice, const Error& error) override {
    const std::lock_guard lock(mutex_);
    Choice& c = choices_[static_cast<std::size_t>(choice)];
    c.error = error;
    ++c.ends;
    changed_.notify_all();
  }

  /// Until every choice has ended.
  void wait() {
    wait_for([](const Recorder& self) {
      return std::all_of(self.choices_.begin(), self.choices_.end(), [](const Choice& c) { return c.ends > 0; });
    });
  }
  void wait_tokens(std::size_t count) {
    wait_for(
        [&](const Recorder& self) { return self.choices_[0].answer.ids.size() >= count || self.choices_[0].ends > 0; });
  }
  void wait_start() {
    wait_for([](const Recorder& self) { return self.start_.has_value() || self.choices_[0].ends > 0; });
  }

  [[nodiscard]] Choice choice(std::size_t i = 0) const {
    const std::lock_guard lock(mutex_);
    return choices_[i];
  }
  [[nodiscard]] std::optional<Start> started() const {
    const std::lock_guard lock(mutex_);
    return start_;
  }
  [[nodiscard]] std::vector<TokenId> prompt_ids() const { return prompt_ids_; }
  [[nodiscard]] std::vector<std::uint64_t> prompt_bits() const { return prompt_bits_; }

  // Set before submit(); called from the model thread.
  std::function<bool()> hold;
  std::function<void(std::int64_t, std::int64_t)> prefill;
  std::function<Flow(std::int64_t, const Token&)> token_seen;

 private:
  template <class Ready>
  void wait_for(Ready ready) {
    std::unique_lock lock(mutex_);
    const bool in_time = changed_.wait_for(lock, std::chrono::seconds(120), [&] { return ready(*this); });
    if (!in_time) ADD_FAILURE() << "the engine did not answer";
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Choice> choices_;
  std::optional<Start> start_;
  std::vector<TokenId> prompt_ids_;
  std::vector<std::uint64_t> prompt_bits_;
};

/// The decode request of choice `i`.
inline decode::DecodeRequest decode_request(const Request& request, std::int64_t vocab, std::uint64_t i = 0) {
  decode::DecodeRequest out;
  out.prompt = request.prompt;
  out.sampler = request.sampler;
  out.sampler.seed = choice_seed(request.sampler.seed, i);
  out.stop_ids = request.stop_ids;
  std::sort(out.stop_ids.begin(), out.stop_ids.end());
  out.max_tokens = request.max_tokens.value_or(0);
  out.prompt_only = request.max_tokens == 0;
  out.vocab = vocab;
  out.logprobs = request.logprobs;
  out.top_logprobs = request.top_logprobs;
  out.prompt_logprobs = request.prompt_logprobs;
  return out;
}

/// What the request's choice gives alone: plain decoding, one token a step, the prompt in one go; rejection mode needs
/// drafts. `emitted` is told after every step how many tokens came of it.
inline Answer alone(const model::Model& model, const Request& request, std::uint64_t i = 0,
                    const std::string& what = "", const std::function<void(std::size_t)>& emitted = {}) {
  SCOPED_TRACE(what);
  Answer answer;
  auto runner = model::Runner::create(model, 512).value();
  decode::DecodeRequest decode = decode_request(request, model.config().vocab_size, i);
  const bool rejection = request.sampler.acceptance == decode::AcceptanceRule::Rejection;
  auto made = rejection ? decode::make_speculative_generation(model, {}, std::move(decode), std::nullopt)
                        : decode::make_plain_generation(model, std::move(decode), std::nullopt);
  if (!made) {
    ADD_FAILURE() << made.error().message;
    return answer;
  }
  decode::Generation& generation = **made;
  while (generation.need() != decode::Generation::Need::Nothing) {
    const Status status = decode::run_need(generation, runner, 512);
    if (!status) {
      ADD_FAILURE() << status.error().message;
      return answer;
    }
    for (std::size_t t = 0; t < generation.emitted().size(); ++t) {
      answer.ids.push_back(generation.emitted()[t].id);
      answer.bits.push_back(std::bit_cast<std::uint64_t>(generation.emitted()[t].probability));
      if (request.logprobs) add_logprobs(answer.bits, generation.logprobs()[t]);
    }
    if (emitted) emitted(generation.emitted().size());
    generation.clear_emitted();
  }
  answer.reason = generation.finish() == decode::Finish::Stop ? FinishReason::Stop : FinishReason::Length;
  return answer;
}

inline std::vector<TokenId> random_tokens(std::mt19937& random, std::size_t count, std::int64_t vocab) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) {
    token = random() % 10 == 0 ? 2 : static_cast<TokenId>(random() % static_cast<std::uint64_t>(vocab));
  }
  return tokens;
}

inline Request random_request(std::mt19937& random, std::int64_t vocab, std::size_t longest = 120) {
  Request request;
  const std::size_t length = random() % 3 == 0 ? random() % 3 + 1 : random() % longest + 1;
  request.prompt = random_tokens(random, length, vocab);
  const std::array temperatures{0.0, 0.5, 0.7, 1.0, 1.5};
  request.sampler.temperature = temperatures[random() % temperatures.size()];
  request.sampler.top_k = std::array<std::int64_t, 3>{0, 1, 20}[random() % 3];
  request.sampler.top_p = random() % 2 == 0 ? 1.0 : 0.9;
  request.sampler.min_p = random() % 4 == 0 ? 0.1 : 0.0;
  request.sampler.presence_penalty = random() % 3 == 0 ? 1.1 : 0.0;
  request.sampler.frequency_penalty = random() % 3 == 0 ? 0.4 : 0.0;
  if (random() % 4 == 0) request.sampler.logit_bias[7] = 3.0;
  request.sampler.seed = random();
  request.sampler.draw_rule = random() % 2 == 0 ? decode::DrawRule::Pcg64 : decode::DrawRule::Race;
  if (random() % 5 == 0) {
    request.sampler.draw_rule = decode::DrawRule::Pcg64;
    request.sampler.acceptance = decode::AcceptanceRule::Rejection;
  }
  request.max_tokens = static_cast<std::int64_t>(random() % 24 + 1);
  if (random() % 2 == 0) {
    for (auto id = static_cast<TokenId>(random() % 16); id < vocab; id += 16) request.stop_ids.push_back(id);
  }
  request.logprobs = random() % 2 == 0;
  request.top_logprobs = request.logprobs ? static_cast<std::int64_t>(random() % 21) : 0;
  std::int64_t at = 0;
  for (std::size_t i = random() % 4; i-- > 0;) {
    at = std::min<std::int64_t>(at + static_cast<std::int64_t>(random() % 40), static_cast<std::int64_t>(length));
    request.boundaries.push_back(at);
  }
  return request;
}

inline std::unique_ptr<Engine> engine_for(const model::Model& model, Options options = {}) {
  if (options.memory_bytes == 0) options.memory_bytes = std::uint64_t{256} << 20;
  auto engine = make_engine(model, std::move(options));
  if (!engine) throw std::runtime_error(engine.error().message);
  return *std::move(engine);
}

}  // namespace lockstep::engine
