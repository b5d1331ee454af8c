#include "cli/chat_engine.hpp"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <limits>
#include <random>

#include "backend/device.hpp"
#include "backend/ngram/ngram_store.hpp"
#include "base/progress.hpp"
#include "cli/arguments.hpp"
#include "cli/interrupt.hpp"
#include "cli/standard_input.hpp"
#include "cli/terminal.hpp"
#include "text/chat_prompt.hpp"
#include "text/reasoning.hpp"
#include "text/stop_strings.hpp"
#include "text/utf8_stream.hpp"

namespace lockstep::cli {

void add_answer_options(CLI::App& command, AnswerOptions& options) {
  // The ranges are those of decode::checked_params; penalties may be any finite number.
  const auto number = [&](const char* name, std::optional<double>& target, const char* description, double least = -1e9,
                          double most = 1e9) {
    command.add_option(name, target, description)->check(finite_number(least, most));
  };
  number("--temperature", options.temperature, "Sampling temperature; 0 is greedy", 0);
  number("--top-p", options.top_p, "Keep the most probable tokens up to this mass", 0, 1);
  command.add_option("--top-k", options.top_k, "Keep at most this many tokens; 0 or -1 keeps all")
      ->transform(whole_number(-1, std::uint64_t{1} << 31));
  number("--min-p", options.min_p, "Keep tokens with at least this share of the top probability", 0, 1);
  number("--presence-penalty", options.presence_penalty, "Subtracted once for tokens already written");
  number("--frequency-penalty", options.frequency_penalty, "Subtracted per occurrence of a token");
  command.add_option("--seed", options.seed, "Seed of the draws (default: a fresh one, shown by --stats)")
      ->transform(whole_number(0, std::numeric_limits<std::uint64_t>::max()));
  command.add_option("--draw", options.draw, "Draw rule")
      ->check(CLI::IsMember({"pcg64", "race"}))
      ->capture_default_str();
  command.add_option("--max-tokens", options.max_tokens, "Most tokens of an answer; 0: what the context holds")
      ->transform(whole_number(0, std::uint64_t{1} << 40))
      ->capture_default_str();
  command.add_option("--stop", options.stop, "End the answer before this text (repeatable)")->allow_extra_args(false);
  command.add_option("--system", options.system, "System message");
  command.add_option("--depth", options.depth, "Draft tokens a cycle; 0 decodes plainly")
      ->transform(whole_number(0, decode::kMaxDepth))
      ->capture_default_str();
  command.add_option("--accept", options.accept, "When a draft is kept: stream gives the bytes of plain decoding")
      ->check(CLI::IsMember({"stream", "rejection"}))
      ->capture_default_str();
  command.add_option("--disable-optimization", options.disabled, "Switch lanes off: names separated by commas, or all")
      ->allow_extra_args(false);
  command.add_option("--frspec", options.frspec, "List of draft tokens (default: frspec.json of the model directory)")
      ->check(not_empty());
  command.add_flag("--no-think", options.no_think, "Ask the template for an answer without reasoning");
  command.add_flag("--special", options.special, "Special tokens written in messages become those tokens, not text");
  command.add_option("--effort", options.effort, "Reasoning effort, as the template names it (xhigh, medium, low)")
      ->check(not_empty());
  command.add_flag("--stats", options.stats, "Print token counts, speed and seed to standard error");
}

Result<std::unique_ptr<ChatEngine>> ChatEngine::create(const EngineOptions& engine_options, AnswerOptions options) {
  EngineOptions engine_used = engine_options;
  engine_used.frspec = options.frspec;
  decode::Lanes lanes = LOCKSTEP_TRY(choose_lanes(options.disabled, options.depth, engine_used));
  LoadedModel loaded = LOCKSTEP_TRY(load_model(engine_used, lanes.armed(decode::LaneId::Mtp)));
  const std::filesystem::path directory = loaded.texts;
  text::Tokenizer tokenizer = LOCKSTEP_TRY(text::Tokenizer::open(directory));
  text::ChatTemplate chat_template = LOCKSTEP_TRY(text::ChatTemplate::open(directory));
  std::unique_ptr<ChatEngine> engine(
      new ChatEngine(std::move(loaded), std::move(lanes), std::move(tokenizer), std::move(chat_template)));
  engine->engine_options_ = std::move(engine_used);
  engine->options_ = std::move(options);
  engine->vocab_ =
      std::min<std::int64_t>(engine->loaded_.model->config().vocab_size, engine->tokenizer_.vocabulary_size());
  std::vector<decode::TokenId> fallback;
  if (const auto eos = engine->tokenizer_.eos()) fallback.push_back(*eos);
  engine->defaults_ = LOCKSTEP_TRY(decode::read_generation_config(directory, engine->vocab_, fallback));
  for (const std::string& warning : engine->defaults_.warnings) complain(warning);
  LOCKSTEP_TRY(engine->check_options());
  LOCKSTEP_TRY(engine->make_decoder());
  return engine;
}

Status ChatEngine::check_options() const {
  // What only a flag can have made wrong is wrong usage, found before the first prompt.
  const auto usage = [](const Error& error) { return tl::unexpected(Error{ErrorKind::Usage, error.message}); };
  if (const Status valid = check_utf8(options_.system, "--system"); !valid) return usage(valid.error());
  if (const auto asked = request({}); !asked) return usage(asked.error());
  if (const auto stop = text::StopMatcher::create(options_.stop); !stop) return usage(stop.error());
  for (const std::string& stop : options_.stop) {
    if (const Status valid = check_utf8(stop, "--stop"); !valid) return usage(valid.error());
  }
  return options_.effort.empty() ? Status{} : check_effort();
}

Status ChatEngine::check_effort() const {
  if (template_.source().find("reasoning_effort") == std::string_view::npos) {
    return fail(ErrorKind::Usage, "--effort {}: the model's chat template knows no efforts; leave it out",
                options_.effort);
  }
  // With reasoning on, whatever --no-think says: a template may look at the effort only then.
  text::ChatOptions chat;
  chat.add_generation_prompt = true;
  chat.extra["reasoning_effort"] = options_.effort;
  const auto tried = template_.render(OrderedJson::array({{{"role", "user"}, {"content", "?"}}}), chat);
  if (tried) return {};
  return fail(ErrorKind::Usage, "--effort {}: {}", options_.effort, tried.error().message);
}

Status ChatEngine::make_decoder() {
  const model::Model& model = *loaded_.model;
  const std::int64_t chunk = backend::prompt_chunk(LOCKSTEP_TRY(backend::parse_device(engine_options_.device)));
  lanes_.install(model);
  driver_ = decode::make_plain_driver();
  if (lanes_.armed(decode::LaneId::ArPipeline)) driver_ = LOCKSTEP_TRY(decode::make_pipelined_driver());
  if (!lanes_.armed(decode::LaneId::Mtp)) {
    if (options_.accept == "rejection") return fail(ErrorKind::Usage, "--accept rejection needs speculative decoding");
    decoder_ = LOCKSTEP_TRY(decode::make_plain_decoder(model, chunk));
    return {};
  }
  decode::SpeculativeOptions speculative;
  speculative.depth = options_.depth;
  speculative.prefill_chunk = chunk;
  speculative.capture = lanes_.armed(decode::LaneId::GdnCapture);
  speculative.short_head = lanes_.armed(decode::LaneId::Frspec);
  decoder_ = LOCKSTEP_TRY(decode::make_speculative_decoder(model, speculative));
  return {};
}

std::string ChatEngine::describe() const {
  std::string text = loaded_.label.empty() ? "" : loaded_.label + ", ";
  text += loaded_.model->backend().describe();
  const backend::NgramStore* table = loaded_.model->backend().ngram_store();
  if (table != nullptr) text += ", n-gram table " + backend::ngram_report(*table);
  return text;
}

std::vector<decode::LaneReport> ChatEngine::lanes() const {
  return decode::lane_report(lanes_, *loaded_.model, decoder_->stats());
}

Result<Prompt> ChatEngine::chat_prompt(const OrderedJson& messages) const {
  text::ChatOptions chat;
  chat.add_generation_prompt = true;
  if (options_.no_think) chat.extra["enable_thinking"] = false;
  if (!options_.effort.empty()) chat.extra["reasoning_effort"] = options_.effort;
  chat.special_messages = options_.special;
  text::ChatPrompt made = LOCKSTEP_TRY(
      text::make_chat_prompt(template_, tokenizer_, messages, chat, [] { return InterruptScope::flag().load(); }));
  return Prompt{std::move(made.tokens), made.reasoning_open};
}

Result<Prompt> ChatEngine::raw_prompt(std::string_view text) const {
  Prompt prompt;
  text::EncodeOptions encode;
  encode.stop = [] { return InterruptScope::flag().load(); };
  prompt.tokens = LOCKSTEP_TRY(tokenizer_.encode(text, encode));
  return prompt;
}

Result<decode::DecodeRequest> ChatEngine::request(const Prompt& prompt) const {
  decode::DecodeRequest request;
  request.prompt = prompt.tokens;
  request.sampler = defaults_.sampler;
  const auto set = [](auto& target, const auto& given) {
    if (given) target = *given;
  };
  set(request.sampler.temperature, options_.temperature);
  set(request.sampler.top_p, options_.top_p);
  set(request.sampler.top_k, options_.top_k);
  set(request.sampler.min_p, options_.min_p);
  set(request.sampler.presence_penalty, options_.presence_penalty);
  set(request.sampler.frequency_penalty, options_.frequency_penalty);
  request.sampler.draw_rule = options_.draw == "race" ? decode::DrawRule::Race : decode::DrawRule::Pcg64;
  request.sampler.acceptance =
      options_.accept == "rejection" ? decode::AcceptanceRule::Rejection : decode::AcceptanceRule::Stream;
  request.sampler.seed = options_.seed ? *options_.seed : std::random_device{}() & 0x7fffffffU;
  request.stop_ids = defaults_.stop_ids;
  request.max_tokens = options_.max_tokens;
  request.vocab = vocab_;
  LOCKSTEP_TRY(decode::checked_params(request.sampler, vocab_));
  return request;
}

namespace {

/// Text of an answer on its way from tokens to the sink.
class AnswerText {
 public:
  AnswerText(const text::Tokenizer& tokenizer, text::StopMatcher stop, const Prompt& prompt, bool split,
             const AnswerSink& sink, Answer& answer)
      : detokenizer_(tokenizer, true),
        stop_(std::move(stop)),
        reasoning_({prompt.reasoning_open, false}),
        split_(split),
        sink_(sink),
        answer_(answer) {}

  Status push(decode::TokenId token) { return text(stop_.push(detokenizer_.push(token))); }
  [[nodiscard]] bool stopped() const { return stop_.stopped(); }
  Status finish() {
    LOCKSTEP_TRY(text(stop_.push(detokenizer_.finish())));
    LOCKSTEP_TRY(text(stop_.finish()));
    return split_ ? deliver(reasoning_.finish()) : Status{};
  }

 private:
  Status text(std::string_view piece) {
    if (split_) return deliver(reasoning_.push(piece));
    return deliver({{}, std::string(piece)});
  }
  Status deliver(const text::ReasoningSplitter::Delta& delta) {
    answer_.reasoning += delta.reasoning;
    answer_.content += delta.content;
    if (delta.reasoning.empty() && delta.content.empty()) return {};
    return sink_(delta.reasoning, delta.content);
  }

  text::Detokenizer detokenizer_;
  text::StopMatcher stop_;
  text::ReasoningSplitter reasoning_;
  bool split_;
  const AnswerSink& sink_;
  Answer& answer_;
};

}  // namespace

Result<Answer> ChatEngine::answer(const Prompt& prompt, bool split, const std::function<bool()>& stop_requested,
                                  const AnswerSink& sink, Answer& partial) {
  partial = {};
  const decode::DecodeRequest asked = LOCKSTEP_TRY(request(prompt));
  partial.seed = asked.sampler.seed;
  AnswerText text(tokenizer_, LOCKSTEP_TRY(text::StopMatcher::create(options_.stop)), prompt, split, sink, partial);
  {
    Progress progress("prompt", asked.prompt.size(), ProgressUnit::Items);
    LOCKSTEP_TRY(decoder_->start(asked, [&](std::int64_t done, std::int64_t) {
      progress.set(static_cast<std::uint64_t>(done));
      if (stop_requested()) decoder_->cancel();
    }));
  }
  const decode::TokenSink push = [&](std::span<const decode::Choice> tokens) -> Result<bool> {
    for (const decode::Choice& token : tokens) {
      partial.ids.push_back(token.id);
      LOCKSTEP_TRY(text.push(token.id));
      if (text.stopped()) return false;
    }
    return true;
  };
  LOCKSTEP_TRY(driver_->run(*decoder_, push, [&] {
    if (stop_requested()) decoder_->cancel();
  }));
  LOCKSTEP_TRY(text.finish());
  partial.finish = text.stopped() ? decode::Finish::Stop : decoder_->finish();
  return partial;
}

Status AnswerPrinter::print(std::string_view reasoning, std::string_view content) {
  if (!reasoning.empty()) {
    const std::string shown = styled(reasoning, Style::Dim, Stream::Err);
    write_stderr(shown);
    reasoning_shown_ = true;
  }
  if (content.empty()) return {};
  if (reasoning_shown_ && !content_shown_) write_stderr("\n\n");
  content_shown_ = true;
  line_open_ = content.back() != '\n';
  LOCKSTEP_TRY(write_stdout(content));
  return flush_stdout();
}

Status AnswerPrinter::finish() {
  if (reasoning_shown_ && !content_shown_) write_stderr("\n");
  if (!line_open_) return {};
  line_open_ = false;
  LOCKSTEP_TRY(write_stdout("\n"));
  return flush_stdout();
}

void print_stats(const decode::DecodeStats& stats, const Answer& answer, const std::string& device,
                 const std::vector<decode::LaneReport>& lanes) {
  const auto rate = [](std::int64_t count, double seconds) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
  };
  const std::int64_t fresh = stats.prompt_tokens - stats.reused_tokens;
  write_stderr(fmt::format(
      "{} prompt tokens ({} reused) in {:.2f} s ({:.0f}/s), {} tokens in {:.2f} s ({:.0f}/s), {}, seed {}, {}\n",
      stats.prompt_tokens, stats.reused_tokens, stats.prefill_seconds, rate(fresh, stats.prefill_seconds), stats.tokens,
      stats.decode_seconds, rate(stats.tokens, stats.decode_seconds),
      answer.finish == decode::Finish::Length ? "length" : "stop", answer.seed, device));
  std::string depths;
  for (std::size_t i = 0; i < stats.drafted.size() && stats.drafted[i] > 0; ++i) {
    depths += fmt::format("{}{}/{}", i == 0 ? "" : ", ", stats.accepted[i], stats.drafted[i]);
  }
  if (stats.draft_failures > 0) {
    write_stderr(
        fmt::format("{} cycles with fewer drafts: the draft head's logits were not finite\n", stats.draft_failures));
  }
  if (stats.device_rows > 0) {
    write_stderr(fmt::format("{} of {} rows of logits drawn from on the device\n", stats.device_rows,
                             stats.device_rows + stats.host_rows));
  }
  if (!depths.empty()) write_stderr(fmt::format("{} forward passes, drafts kept by depth {}\n", stats.steps, depths));
  for (const decode::LaneReport& report : lanes) {
    const bool armed = report.verdict.state == decode::LaneVerdict::State::Armed;
    write_stderr(fmt::format("lane {}: {}{}{}\n", report.lane->name, decode::verdict_text(report.verdict),
                             armed ? "; " : "", armed ? report.run.detail : ""));
  }
}

}  // namespace lockstep::cli
