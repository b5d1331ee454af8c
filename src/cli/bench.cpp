// `lockstep bench`: speed of prompts and of decoding, against what the machine can do.
#include <unistd.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>

#include "backend/copy_rate.hpp"
#include "backend/cpu/cpu_backend.hpp"
#include "backend/cpu/machine_rate.hpp"
#include "backend/device.hpp"
#include "base/json.hpp"
#include "base/progress.hpp"
#include "cli/arguments.hpp"
#include "cli/bench_case.hpp"
#include "cli/command.hpp"
#include "cli/engine_options.hpp"
#include "cli/interrupt.hpp"
#include "cli/terminal.hpp"
#include "cli/version.hpp"
#include "decode/lanes.hpp"
#include "model/runner.hpp"
#include "model/work.hpp"
#include "numerics/bits.hpp"
#include "report/machine.hpp"

namespace lockstep::cli {
namespace {

constexpr std::size_t kReadBytes = std::size_t{512} << 20;
constexpr std::size_t kCopyBytes = std::size_t{1} << 30;  ///< on a device, twice

struct Options {
  EngineOptions engine;
  std::vector<std::int64_t> prompts{512}, depths{0}, widths{1}, streams{1};
  std::int64_t tokens = 16, repetitions = 3, prompt_repetitions = 0, chunk = 0;

  [[nodiscard]] std::int64_t most_rows() const {
    return std::max(chunk, std::ranges::max(widths) * std::ranges::max(streams));
  }
  /// Of one sequence: one step of each repetition warms up.
  [[nodiscard]] std::int64_t most_tokens() const {
    const std::int64_t prompt = prompts.empty() ? 0 : std::ranges::max(prompts);
    return std::max(prompt, std::ranges::max(depths) + (tokens + 1) * std::ranges::max(widths));
  }
  bool json = false, profile = false;
};

double seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Most memory that was resident so far. Not getrusage(): its figure begins with that of the process that started this
/// one.
std::uint64_t peak_memory() {
  return report::peak_memory(::getpid()).value_or(0);
}

/// What the machine can do, measured beside the model: reading memory and multiplying on the processor, copies on a
/// device.
struct Limits {
  std::function<Result<double>()> bandwidth;  ///< bytes a second
  double peak = 0;                            ///< multiply-adds a second; 0: unknown
};

class Bench {
 public:
  /// `ahead`: the lane ar_pipeline is on.
  Bench(const Options& options, LoadedModel loaded, model::Runner runner, Limits limits, backend::Profile& profile,
        const InterruptScope& interrupts, bool ahead)
      : options_(options),
        ahead_(ahead && runner.launches()),
        loaded_(std::move(loaded)),
        runner_(std::move(runner)),
        limits_(std::move(limits)),
        profile_(profile),
        interrupts_(interrupts) {}

  /// A prompt of `length` tokens from nothing.
  Result<CaseResult> prompt(std::int64_t length) {
    const model::Work work = model::prompt_work(loaded_.artifact->view());
    std::vector<double> rates;
    profile_.clear();
    // A sequence of this length is kept when decoding starts from one.
    const bool kept = std::ranges::find(options_.depths, length) != options_.depths.end();
    const std::int64_t runs = options_.prompt_repetitions > 0 ? options_.prompt_repetitions : options_.repetitions;
    for (std::int64_t i = 0; i < runs; ++i) {
      model::Sequence sequence = LOCKSTEP_TRY(model::Sequence::create(*loaded_.model));
      const auto start = std::chrono::steady_clock::now();
      LOCKSTEP_TRY(prefill(sequence, length));
      rates.push_back(static_cast<double>(length) / seconds(start));
      if (kept && i + 1 == runs) kept_.insert_or_assign(length, std::move(sequence));
    }
    CaseResult result;
    result.name = fmt::format("prompt {}", length);
    result.rate = spread(rates);
    result.limit = limits_.peak;
    result.profile = profile_;
    result.achieved = result.rate.median * work.integer_macs;
    return result;
  }

  /// Steps of `streams` sequences, `width` tokens of each, after `depth` tokens. Every repetition starts from forks of
  /// the same sequence; memory bandwidth is measured in between.
  Result<CaseResult> decode(std::int64_t depth, std::int64_t width, std::int64_t streams) {
    LOCKSTEP_TRY(make_base(depth));
    std::vector<double> rates;
    std::vector<double> bandwidths;
    profile_.clear();
    for (std::int64_t i = 0; i < options_.repetitions; ++i) {
      bandwidths.push_back(LOCKSTEP_TRY(limits_.bandwidth()));
      std::vector<model::Sequence> sequences;
      for (std::int64_t n = 0; n < streams; ++n) sequences.push_back(LOCKSTEP_TRY(base_->fork()));
      LOCKSTEP_TRY(step(sequences, width));  // pages are copied, scratch grows
      const backend::Profile before = profile_;
      const auto start = std::chrono::steady_clock::now();
      LOCKSTEP_TRY(steps(sequences, width));
      rates.push_back(static_cast<double>(options_.tokens * streams) / seconds(start));
      if (i == 0) {
        for (std::size_t part = 0; part < backend::kParts; ++part) profile_.seconds[part] -= before.seconds[part];
      }
    }
    CaseResult result;
    result.name = width == 1 ? fmt::format("decode at {}", depth) : fmt::format("steps of {} at {}", width, depth);
    if (streams > 1) result.name = fmt::format("{} streams, {}", streams, result.name);
    result.depth = depth;
    result.width = width;
    result.streams = streams;
    result.ahead = ahead_ && can_chain(streams, width);
    result.rate = spread(rates);
    result.profile = profile_;
    if (width > 1 || streams > 1) return result;  // how many experts several rows share is not known
    result.limit = spread(bandwidths).median;
    result.achieved =
        result.rate.median * model::decode_work(loaded_.artifact->view(), loaded_.model->state_type(), depth).bytes;
    return result;
  }

  [[nodiscard]] const Limits& limits() const { return limits_; }
  [[nodiscard]] std::string describe() const { return loaded_.model->backend().describe(); }
  /// What to say of a model that is in no directory; empty for others.
  [[nodiscard]] const std::string& label() const { return loaded_.label; }

 private:
  std::int32_t random_token() {
    return static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(loaded_.model->config().vocab_size));
  }

  /// base_ becomes a sequence of `depth` tokens: the kept one, or what there is, continued.
  Status make_base(std::int64_t depth) {
    if (const auto kept = kept_.find(depth); kept != kept_.end()) {
      base_ = std::move(kept->second);
      kept_.erase(kept);
    }
    if (!base_ || base_->length() > depth) base_ = LOCKSTEP_TRY(model::Sequence::create(*loaded_.model));
    const std::int64_t missing = depth - base_->length();
    return missing > 0 ? prefill(*base_, missing) : Status{};
  }

  /// `length` tokens more.
  Status prefill(model::Sequence& sequence, std::int64_t length) {
    Progress progress("prompt", static_cast<std::uint64_t>(length), ProgressUnit::Items);
    for (std::int64_t done = 0; done < length;) {
      if (interrupts_.requested()) return fail(ErrorKind::Cancelled, "interrupted");
      const std::int64_t count = std::min(options_.chunk, length - done);
      tokens_.resize(static_cast<std::size_t>(count));
      for (std::int32_t& token : tokens_) token = random_token();
      const bool last = done + count == length;
      const model::Segment segment{&sequence, tokens_, last ? model::LogitsWanted::Last : model::LogitsWanted::None,
                                   false};
      LOCKSTEP_TRY(runner_.forward({&segment, 1}));
      LOCKSTEP_TRY(check_logits(sequence));
      done += count;
      progress.set(static_cast<std::uint64_t>(done));
    }
    return {};
  }

  /// Whether a step of these takes the token that the device drew in the one before.
  [[nodiscard]] bool can_chain(std::int64_t streams, std::int64_t width) const {
    return streams == 1 && width == 1 && loaded_.model->backend().draw_vocabulary() >= vocabulary_size();
  }
  [[nodiscard]] std::int64_t vocabulary_size() const { return loaded_.model->config().vocab_size; }
  /// The largest logit of a row, as for greedy requests.
  [[nodiscard]] backend::DrawRequest greedy_draw() const {
    return {.vocab = static_cast<std::int32_t>(vocabulary_size())};
  }

  /// All steps of a repetition.
  Status steps(std::span<model::Sequence> sequences, std::int64_t width) {
    if (ahead_ && can_chain(std::ssize(sequences), width)) return steps_ahead(sequences.front());
    for (std::int64_t t = 0; t < options_.tokens; ++t) LOCKSTEP_TRY(step(sequences, width));
    return {};
  }

  /// The same steps, each handed over before its token is known.
  Status steps_ahead(model::Sequence& sequence) {
    LOCKSTEP_TRY(runner_.launch(sequence, next_, greedy_draw()));
    for (std::int64_t t = 0; t < options_.tokens; ++t) {
      if (interrupts_.requested()) return fail(ErrorKind::Cancelled, "interrupted");
      if (t + 1 < options_.tokens) LOCKSTEP_TRY(runner_.launch(sequence, std::nullopt, greedy_draw()));
      LOCKSTEP_TRY(runner_.take());
      LOCKSTEP_TRY(check_drawn({&sequence, 1}));
    }
    next_ = runner_.results(0).drawn.back().id;
    return {};
  }

  Status step(std::span<model::Sequence> sequences, std::int64_t width) {
    if (interrupts_.requested()) return fail(ErrorKind::Cancelled, "interrupted");
    const auto rows = static_cast<std::size_t>(width);
    const bool chained = can_chain(std::ssize(sequences), width);
    tokens_.resize(rows * sequences.size());
    for (std::int32_t& token : tokens_) token = chained ? next_ : random_token();
    draws_.clear();
    // A device that can draws the largest logit of each row itself.
    if (loaded_.model->backend().draw_vocabulary() >= vocabulary_size()) draws_.resize(rows, greedy_draw());
    segments_.clear();
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      segments_.push_back(
          {&sequences[i], std::span(tokens_).subspan(i * rows, rows), model::LogitsWanted::All, false, draws_});
    }
    LOCKSTEP_TRY(runner_.forward(segments_));
    if (!draws_.empty()) {
      LOCKSTEP_TRY(check_drawn(sequences));
      next_ = runner_.results(0).drawn.back().id;
      return {};
    }
    // What greedy sampling does; the token is drawn at random to vary n-gram rows and experts.
    const auto vocabulary = static_cast<std::size_t>(loaded_.model->config().vocab_size);
    const std::span<const float> logits = runner_.logits();
    for (std::size_t row = 0; row < sequences.size(); ++row) {
      const auto some = logits.subspan(row * rows * vocabulary, rows * vocabulary);
      greedy_ = std::max_element(some.begin(), some.end()) - some.begin();
    }
    return check_logits(sequences.front());
  }

  /// check_logits() for rows that the device drew from: it looks at every logit and draws nothing otherwise.
  [[nodiscard]] Status check_drawn(std::span<const model::Sequence> sequences) const {
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      if (runner_.results(i).drawn.empty()) return not_finite(sequences[i]);
    }
    return {};
  }

  [[nodiscard]] static tl::unexpected<Error> not_finite(const model::Sequence& sequence) {
    return fail(ErrorKind::Internal,
                "the step that ended at token {} gave logits that are not finite, so its speed says nothing; check the "
                "model's files",
                sequence.length());
  }

  /// The speed of a model that computes nothing is no measurement.
  [[nodiscard]] Status check_logits(const model::Sequence& sequence) const {
    constexpr std::uint32_t kExponent = 0x7f800000U;
    unsigned bad = 0;  // without a branch inside the loop, so that it costs next to nothing
    for (const float logit : runner_.logits()) {
      bad |= static_cast<unsigned>((numerics::float_bits(logit) & kExponent) == kExponent);
    }
    if (bad == 0) return {};
    return not_finite(sequence);
  }

  const Options& options_;
  const bool ahead_;
  LoadedModel loaded_;
  model::Runner runner_;
  Limits limits_;
  backend::Profile& profile_;
  const InterruptScope& interrupts_;
  std::optional<model::Sequence> base_;
  std::map<std::int64_t, model::Sequence> kept_;  ///< by length
  std::mt19937_64 random_{1};
  std::vector<std::int32_t> tokens_;
  std::vector<model::Segment> segments_;
  std::vector<backend::DrawRequest> draws_;
  std::ptrdiff_t greedy_ = 0;
  std::int32_t next_ = 0;  ///< drawn by the device in the last step
};

/// Every case must fit the context: the model fails only in the middle.
Status check_lengths(const Options& options, std::int64_t context) {
  for (const std::int64_t length : options.prompts) {
    if (length <= context) continue;
    return fail(ErrorKind::Usage, "--prompt {}: the model's context holds {} tokens", length, context);
  }
  for (const std::int64_t depth : options.depths) {
    for (const std::int64_t width : options.widths) {
      const std::int64_t needed = depth + (options.tokens + 1) * width;  // one step warms up
      if (needed <= context) continue;
      return fail(ErrorKind::Usage, "--depth {} with {} steps of {} needs {} tokens; the model's context holds {}",
                  depth, options.tokens + 1, width, needed, context);
    }
  }
  return {};
}

/// Of the processor: a pool of its own reads and multiplies.
Result<Limits> processor_limits(const Options& options, ThreadPool& pool) {
  const kernels::Kernels* kernels = LOCKSTEP_TRY(backend::choose_kernels(options.engine.isa));
  auto read = std::make_shared<backend::ReadTest>(
      LOCKSTEP_TRY(backend::ReadTest::create(pool, kReadBytes, InterruptScope::flag())));
  return Limits{[read]() -> Result<double> { return read->run(); },
                backend::integer_peak(*kernels, pool, InterruptScope::flag())};
}

Result<Limits> device_limits(backend::Backend& backend) {
  auto copy = std::make_shared<backend::CopyTest>(LOCKSTEP_TRY(backend::CopyTest::create(backend, kCopyBytes)));
  return Limits{[copy] { return copy->run(); }, 0};
}

/// The machine before the first case, for people and as JSON.
struct Beginning {
  double load_seconds = 0, bandwidth = 0;
  std::uint64_t load_peak = 0;
  bool cuda = false;
};

Json beginning_json(const Bench& bench, const Beginning& begin) {
  Json json = {{"version", version()},
               {"commit", commit()},
               {"backend", bench.describe()},
               {"load_seconds", begin.load_seconds},
               {"load_peak_bytes", begin.load_peak},
               {begin.cuda ? "copy_bytes_per_second" : "read_bytes_per_second", begin.bandwidth},
               {"cases", Json::array()}};
  if (!begin.cuda) json["integer_peak"] = bench.limits().peak;
  json["time"] = report::now_utc();
  json["machine"] = report::describe_machine();
  const std::optional<double> load = report::MachineReader().read().load;
  json["load_average"] = load ? Json(*load) : Json();
  if (!bench.label().empty()) json["synthetic"] = bench.label();
  return json;
}

std::string beginning_text(const Bench& bench, const Beginning& begin) {
  const std::string rates =
      begin.cuda ? fmt::format("copies on the device {:.1f} GB/s (read and written)", begin.bandwidth * 1e-9)
                 : fmt::format("read {:.1f} GB/s, integer peak {:.1f} G multiply-adds/s", begin.bandwidth * 1e-9,
                               bench.limits().peak * 1e-9);
  return fmt::format("{}{}; loaded in {:.2f} s, at most {} of memory till then\n{}\n\n{:<30} {:>9} {:>9} {:>9}\n",
                     bench.label().empty() ? "" : bench.label() + "\n", bench.describe(), begin.load_seconds,
                     format_bytes(static_cast<double>(begin.load_peak)), rates, "", "median", "lowest", "highest");
}

Status run_bench(Options& options) {
  const InterruptScope interrupts;
  backend::Profile profile;
  if (options.profile) options.engine.profile = &profile;
  const decode::Lanes lanes = LOCKSTEP_TRY(decode::Lanes::from_user({}));
  const backend::DeviceChoice device = LOCKSTEP_TRY(backend::parse_device(options.engine.device));
  if (options.chunk == 0) options.chunk = backend::prompt_chunk(device);
  options.engine.rows = options.most_rows();
  options.engine.tokens = options.most_tokens();
  // A process with two pools must not have them spin against each other: the pool of the tests parks when idle.
  ThreadPool pool(options.engine.threads);
  Beginning begin;
  begin.cuda = device.cuda;
  const auto load_start = std::chrono::steady_clock::now();
  LoadedModel loaded = LOCKSTEP_TRY(load_model(options.engine, false));
  begin.load_seconds = seconds(load_start);
  begin.load_peak = peak_memory();
  LOCKSTEP_TRY(check_lengths(options, loaded.model->config().max_positions));
  model::Runner runner = LOCKSTEP_TRY(model::Runner::create(*loaded.model, options.most_rows()));
  Limits limits = LOCKSTEP_TRY(device.cuda ? device_limits(loaded.model->backend()) : processor_limits(options, pool));
  Bench bench(options, std::move(loaded), std::move(runner), std::move(limits), profile, interrupts,
              lanes.armed(decode::LaneId::ArPipeline));
  for (int i = 0; i < 3; ++i) {
    LOCKSTEP_TRY(interrupts.check());
    begin.bandwidth = std::max(begin.bandwidth, LOCKSTEP_TRY(bench.limits().bandwidth()));
  }

  Json json = beginning_json(bench, begin);
  if (!options.json) LOCKSTEP_TRY(write_stdout(beginning_text(bench, begin)));
  std::string profiles;
  const auto report = [&](const CaseResult& result, bool prompt) -> Status {
    json["cases"].push_back(to_json(result, prompt, options.profile));
    if (options.profile) profiles += profile_table(result);
    if (options.json) return {};
    LOCKSTEP_TRY(write_stdout(table_row(result, prompt)));
    return flush_stdout();
  };
  for (const std::int64_t length : options.prompts) {
    if (length == 0) continue;
    const CaseResult result = LOCKSTEP_TRY(bench.prompt(length));
    LOCKSTEP_TRY(report(result, true));
  }
  for (const std::int64_t depth : options.depths) {
    for (const std::int64_t streams : options.streams) {
      for (const std::int64_t width : options.widths) {
        const CaseResult result = LOCKSTEP_TRY(bench.decode(depth, width, streams));
        LOCKSTEP_TRY(report(result, false));
      }
    }
  }
  // Without what the reading test holds, which no model needs.
  const std::uint64_t peak = peak_memory();
  const std::size_t test = begin.cuda ? 0 : kReadBytes;
  json["peak_bytes"] = peak > test ? std::max(begin.load_peak, peak - test) : peak;
  return write_stdout(options.json ? json.dump(2) + "\n" : profiles);
}

}  // namespace

void add_bench(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("bench", "Measure the speed of prompts and of decoding");
  add_engine_options(*command, options->engine);
  add_in_memory_option(*command, options->engine);
  command->add_option("model", options->engine.model, "Model directory (same as --model)")
      ->excludes(command->get_option("--model"))
      ->excludes(command->get_option("--in-memory"))
      ->check(not_empty());
  const auto list = [&](const char* name, std::vector<std::int64_t>& values, int least, const char* what) {
    command->add_option(name, values, what)
        ->delimiter(',')
        ->transform(whole_number(least, 1 << 24))
        ->capture_default_str();
  };
  list("--prompt", options->prompts, 0, "Lengths of prompts, separated by commas; 0 for none");
  list("--depth", options->depths, 0, "Tokens before decoding starts, separated by commas");
  list("--width", options->widths, 1, "Tokens a decoding step takes, separated by commas (speculation takes several)");
  list("--parallel", options->streams, 1, "Sequences that decode together, separated by commas");
  command->add_option("--tokens", options->tokens, "Steps to decode")
      ->transform(whole_number(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--repetitions", options->repetitions, "Runs of each case; the table shows the middle one")
      ->transform(whole_number(1, 1000))
      ->capture_default_str();
  command->add_option("--prompt-repetitions", options->prompt_repetitions, "Runs of each prompt; 0 for --repetitions")
      ->transform(whole_number(0, 1000))
      ->capture_default_str();
  command->add_option("--chunk", options->chunk, "Prompt tokens of one forward pass (default: 256, on a device 4096)")
      ->transform(whole_number(1, 4096));
  command->add_flag("--profile", options->profile, "Also print where the time went");
  command->add_flag("--json", options->json, "Print JSON instead of a table");
  command->footer(
      "Decoding is compared with the speed of reading memory, measured just before each run; prompts with the integer\n"
      "multiply-adds that the processor does when nothing else is in the way. On a CUDA device decoding is compared\n"
      "with copies inside its memory, bytes read and bytes written added up. Rates of several sequences are all "
      "theirs\n"
      "together; a step of several tokens counts once.\n"
      "\n"
      "Examples:\n"
      "  lockstep bench\n"
      "  lockstep bench -m ~/models/Flash-Next --prompt 512,2048 --depth 0,16384 --profile\n"
      "  lockstep bench --in-memory mid:bare:1 --tokens 32      random weights, no file is written\n"
      "  lockstep bench --in-memory flash-next --ngram-rows 50000 --device cuda --depth 0,16384 --parallel 1,16");
  command->callback([options, &context] { context.status = run_bench(*options); });
}

}  // namespace lockstep::cli
