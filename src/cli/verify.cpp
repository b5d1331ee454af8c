// lockstep verify: proves on the user's model and machine that the fast paths change nothing.
#include <CLI/App.hpp>
#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "artifact/artifact.hpp"
#include "artifact/directory_note.hpp"
#include "base/file.hpp"
#include "base/progress.hpp"
#include "cli/arguments.hpp"
#include "cli/command.hpp"
#include "cli/engine_options.hpp"
#include "cli/interrupt.hpp"
#include "cli/options.hpp"
#include "cli/receipt.hpp"
#include "cli/terminal.hpp"
#include "decode/gates.hpp"
#include "text/tokenizer.hpp"

namespace lockstep::cli {
namespace {

struct Options {
  EngineOptions model;  ///< the model and the device that is tried
  std::string receipt, frspec;
  std::vector<std::string> disabled;
  decode::GateOptions gates;
  bool json = false;
};

/// Results that differ say nothing about the build when the model became another one in between.
Status check_unchanged(const artifact::DirectoryNote& note) {
  const std::string difference = note.difference();
  if (difference.empty()) return {};
  return fail(ErrorKind::Io,
              "{} while verify ran, so nothing is proved, neither for this build nor against it; run it again when "
              "nobody writes to the model",
              difference);
}

Status verify(const Options& options) {
  const InterruptScope interrupts;
  std::optional<artifact::DirectoryNote> note;  // of a model that is in a directory
  if (options.model.in_memory.empty()) {
    const std::filesystem::path directory = LOCKSTEP_TRY(find_model(options.model.model));
    note = LOCKSTEP_TRY(artifact::DirectoryNote::take(directory));
  }
  LoadedModel opened = LOCKSTEP_TRY(open_model(options.model));
  artifact::Artifact& artifact = *opened.artifact;
  decode::GateOptions gates = options.gates;
  gates.device = LOCKSTEP_TRY(backend::parse_device(options.model.device));
  gates.vocab = artifact.config().vocab_size;
  gates.threads = granted_threads(gates.threads);
  gates.cancel = &InterruptScope::flag();
  EngineOptions reference = options.model;  // it runs on the processor, whatever is tried
  reference.device = "cpu";
  reference.threads = gates.threads;
  LOCKSTEP_TRY(check_memory(artifact, load_setup(reference, artifact, true), options.model.force_memory));
  artifact.make_ready();
  std::optional<text::Tokenizer> tokenizer;
  if (LOCKSTEP_TRY(file_present(opened.texts / "tokenizer.json"))) {
    tokenizer = LOCKSTEP_TRY(text::Tokenizer::open(opened.texts));
    gates.vocab = std::min<std::int64_t>(gates.vocab, tokenizer->vocabulary_size());
  }
  gates.lanes = LOCKSTEP_TRY(decode::Lanes::from_user(options.disabled));
  if (gates.lanes.armed(decode::LaneId::Frspec) && gates.lanes.armed(decode::LaneId::Mtp)) {
    gates.draft_tokens = LOCKSTEP_TRY(draft_tokens(options.frspec, artifact));
  }
  std::optional<AtomicFile> file;  // opened first: a wrong path is better known before the run
  if (!options.receipt.empty()) file = LOCKSTEP_TRY(AtomicFile::create(options.receipt));
  std::unique_ptr<Progress> bar;
  Result<decode::GateReport> outcome =
      decode::run_gates(artifact, gates, [&](const std::string&, std::int64_t done, std::int64_t total) {
        if (!bar) bar = std::make_unique<Progress>("verify", static_cast<std::uint64_t>(total), ProgressUnit::Items);
        bar->set(static_cast<std::uint64_t>(done));
        return !interrupts.requested();
      });
  bar.reset();
  if (note && (outcome || outcome.error().kind != ErrorKind::Cancelled)) LOCKSTEP_TRY(check_unchanged(*note));
  const decode::GateReport report = LOCKSTEP_TRY(std::move(outcome));
  const OrderedJson json = verify_receipt(artifact, gates, report, tokenizer ? &*tokenizer : nullptr);
  const std::string receipt = json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  if (file) {
    LOCKSTEP_TRY(file->write(receipt));
    LOCKSTEP_TRY(file->commit());
  }
  LOCKSTEP_TRY(write_stdout(options.json ? receipt : verify_table(report)));
  LOCKSTEP_TRY(flush_stdout());  // what is said of the exit code below is then true
  if (report.passed() && !report.complete()) {
    const bool cut = std::ranges::any_of(report.gates, [](const auto& gate) { return gate.cases < gate.planned; });
    complain(
        cut ? "the time was over before every case was tried (exit code 0 all the same); a larger --seconds tries more"
            : "a lane found nothing to do (exit code 0 all the same); a larger --tokens tries more");
  }
  return verify_verdict(report);
}

}  // namespace

void add_verify(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("verify", "Prove that the fast paths give the bytes of the plain one");
  add_model_option(*command, options->model.model);
  add_in_memory_option(*command, options->model);
  command->add_option("model", options->model.model, "Model directory (same as --model)")
      ->excludes(command->get_option("--model"))
      ->excludes(command->get_option("--in-memory"))
      ->check(not_empty());
  command
      ->add_option("--device", options->model.device,
                   "What is tried: cpu, cuda or cuda:N; the reference is the processor")
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
  command->add_flag("--hash", options->gates.hash, "Also hash every file, before and after (reads the whole model)");
  command->add_option("--receipt", options->receipt, "Also write the JSON receipt to this file")->check(not_empty());
  add_force_memory_option(*command, options->model.force_memory);
  command->add_flag("--json", options->json, "Print the receipt instead of a table");
  command->footer(
      "Examples:\n"
      "  lockstep verify models/demo\n"
      "  lockstep verify -m ~/models/Flash-Next --seconds 600 --receipt receipt.json\n"
      "\n"
      "Exit code 1 when any result differs, with the first differing token, step and state part; also when a file of\n"
      "the model changed meanwhile, which proves nothing.");
  command->callback([options, &context] { context.status = verify(*options); });
}

}  // namespace lockstep::cli
