// A window of `lockstep ab` in this process.
#include <unistd.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <cstdlib>
#include <optional>

#include "base/sha256.hpp"
#include "cli/ab_arm.hpp"
#include "cli/arguments.hpp"
#include "cli/chat_engine.hpp"
#include "report/machine.hpp"

namespace lockstep::cli {
namespace {

/// Sets variables for the life of a scope.
class ScopedEnvironment {
 public:
  explicit ScopedEnvironment(const std::vector<std::pair<std::string, std::string>>& variables) {
    for (const auto& [name, value] : variables) {
      const char* before = std::getenv(name.c_str());
      before_.emplace_back(name, before == nullptr ? std::nullopt : std::optional<std::string>(before));
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;
  ~ScopedEnvironment() {
    for (const auto& [name, value] : before_) {
      if (value) {
        ::setenv(name.c_str(), value->c_str(), 1);
      } else {
        ::unsetenv(name.c_str());
      }
    }
  }

 private:
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

std::string ids_digest(std::span<const decode::TokenId> ids) {
  Sha256 hash;
  for (std::size_t i = 0; i < ids.size(); ++i) hash.update(fmt::format("{}{}", i == 0 ? "" : ",", ids[i]));
  return hash.hex();
}

class LocalSession : public report::Session {
 public:
  LocalSession(const AbSetup& setup, std::unique_ptr<ChatEngine> engine, double start_seconds)
      : setup_(setup), engine_(std::move(engine)) {
    record_.start_seconds = start_seconds;
    record_.device = engine_->describe();
    for (const decode::LaneReport& lane : engine_->lanes()) {
      record_.lanes.push_back({std::string(lane.lane->name), decode::verdict_text(lane.verdict)});
    }
  }

  [[nodiscard]] const report::WindowRecord& record() const override { return record_; }

  Result<report::Sample> ask(std::uint64_t seed) override {
    engine_->set_seed(seed);
    const Prompt prompt =
        LOCKSTEP_TRY(engine_->chat_prompt(OrderedJson::array({{{"role", "user"}, {"content", setup_.message}}})));
    report::reset_peak_memory(::getpid());
    report::Waiter& clock = *setup_.waiter;
    const double begin = clock.now();
    double first = 0;
    Answer partial;
    const Answer answer = LOCKSTEP_TRY(engine_->answer(
        prompt, true, [&] { return setup_.interrupted->load(); },
        [&](std::string_view, std::string_view) -> Status {
          if (first == 0) first = clock.now();
          return {};
        },
        partial));
    report::Sample sample = of(answer, prompt, seed);
    sample.wall_seconds = clock.now() - begin;
    sample.ttft_seconds = first == 0 ? 0 : first - begin;
    sample.peak_bytes = report::peak_memory(::getpid());
    return sample;
  }

 private:
  [[nodiscard]] report::Sample of(const Answer& answer, const Prompt& prompt, std::uint64_t seed) const {
    const decode::DecodeStats& stats = engine_->stats();
    const auto rate = [](std::int64_t count, double seconds) {
      return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
    };
    report::Sample sample;
    sample.prompt_tokens = stats.prompt_tokens;
    sample.prefill_tokens = stats.prompt_tokens - stats.reused_tokens;
    sample.prefill_seconds = stats.prefill_seconds;
    sample.prefill_rate = rate(sample.prefill_tokens, stats.prefill_seconds);
    sample.tokens = static_cast<std::int64_t>(answer.ids.size());
    sample.steps = stats.steps;
    sample.decode_seconds = stats.decode_seconds;
    sample.decode_rate = rate(sample.tokens, stats.decode_seconds);
    sample.finish = answer.finish == decode::Finish::Length ? "length" : "stop";
    sample.drafted.assign(stats.drafted.begin(), stats.drafted.end());
    sample.accepted.assign(stats.accepted.begin(), stats.accepted.end());
    for (const decode::LaneReport& lane : engine_->lanes()) {
      if (lane.run.engaged > 0) sample.lanes.emplace_back(lane.lane->name);
    }
    sample.ids = answer.ids;
    sample.digests.request =
        sha256_hex(fmt::format("{} {} {}", setup_.cell.prompt_sha256, seed, setup_.cell.max_tokens));
    sample.digests.prompt_ids = ids_digest(prompt.tokens);
    sample.digests.ids = ids_digest(answer.ids);
    sample.digests.text = sha256_hex(answer.content);
    sample.digests.reasoning = sha256_hex(answer.reasoning);
    return sample;
  }

  const AbSetup& setup_;
  std::unique_ptr<ChatEngine> engine_;
  report::WindowRecord record_;
};

}  // namespace

Result<std::unique_ptr<ChatEngine>> load_arm(const AbSetup& setup, const report::Arm& arm) {
  EngineOptions engine;
  engine.model = setup.model;
  engine.in_memory = setup.in_memory;
  engine.ngram_rows = setup.ngram_rows;
  AnswerOptions answer;
  CLI::App app;
  CLI::App* command = app.add_subcommand("arm");
  command->set_help_flag("");
  add_engine_options(*command, engine);
  command->remove_option(command->get_option("--model"));
  add_answer_options(*command, answer);
  unmark_values(app);
  std::vector<const char*> words{"lockstep", "arm"};
  for (const std::string& flag : arm.flags) words.push_back(flag.c_str());
  try {
    std::vector<std::string> arguments = literal_arguments(app, static_cast<int>(words.size()), words.data());
    std::ranges::reverse(arguments);
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return fail(ErrorKind::Usage, "{}", error.what());
  }
  // The cell's sampler holds for what the arm does not set itself.
  const report::Cell& cell = setup.cell;
  if (!answer.temperature) answer.temperature = cell.temperature;
  if (!answer.top_p) answer.top_p = cell.top_p;
  if (!answer.top_k) answer.top_k = cell.top_k;
  if (answer.effort.empty()) answer.effort = cell.effort;
  answer.no_think = answer.no_think || cell.no_think;
  if (answer.max_tokens == 0) answer.max_tokens = cell.max_tokens;
  const ScopedEnvironment environment(arm.environment);
  return ChatEngine::create(engine, std::move(answer));
}

Result<std::unique_ptr<report::Session>> open_in_process(const AbSetup& setup, const report::Arm& arm) {
  const double begin = setup.waiter->now();
  std::unique_ptr<ChatEngine> engine = LOCKSTEP_TRY(load_arm(setup, arm));
  return std::make_unique<LocalSession>(setup, std::move(engine), setup.waiter->now() - begin);
}

}  // namespace lockstep::cli
