// lockstep verify: proves on the user's model and machine that the fast paths change nothing.
#include <sys/utsname.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <ctime>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>

#include "artifact/artifact.hpp"
#include "base/file.hpp"
#include "base/json.hpp"
#include "base/progress.hpp"
#include "cli/arguments.hpp"
#include "cli/command.hpp"
#include "cli/engine_options.hpp"
#include "cli/interrupt.hpp"
#include "cli/options.hpp"
#include "cli/terminal.hpp"
#include "decode/gates.hpp"
#include "text/tokenizer.hpp"

namespace lockstep::cli {
namespace {

struct Options {
  std::string model, receipt, frspec, device = "cpu";
  std::vector<std::string> disabled;
  decode::GateOptions gates;
  bool json = false, force_memory = false;
};

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "unknown";
}

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

OrderedJson receipt(const artifact::Artifact& artifact, const Options& options, const decode::GateReport& report) {
  utsname system{};
  ::uname(&system);
  OrderedJson json;
  json["format"] = "lockstep-receipt-1";
  json["version"] = LOCKSTEP_VERSION;
  json["time"] = now_utc();
  json["model"] = {{"directory", artifact.directory().string()},
                   {"config_sha256", artifact.identity().config_sha256},
                   {"runtime_sha256", artifact.identity().runtime_sha256},
                   {"inventory_sha256", artifact.identity().inventory_sha256}};
  json["machine"] = {{"processor", processor()},
                     {"system", fmt::format("{} {}", system.sysname, system.release)},
                     {"device", options.device}};
  json["seed"] = options.gates.seed;
  json["tokens_per_request"] = options.gates.tokens;
  json["reference_ids_sha256"] = report.digest;
  json["passed"] = report.passed();
  json["complete"] = report.complete();
  json["gates"] = OrderedJson::array();
  for (const decode::GateResult& gate : report.gates) {
    json["gates"].push_back({{"name", gate.name},
                             {"cases", gate.cases},
                             {"planned", gate.planned},
                             {"passed", gate.passed},
                             {"difference", gate.difference},
                             {"seconds", gate.seconds}});
  }
  json["lanes"] = OrderedJson::array();
  for (const decode::LaneReport& lane : report.lanes) {
    json["lanes"].push_back({{"name", lane.lane->name},
                             {"exactness", decode::exactness_name(lane.lane->exactness)},
                             {"verdict", decode::verdict_text(lane.verdict)},
                             {"engaged", lane.run.engaged},
                             {"ran", lane.run.detail}});
  }
  return json;
}

Status print_table(const decode::GateReport& report) {
  std::string text = fmt::format("{:<32} {:>11}  {:>8}  result\n", "gate", "cases", "seconds");
  for (const decode::GateResult& gate : report.gates) {
    const bool partial = gate.passed && gate.cases < gate.planned;
    const std::string verdict = !gate.passed      ? styled("DIFFERS", Style::Red, Stream::Out)
                                : gate.cases == 0 ? "not run (time)"
                                : partial         ? "equal (cut by time)"
                                                  : styled("equal", Style::Green, Stream::Out);
    text += fmt::format("{:<32} {:>11}  {:>8.1f}  {}\n", gate.name, fmt::format("{} of {}", gate.cases, gate.planned),
                        gate.seconds, verdict);
    if (!gate.difference.empty()) text += fmt::format("    {}\n", gate.difference);
  }
  text += fmt::format("\n{:<20} {:>9}  verdict\n", "lane", "engaged");
  for (const decode::LaneReport& lane : report.lanes) {
    text += fmt::format("{:<20} {:>9}  {}; {}\n", lane.lane->name, lane.run.engaged, decode::verdict_text(lane.verdict),
                        lane.run.detail);
  }
  text += fmt::format("reference ids sha256 {}\n", report.digest);
  return write_stdout(text);
}

Status verify(const Options& options) {
  const std::filesystem::path directory = LOCKSTEP_TRY(find_model(options.model));
  artifact::Artifact artifact = LOCKSTEP_TRY(artifact::Artifact::open_shapes(directory));
  decode::GateOptions gates = options.gates;
  gates.device = LOCKSTEP_TRY(backend::parse_device(options.device));
  gates.vocab = artifact.config().vocab_size;
  gates.threads = granted_threads(gates.threads);
  EngineOptions reference;  // the reference runs on the processor, whatever is tried
  reference.threads = gates.threads;
  LOCKSTEP_TRY(check_memory(artifact, load_setup(reference, artifact, true), options.force_memory));
  artifact.make_ready();
  if (std::filesystem::exists(directory / "tokenizer.json")) {
    const text::Tokenizer tokenizer = LOCKSTEP_TRY(text::Tokenizer::open(directory));
    gates.vocab = std::min<std::int64_t>(gates.vocab, tokenizer.vocabulary_size());
  }
  gates.lanes = LOCKSTEP_TRY(decode::Lanes::from_user(options.disabled));
  gates.draft_tokens = LOCKSTEP_TRY(draft_tokens(options.frspec, artifact));
  std::optional<AtomicFile> file;  // opened first: a wrong path is better known before the run
  if (!options.receipt.empty()) file = LOCKSTEP_TRY(AtomicFile::create(options.receipt));
  const InterruptScope interrupts;
  std::unique_ptr<Progress> bar;
  const decode::GateReport report =
      LOCKSTEP_TRY(decode::run_gates(artifact, gates, [&](const std::string&, std::int64_t done, std::int64_t total) {
        if (!bar) bar = std::make_unique<Progress>("verify", static_cast<std::uint64_t>(total), ProgressUnit::Items);
        bar->set(static_cast<std::uint64_t>(done));
        return !interrupts.requested();
      }));
  bar.reset();
  const OrderedJson json = receipt(artifact, options, report);
  if (file) {
    LOCKSTEP_TRY(file->write(json.dump(2) + "\n"));
    LOCKSTEP_TRY(file->commit());
  }
  LOCKSTEP_TRY(options.json ? write_stdout(json.dump(2) + "\n") : print_table(report));
  if (report.passed() && !report.complete()) {
    complain("not every case was tried in the time given; a larger --seconds tries more");
  }
  if (report.passed()) return {};
  return fail(ErrorKind::Internal, "results differ: this build must not be trusted on this machine");
}

}  // namespace

void add_verify(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("verify", "Prove that the fast paths give the bytes of the plain one");
  add_model_option(*command, options->model);
  command->add_option("model", options->model, "Model directory (same as --model)")
      ->excludes(command->get_option("--model"))
      ->check(not_empty());
  command->add_option("--device", options->device, "What is tried: cpu, cuda or cuda:N; the reference is the processor")
      ->capture_default_str();
  command->add_option("--seconds", options->gates.seconds, "Time budget: no new case starts after it")
      ->check(finite_number(1, 1e6))
      ->capture_default_str();
  command->add_option("--tokens", options->gates.tokens, "Tokens generated per request")
      ->transform(whole_number(1, 4096))
      ->capture_default_str();
  command->add_option("--seed", options->gates.seed, "Seed of the random prompts")
      ->transform(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str();
  add_threads_option(*command, options->gates.threads, "every physical core");
  command->add_option("--disable-optimization", options->disabled, "Leave lanes out: names separated by commas, or all")
      ->allow_extra_args(false);
  command->add_option("--frspec", options->frspec, "List of draft tokens (default: frspec.json of the model directory)")
      ->check(not_empty());
  command->add_option("--receipt", options->receipt, "Also write the JSON receipt to this file")->check(not_empty());
  add_force_memory_option(*command, options->force_memory);
  command->add_flag("--json", options->json, "Print the receipt instead of a table");
  command->footer(
      "Examples:\n"
      "  lockstep verify models/demo\n"
      "  lockstep verify -m ~/models/Flash-Next --seconds 600 --receipt receipt.json\n"
      "\n"
      "Exit code 1 when any result differs.");
  command->callback([options, &context] { context.status = verify(*options); });
}

}  // namespace lockstep::cli
