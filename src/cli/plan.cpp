// `lockstep plan`: memory and speed of a model on this machine, before it is loaded.
#include <CLI/App.hpp>
#include <algorithm>
#include <memory>

#include "backend/cpu/machine_rate.hpp"
#include "backend/cuda_devices.hpp"
#include "backend/device.hpp"
#include "base/json.hpp"
#include "base/memory.hpp"
#include "base/printable.hpp"
#include "base/progress.hpp"
#include "cli/arguments.hpp"
#include "cli/command.hpp"
#include "cli/engine_options.hpp"
#include "cli/interrupt.hpp"
#include "cli/options.hpp"
#include "cli/terminal.hpp"
#include "engine/device_plan.hpp"
#include "model/work.hpp"

namespace lockstep::cli {
namespace {

/// Share of the reading speed that decoding reaches where it was measured (docs/performance.md).
constexpr double kReachedShare = 0.70;
constexpr std::uint64_t kReadBytes = std::uint64_t{512} << 20;

struct Options {
  EngineOptions engine;
  std::int64_t context = 0, parallel = 1, depth = 3, chunk = 0;
  bool no_measure = false, json = false;
};

struct Report {
  engine::LoadPlan plan;
  std::uint64_t available = 0;
  std::int64_t context = 0, parallel = 1;
  double bytes_first = 0, bytes_last = 0;  ///< read for a token at depth 0, and at the end of the context
  double bandwidth = 0;                    ///< measured; 0: not
  std::size_t threads = 0;
  [[nodiscard]] bool fits() const { return plan.total() <= available; }
};

/// Bytes a second; 0 where there is too little memory for a meaningful test.
Result<double> read_bandwidth(std::size_t threads, std::uint64_t available, const InterruptScope& interrupts) {
  const std::uint64_t bytes = std::min(kReadBytes, available / 4);
  if (bytes < kReadBytes / 8) return 0.0;
  ThreadPool pool(threads);
  backend::ReadTest test = LOCKSTEP_TRY(backend::ReadTest::create(pool, bytes, InterruptScope::flag()));
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    LOCKSTEP_TRY(interrupts.check());
    best = std::max(best, test.run());
  }
  return best;
}

std::string bytes(std::uint64_t n) {
  return format_bytes(static_cast<double>(n));
}

std::string table_text(const Report& report, const std::string& name) {
  const engine::LoadPlan& plan = report.plan;
  std::string text = styled(printable(name), Style::Bold, Stream::Out) + "\n";
  const auto line = [&](std::string_view what, std::uint64_t n, const std::string& note = "") {
    text += fmt::format("  {:<34} {:>10}{}{}\n", what, bytes(n), note.empty() ? "" : "  ", note);
  };
  line("weights laid out for the kernels", plan.packed);
  line("weights read from the mapped files", plan.mapped);
  line("vectors and copies", plan.copied);
  if (plan.table_file > 0) {
    line("n-gram table", plan.table,
         plan.table_streamed ? fmt::format("cache of a streamed table of {}", bytes(plan.table_file)) : "resident");
  }
  line("state of a sequence", plan.sequence);
  line("state of a token", plan.token);
  line("states in all", plan.states, fmt::format("{} x {} tokens", report.parallel, report.context));
  line("scratch", plan.scratch);
  line("total", plan.total());
  if (report.available == UINT64_MAX) {
    text += "  the system does not say how much memory is available\n";
  } else {
    line("available", report.available, report.fits() ? "it fits" : "it does not fit");
  }
  text += fmt::format("  a token reads {} at depth 0, {} at {} (weights and state)\n", format_bytes(report.bytes_first),
                      format_bytes(report.bytes_last), report.context);
  if (report.bandwidth > 0) {
    const auto speed = [&](double read, double share) {
      const double tokens = share * report.bandwidth / read;
      return fmt::format("{:.{}f}", tokens, tokens >= 100 ? 0 : (tokens >= 10 ? 1 : 2));
    };
    text += fmt::format("  reading {} a second with {} thread{}: about {} tokens/s at depth 0, {} at {} (at most {})\n",
                        format_bytes(report.bandwidth), report.threads, report.threads == 1 ? "" : "s",
                        speed(report.bytes_first, kReachedShare), speed(report.bytes_last, kReachedShare),
                        report.context, speed(report.bytes_first, 1));
  }
  return text;
}

OrderedJson to_json(const Report& report, const std::string& name) {
  const engine::LoadPlan& plan = report.plan;
  OrderedJson json{
      {"model", name},
      {"context", report.context},
      {"parallel", report.parallel},
      {"bytes",
       {{"weights_packed", plan.packed},
        {"weights_mapped", plan.mapped},
        {"copies", plan.copied},
        {"table", plan.table},
        {"table_file", plan.table_file},
        {"state_per_sequence", plan.sequence},
        {"state_per_token", plan.token},
        {"states", plan.states},
        {"scratch", plan.scratch},
        {"total", plan.total()},
        {"available", report.available}}},
      {"table_mode", plan.table_file == 0 ? "none" : (plan.table_streamed ? "streamed" : "resident")},
      {"fits", report.fits()},
      {"decode", {{"bytes_per_token", report.bytes_first}, {"bytes_per_token_at_context", report.bytes_last}}}};
  if (report.bandwidth > 0) {
    OrderedJson& decode = json["decode"];
    decode["read_bytes_per_second"] = report.bandwidth;
    decode["threads"] = report.threads;
    decode["most_tokens_per_second"] = report.bandwidth / report.bytes_first;
    decode["expected_tokens_per_second"] = kReachedShare * report.bandwidth / report.bytes_first;
    decode["expected_tokens_per_second_at_context"] = kReachedShare * report.bandwidth / report.bytes_last;
  }
  return json;
}

/// Tokens of a sequence. Errors: Usage for more than the model takes.
Result<std::int64_t> chosen_context(const Options& options, const artifact::Artifact& artifact) {
  constexpr std::int64_t kDefaultContext = 4096;
  const std::int64_t most = artifact.config().max_positions;
  const std::int64_t context = options.context == 0 ? std::min(kDefaultContext, most) : options.context;
  if (context <= most) return context;
  return fail(ErrorKind::Usage, "--context {}: the model's context is {}", context, most);
}

engine::LoadSetup planned_setup(const Options& options, const artifact::Artifact& artifact, std::int64_t context) {
  engine::LoadSetup setup = load_setup(options.engine, artifact, options.depth > 0);
  setup.options.depth = options.depth;
  setup.tokens = context;
  setup.parallel = options.parallel;
  const std::int64_t chunk = options.chunk == 0 ? setup.rows : options.chunk;  // that of the device
  setup.rows = chunk + options.parallel * (decode::kMaxDepth + 1);
  setup.cpu.lanes = options.engine.lanes;
  return setup;
}

Result<Report> make_report(const Options& options, const artifact::Artifact& artifact,
                           const InterruptScope& interrupts) {
  Report report;
  report.context = LOCKSTEP_TRY(chosen_context(options, artifact));
  report.parallel = options.parallel;
  LOCKSTEP_TRY(memory_limit());
  report.available = available_memory();
  const engine::LoadSetup setup = planned_setup(options, artifact, report.context);
  report.plan = LOCKSTEP_TRY(engine::plan_load(artifact, setup));
  report.bytes_first = model::decode_work(artifact.view(), setup.state, 0).bytes;
  report.bytes_last = model::decode_work(artifact.view(), setup.state, report.context).bytes;
  report.threads = setup.cpu.threads == 0 ? physical_cores() : setup.cpu.threads;
  if (!options.no_measure)
    report.bandwidth = LOCKSTEP_TRY(read_bandwidth(report.threads, report.available, interrupts));
  return report;
}

std::string_view host_table_text(backend::NgramMode place) {
  if (place == backend::NgramMode::Pinned) return "n-gram table, page-locked";
  return place == backend::NgramMode::Streamed ? "table's cache, on the host" : "n-gram table, on the host";
}

std::string device_text(const engine::DevicePlan& plan, const kernels::cuda::DeviceInfo& info,
                        const std::string& device, const std::string& name) {
  std::string text = styled(printable(name), Style::Bold, Stream::Out) + "\n";
  const auto line = [&](std::string_view what, std::uint64_t n) {
    text += fmt::format("  {:<34} {:>10}\n", what, bytes(n));
  };
  text += fmt::format("  on {}, {}\n", device, printable(info.name));
  line("weights laid out for the kernels", plan.weights);
  line("more while they are laid out", plan.staging);
  line("state of a sequence", plan.sequence);
  line("state of a token", plan.token);
  line("states in all", plan.states);
  line("scratch", plan.scratch);
  if (plan.table > 0) line("n-gram table", plan.table);
  line("total", plan.total());
  line(plan.total() <= info.free_memory ? "free on the device: it fits" : "free on the device: does not fit",
       info.free_memory);
  if (plan.host_table > 0) line(host_table_text(plan.place), plan.host_table);
  return text;
}

OrderedJson device_json(const engine::DevicePlan& plan, const kernels::cuda::DeviceInfo& info,
                        const std::string& device, const std::string& name) {
  return {{"model", name},
          {"device", device},
          {"device_name", info.name},
          {"bytes",
           {{"weights", plan.weights},
            {"staging", plan.staging},
            {"state_per_sequence", plan.sequence},
            {"state_per_token", plan.token},
            {"states", plan.states},
            {"scratch", plan.scratch},
            {"total", plan.total()},
            {"free", info.free_memory},
            {"device_total", info.total_memory},
            {"table", plan.table},
            {"host_table", plan.host_table}}},
          {"table_mode", plan.place == backend::NgramMode::Auto ? "none" : backend::ngram_mode_name(plan.place)},
          {"fits", plan.total() <= info.free_memory}};
}

/// The plan of a CUDA device: its memory, not the machine's, and no speed.
Status plan_on_device(const Options& options, const backend::DeviceChoice& choice) {
  const kernels::cuda::DeviceInfo info = LOCKSTEP_TRY(backend::open_cuda_device(choice.index));
  const LoadedModel opened = LOCKSTEP_TRY(open_model(options.engine));
  const artifact::Artifact& artifact = *opened.artifact;
  const std::int64_t context = LOCKSTEP_TRY(chosen_context(options, artifact));
  const engine::LoadSetup setup = planned_setup(options, artifact, context);
  LOCKSTEP_TRY(memory_limit());
  const std::uint64_t available = available_memory();
  const engine::DevicePlan plan = LOCKSTEP_TRY(engine::plan_device(artifact, setup, info.free_memory, available));
  const std::string name = artifact.directory().string();
  const std::string device = choice.text();
  LOCKSTEP_TRY(write_stdout(
      options.json
          ? device_json(plan, info, device, name).dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n"
          : device_text(plan, info, device, name)));
  LOCKSTEP_TRY(flush_stdout());
  if (options.engine.force_memory) return {};
  return engine::check_fits(plan, info.free_memory, available, device, name);
}

Status plan(const Options& options) {
  const InterruptScope interrupts;
  const backend::DeviceChoice device = LOCKSTEP_TRY(chosen_device(options.engine));
  if (device.cuda) return plan_on_device(options, device);
  const LoadedModel opened = LOCKSTEP_TRY(open_model(options.engine));
  const artifact::Artifact& artifact = *opened.artifact;
  const Report report = LOCKSTEP_TRY(make_report(options, artifact, interrupts));
  const std::string name = artifact.directory().string();
  LOCKSTEP_TRY(interrupts.check());
  LOCKSTEP_TRY(write_stdout(
      options.json ? to_json(report, name).dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n"
                   : table_text(report, name)));
  LOCKSTEP_TRY(flush_stdout());
  if (options.engine.force_memory) return {};
  return engine::check_fits(report.plan, report.available, name);
}

}  // namespace

void add_plan(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  options->engine.lanes.ple_aux_bytes = backend::kPleAuxBytes;
  CLI::App* command = app.add_subcommand("plan", "Tell a model's memory and speed on this machine, without loading it");
  add_engine_options(*command, options->engine);
  add_in_memory_option(*command, options->engine);
  command->add_option("model", options->engine.model, "Model directory (same as --model)")
      ->excludes(command->get_option("--model"))
      ->excludes(command->get_option("--in-memory"))
      ->check(not_empty());
  const auto number = [&](const char* name, std::int64_t& value, std::int64_t least, std::uint64_t most,
                          const char* what) {
    return command->add_option(name, value, what)->transform(whole_number(least, most));
  };
  number("--context", options->context, 1, std::uint64_t{1} << 32,
         "Tokens of a sequence, prompt and answer (default: 4096, or the model's context if that is less)");
  number("--parallel", options->parallel, 1, 256, "Sequences at the same time")->capture_default_str();
  number("--depth", options->depth, 0, decode::kMaxDepth, "Draft tokens a cycle; 0 decodes plainly")
      ->capture_default_str();
  number("--prefill-chunk", options->chunk, 0, 1 << 16, "Prompt tokens of a step; 0: 256, on CUDA 4,096")
      ->capture_default_str();
  command->add_flag("--no-measure", options->no_measure, "Do not measure the speed of reading memory");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "Examples:\n"
      "  lockstep plan models/demo --context 8192 --parallel 4\n"
      "  lockstep plan -m ~/models/Flash-Next --context 262144 --ple streamed --json\n"
      "  lockstep plan --in-memory flash-next:bare --context 262144 --device cuda\n"
      "\n"
      "Exit code 1 when it does not fit (0 with --force-memory). Commands that load a model refuse one that does not\n"
      "fit, with the same figures for a single short sequence.");
  command->callback([options, &context] { context.status = plan(*options); });
}

}  // namespace lockstep::cli
