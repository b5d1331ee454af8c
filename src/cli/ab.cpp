// lockstep ab: speed and parity of several ways to run a model, in one receipt.
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "artifact/artifact.hpp"
#include "base/file.hpp"
#include "base/progress.hpp"
#include "base/sha256.hpp"
#include "cli/ab_contexts.hpp"
#include "cli/arguments.hpp"
#include "cli/command.hpp"
#include "cli/engine_options.hpp"
#include "cli/interrupt.hpp"
#include "cli/options.hpp"
#include "cli/terminal.hpp"
#include "cli/version.hpp"
#include "report/machine.hpp"
#include "report/parity.hpp"
#include "report/report.hpp"

namespace lockstep::cli {
namespace {

constexpr std::uint64_t kMaxPromptBytes = std::uint64_t{64} << 20;

struct Options {
  EngineOptions model;  ///< a directory or a synthetic one
  std::string prompt, order, control, out, stored, seeds = "20260829-20260831";
  std::vector<std::string> arms, required;
  std::vector<std::int64_t> contexts;
  std::int64_t prompt_tokens = 16384, max_tokens = 1024, context_tokens = 64;
  std::optional<double> temperature, top_p, max_load, min_cpu_mhz, max_cpu_celsius, max_gpu_celsius;
  std::optional<std::int64_t> top_k;
  double max_busy = 0.1, gate_timeout = 60, start_timeout = 600, request_timeout = 3600;
  std::string effort;
  bool no_think = false, no_gate = false, in_process = false, json = false;
};

/// A text of its own for want of a prompt file: the same on every machine.
std::string built_in_text() {
  std::string text = "Read this list, then say what its lines have in common and name the longest one.\n";
  for (int i = 1; i <= 400; ++i) {
    text += fmt::format("Line {}: the number {} times {} is {}.\n", i, i, i % 7 + 2, i * (i % 7 + 2));
  }
  return text;
}

Result<std::vector<report::Arm>> parse_arms(const Options& options) {
  std::vector<report::Arm> arms;
  for (const std::string& text : options.arms) {
    report::Arm arm = LOCKSTEP_TRY(report::parse_arm(text));
    if (std::ranges::find(arms, arm.name, &report::Arm::name) != arms.end()) {
      return fail(ErrorKind::Usage, "arm '{}' is there twice", arm.name);
    }
    arms.push_back(std::move(arm));
  }
  if (arms.size() > report::kMaxArms) return fail(ErrorKind::Usage, "at most {} arms", report::kMaxArms);
  return arms;
}

/// Every arm and then every arm again the other way round: a drift that is linear in time cancels.
std::string default_order(std::size_t arms) {
  std::string letters;
  for (std::size_t i = 0; i < arms; ++i) letters += static_cast<char>('A' + i);
  return letters + std::string(letters.rbegin(), letters.rend());
}

/// Without a gate nothing is limited, and the machine is only looked at.
report::GateLimits gate_limits(const Options& options) {
  report::GateLimits limits;
  if (!options.no_gate) {
    limits = {.max_load = options.max_load,
              .max_busy = options.max_busy,
              .min_cpu_mhz = options.min_cpu_mhz,
              .max_cpu_celsius = options.max_cpu_celsius,
              .max_gpu_celsius = options.max_gpu_celsius};
  }
  limits.timeout_seconds = options.gate_timeout;
  return limits;
}

Result<report::Run> plan(const Options& options) {
  report::Run run;
  run.arms = LOCKSTEP_TRY(parse_arms(options));
  if (run.arms.size() < 2) return fail(ErrorKind::Usage, "give at least two arms: --arm a= --arm b='--depth 0'");
  run.windows = LOCKSTEP_TRY(
      report::parse_order(options.order.empty() ? default_order(run.arms.size()) : options.order, run.arms));
  run.seeds = LOCKSTEP_TRY(report::parse_seeds(options.seeds));
  if (!options.control.empty()) {
    const auto found = std::ranges::find(run.arms, options.control, &report::Arm::name);
    if (found == run.arms.end()) return fail(ErrorKind::Usage, "--control '{}' is no arm", options.control);
    run.control = static_cast<std::size_t>(found - run.arms.begin());
  }
  for (const std::string& required : options.required) {
    const std::string name = required.substr(0, required.find('='));
    if (name.size() == required.size() || std::ranges::find(run.arms, name, &report::Arm::name) == run.arms.end()) {
      return fail(ErrorKind::Usage, "--require '{}' must be ARM=LANE", required);
    }
  }
  run.required = options.required;
  run.mode = options.in_process ? "in-process" : "served";
  run.cell.max_tokens = options.max_tokens;
  run.cell.temperature = options.temperature;
  run.cell.top_p = options.top_p;
  run.cell.top_k = options.top_k;
  run.cell.effort = options.effort;
  run.cell.no_think = options.no_think;
  run.limits = gate_limits(options);
  return run;
}

/// A directory, and those above it that were not there either. They go again at the end as far as they are empty: a run
/// that left nothing leaves no place for it.
class NewDirectory {
 public:
  NewDirectory() = default;
  static Result<NewDirectory> create(const std::filesystem::path& path) {
    NewDirectory out;
    std::error_code error;
    for (auto part = path; !part.empty() && !std::filesystem::exists(part, error); part = part.parent_path()) {
      out.made_.push_back(part);
    }
    std::filesystem::create_directories(path, error);
    if (error) return fail(ErrorKind::Io, "{}: {}", path.string(), error.message());
    return out;
  }
  NewDirectory(NewDirectory&& other) noexcept : made_(std::exchange(other.made_, {})) {}
  NewDirectory& operator=(NewDirectory&& other) noexcept {
    std::swap(made_, other.made_);
    return *this;
  }
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;
  ~NewDirectory() {
    for (const std::filesystem::path& path : made_) ::rmdir(path.c_str());
  }

 private:
  std::vector<std::filesystem::path> made_;  ///< the deepest first
};

/// The receipts of a run under way. They are opened first, because a wrong path is better known before the run.
class Receipts {
 public:
  static Result<Receipts> create(const std::string& directory, const std::vector<std::string>& names) {
    Receipts out;
    if (directory.empty()) return out;
    out.directory_ = LOCKSTEP_TRY(NewDirectory::create(directory));
    for (const std::string& name : names) {
      out.files_.push_back(LOCKSTEP_TRY(AtomicFile::create(std::filesystem::path(directory) / name)));
    }
    return out;
  }
  /// One text a file.
  Status write(const std::vector<std::string>& texts) {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      LOCKSTEP_TRY(files_[i].write(texts[i]));
      LOCKSTEP_TRY(files_[i].commit());
    }
    return {};
  }

 private:
  NewDirectory directory_;  // before the files, so that it goes after them
  std::vector<AtomicFile> files_;
};

/// Everything that a run needs besides its plan.
class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), waiter_(InterruptScope::descriptor()) {}

  Status prepare(report::Cell& cell) {
    const LoadedModel opened = LOCKSTEP_TRY(open_model(options_.model));
    const std::filesystem::path& directory = opened.texts;
    const artifact::Artifact& artifact = *opened.artifact;
    const std::string in_directory = std::filesystem::weakly_canonical(directory).filename().string();
    model_ = {{"name", opened.label.empty() ? in_directory : opened.label},
              {"config_sha256", artifact.identity().config_sha256},
              {"inventory_sha256", artifact.identity().inventory_sha256}};
    const std::string text =
        options_.prompt.empty() ? built_in_text() : LOCKSTEP_TRY(read_file(options_.prompt, kMaxPromptBytes));
    const text::Tokenizer tokenizer = LOCKSTEP_TRY(text::Tokenizer::open(directory));
    const text::ChatTemplate chat_template = LOCKSTEP_TRY(text::ChatTemplate::open(directory));
    AbMessage message = LOCKSTEP_TRY(make_message(tokenizer, chat_template, text, options_.prompt_tokens, cell));
    if (message.prompt_tokens + cell.max_tokens > artifact.config().max_positions) {
      return fail(ErrorKind::Usage, "{} prompt tokens and {} of an answer are more than the model's context of {}",
                  message.prompt_tokens, cell.max_tokens, artifact.config().max_positions);
    }
    cell.prompt_tokens = message.prompt_tokens;
    cell.prompt_sha256 = sha256_hex(message.text);
    setup_ = {.model = directory.string(),
              .in_memory = options_.model.in_memory,
              .ngram_rows = options_.model.ngram_rows,
              .message = std::move(message.text),
              .cell = cell,
              .start_seconds = options_.start_timeout,
              .request_seconds = options_.request_timeout,
              .waiter = &waiter_,
              .interrupted = &InterruptScope::flag()};
    return {};
  }

  Status run(report::Run& run) {
    run.model = model_;
    run.machine = report::describe_machine();
    run.environment = report::lockstep_environment();
    run.version = version();
    run.commit = commit();
    run.started = report::now_utc();
    Progress bar("samples", run.windows.size() * run.seeds.size(), ProgressUnit::Items);
    const report::DriverHooks hooks{.open =
                                        [&](const report::Arm& arm) {
                                          return options_.in_process ? open_in_process(setup_, arm)
                                                                     : open_served(setup_, arm);
                                        },
                                    .gate = [&] { return gate(run.limits); },
                                    .progress = [&](const report::Run& so_far) { bar.set(so_far.samples.size()); }};
    Status status = report::drive(run, hooks);
    run.ended = report::now_utc();
    return status;
  }

  /// Waits for quiet, as far as there are limits.
  report::GateRecord gate(const report::GateLimits& limits) {
    return report::wait_until_quiet(
        limits, {.read = [this] { return machine_.read(); },
                 .now = [this] { return waiter_.now(); },
                 .sleep = [this](double seconds) { return waiter_.wait({}, seconds); },
                 .waits =
                     [&](const report::GateRecord& first) {
                       complain(fmt::format("waiting for a quiet machine, at most {:g} s (--no-gate does not): {}",
                                            limits.timeout_seconds, fmt::join(first.exceeded, "; ")));
                     }});
  }

  [[nodiscard]] const AbSetup& setup() const { return setup_; }

 private:
  const Options& options_;
  const InterruptScope interrupts_;
  report::SystemWaiter waiter_;
  report::MachineReader machine_;
  OrderedJson model_;
  AbSetup setup_;
};

/// Writes and prints what there is to say of a run, and turns its verdict into the exit code.
Status deliver(const report::Run& run, Receipts& receipts, bool as_json, const Status& status) {
  const std::string json = report::to_json(run).dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  const std::string markdown = report::to_markdown(run);
  LOCKSTEP_TRY(receipts.write({json, report::to_csv(run), markdown, report::to_svg(run)}));
  if (!status) return status;
  LOCKSTEP_TRY(write_stdout(as_json ? json : markdown));
  const std::vector<std::string> failed = report::failures(run);
  return failed.empty() ? Status{} : fail(ErrorKind::Internal, "FAIL: {}", failed.front());
}

Result<Receipts> create_receipts(const Options& options) {
  return Receipts::create(options.out, {"ab.json", "ab.csv", "ab.md", "ab.svg"});
}

Status compare_arms(const Options& options) {
  report::Run run = LOCKSTEP_TRY(plan(options));
  Bench bench(options);
  Receipts receipts = LOCKSTEP_TRY(create_receipts(options));
  LOCKSTEP_TRY(bench.prepare(run.cell));
  Status status = bench.run(run);
  if (!status && status.error().kind != ErrorKind::Cancelled) return status;
  return deliver(run, receipts, options.json, status);
}

/// A stored run again: what follows from its samples is computed by the rules of this program.
Status render_stored(const Options& options) {
  const std::string text = LOCKSTEP_TRY(read_file(options.stored, JsonLimits{}.max_bytes));
  const OrderedJson json = LOCKSTEP_TRY(parse_ordered_json(text, options.stored));
  const Result<report::Run> run = report::run_of_json(json);
  if (!run) return fail(ErrorKind::Invalid, "{}: {}", options.stored, run.error().message);
  Receipts receipts = LOCKSTEP_TRY(create_receipts(options));
  return deliver(*run, receipts, options.json, {});
}

Status sweep(const Options& options) {
  std::vector<report::Arm> arms = LOCKSTEP_TRY(parse_arms(options));
  if (arms.empty()) arms.push_back({"model", {}, {}});
  Receipts receipts = LOCKSTEP_TRY(Receipts::create(options.out, {"contexts.json", "contexts.md"}));
  Options short_prompt = options;
  short_prompt.prompt_tokens = 0;  // the sweep repeats the text itself
  short_prompt.max_tokens = 1;
  Bench bench(short_prompt);
  report::Cell cell;
  cell.temperature = options.temperature;
  cell.top_p = options.top_p;
  cell.top_k = options.top_k;
  LOCKSTEP_TRY(bench.prepare(cell));
  SweepOptions wanted{.contexts = options.contexts, .tokens = options.context_tokens, .gate = [&] {
                        return bench.gate(gate_limits(options));
                      }};
  std::ranges::sort(wanted.contexts);
  wanted.contexts.erase(std::unique(wanted.contexts.begin(), wanted.contexts.end()), wanted.contexts.end());
  const OrderedJson found = LOCKSTEP_TRY(sweep_contexts(bench.setup(), arms, wanted));
  const std::string json = found.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  const std::string markdown = sweep_markdown(found);
  LOCKSTEP_TRY(receipts.write({json, markdown}));
  LOCKSTEP_TRY(write_stdout(options.json ? json : markdown));
  if (sweep_passed(found)) return {};
  return fail(ErrorKind::Internal, "FAIL: see the context sweep");
}

/// What has its own model, windows and gate needs nothing but --out and --json.
Status check_stored(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || name == "--report" || name == "--out" || name == "--json") continue;
    return fail(ErrorKind::Usage, "{} has no meaning with --report", name);
  }
  return {};
}

/// A sweep and a comparison of arms have options of their own; one that would be ignored is an error.
Status check_given(const CLI::App& command, bool sweep) {
  constexpr std::array kCompares{"--order",         "--control",       "--require",        "--in-process",
                                 "--prompt-tokens", "--max-tokens",    "--seeds",          "--effort",
                                 "--no-think",      "--start-timeout", "--request-timeout"};
  if (!sweep && command.get_option("--context-tokens")->count() > 0) {
    return fail(ErrorKind::Usage, "--context-tokens belongs to --contexts");
  }
  for (const char* name : kCompares) {
    if (sweep && command.get_option(name)->count() > 0) {
      return fail(ErrorKind::Usage, "{} has no meaning with --contexts", name);
    }
  }
  return {};
}

void add_cell_options(CLI::App& command, Options& options) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 24;
  command.add_option("--prompt", options.prompt, "File with the message (default: a built-in list)")
      ->check(not_empty());
  command
      .add_option("--prompt-tokens", options.prompt_tokens,
                  "Tokens of the prompt: the message is repeated and cut to that; 0 takes it as it is")
      ->transform(whole_number(0, kMost))
      ->capture_default_str();
  command.add_option("--max-tokens", options.max_tokens, "Most tokens of an answer")
      ->transform(whole_number(1, kMost))
      ->capture_default_str();
  command.add_option("--seeds", options.seeds, "Seeds: numbers and ranges, separated by commas")->capture_default_str();
  command.add_option("--temperature", options.temperature, "Sampling temperature")->check(finite_number(0, 2));
  command.add_option("--top-p", options.top_p, "Keep the most probable tokens up to this mass")
      ->check(finite_number(0, 1));
  command.add_option("--top-k", options.top_k, "Keep at most this many tokens; 0 keeps all")
      ->transform(whole_number(0, std::uint64_t{1} << 31));
  command.add_option("--effort", options.effort, "Reasoning effort, as the template names it")->check(not_empty());
  command.add_flag("--no-think", options.no_think, "Ask the template for an answer without reasoning");
}

void add_gate_options(CLI::App& command, Options& options) {
  const auto number = [&](const char* name, auto& value, double least, double most, const char* text) {
    return command.add_option(name, value, text)->check(finite_number(least, most));
  };
  number("--max-busy", options.max_busy, 0, 1, "Quiet gate: share of processor time that others may use")
      ->capture_default_str();
  number("--max-load", options.max_load, 0, 1e6, "Quiet gate: load average of a minute");
  number("--min-cpu-mhz", options.min_cpu_mhz, 0, 1e6, "Quiet gate: processor frequency");
  number("--max-cpu-celsius", options.max_cpu_celsius, 0, 200, "Quiet gate: processor temperature");
  number("--max-gpu-celsius", options.max_gpu_celsius, 0, 200, "Quiet gate: GPU temperature, through NVML");
  number("--gate-timeout", options.gate_timeout, 0, 86400, "Seconds to wait for quiet before each sample")
      ->capture_default_str();
  command.add_flag("--no-gate", options.no_gate, "Only record what the machine does");
  number("--start-timeout", options.start_timeout, 0.1, 86400, "Seconds for a server to load")->capture_default_str();
  number("--request-timeout", options.request_timeout, 0.1, 86400, "Seconds for an answer")->capture_default_str();
}

}  // namespace

void add_ab(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("ab", "Measure speed and parity of several ways to run a model");
  add_model_option(*command, options->model.model);
  add_in_memory_option(*command, options->model);
  command->add_option("--arm", options->arms, "NAME=FLAGS of `serve` (repeatable); VARIABLE=VALUE words may come first")
      ->allow_extra_args(false);
  command->add_option("--order", options->order, "ABA, A/B/A, or a list: 'c1 a1 b1 b2 a2 c2' (default: there and back)")
      ->check(not_empty());
  command->add_option("--control", options->control, "The arm that others are compared with (default: the first)")
      ->check(not_empty());
  command->add_option("--require", options->required, "ARM=LANE: the lane must run in that arm (repeatable)")
      ->allow_extra_args(false);
  command->add_flag("--in-process", options->in_process, "Load the model here; arms then have the flags of `run`");
  add_cell_options(*command, *options);
  add_gate_options(*command, *options);
  command->add_option("--contexts", options->contexts, "Sweep instead: lengths of prompts, separated by commas")
      ->delimiter(',')
      ->transform(whole_number(1, std::uint64_t{1} << 24));
  command->add_option("--context-tokens", options->context_tokens, "Tokens decoded at each context of a sweep")
      ->transform(whole_number(1, 65536))
      ->capture_default_str();
  command->add_option("--report", options->stored, "Write the reports of this stored ab.json again; runs nothing")
      ->check(not_empty());
  command->add_option("--out", options->out, "Directory for ab.json, ab.csv, ab.md and ab.svg")->check(not_empty());
  command->add_flag("--json", options->json, "Print the JSON instead of the Markdown report");
  command->footer(
      "Examples:\n"
      "  lockstep ab -m ~/models/Flash-Next --arm a='--depth 0' --arm b='--depth 3' --out receipt\n"
      "  lockstep ab --prompt-tokens 512 --max-tokens 128 --arm on= --arm off='--disable-optimization mtp'\n"
      "  lockstep ab -m ~/models/Flash-Next --contexts 2048,16384,65536,131072,262144\n"
      "  lockstep ab --in-memory flash-next --ngram-rows 50000 --arm gpu='--device cuda' --contexts 2048,262000\n"
      "  lockstep ab --report receipt/ab.json\n"
      "\n"
      "Exit codes: 0 PASS, 1 FAIL (answers differ, a lane did not run, a window failed), 2 wrong usage, 130 "
      "interrupted.");
  command->callback([options, command, &context] {
    if (!options->stored.empty()) {
      context.status = check_stored(*command);
      if (context.status) context.status = render_stored(*options);
      return;
    }
    const bool contexts = !options->contexts.empty();
    context.status = check_given(*command, contexts);
    if (context.status) context.status = contexts ? sweep(*options) : compare_arms(*options);
  });
}

}  // namespace lockstep::cli
