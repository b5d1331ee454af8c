// `lockstep synth`: writes a synthetic model.
#include <memory>
#include <string>

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>

#include "artifact/synth.hpp"
#include "artifact/synth_geometry.hpp"
#include "base/progress.hpp"
#include "cli/arguments.hpp"
#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "cli/options.hpp"
#include "cli/terminal.hpp"

namespace lockstep::cli {
namespace {

struct Options {
  std::string destination, geometry = "toy", recipe = "bare", tokenizer;
  std::uint64_t seed = 1;
  std::size_t threads = 0;
  bool force = false, json = false;
};

std::string report(const Options& options, const artifact::PackResult& result) {
  if (options.json) {
    const OrderedJson json{{"directory", options.destination},
                           {"geometry", options.geometry},
                           {"recipe", options.recipe},
                           {"seed", options.seed},
                           {"files", result.files},
                           {"reused", result.reused},
                           {"bytes", result.bytes}};
    return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  }
  std::string text = fmt::format("{}: {} in {} tensor files", options.destination,
                                 format_bytes(static_cast<double>(result.bytes)), result.files);
  if (result.reused > 0) text += fmt::format(", {} of them from the interrupted run", result.reused);
  return text + "\n";
}

Status synth(const Options& options) {
  const InterruptScope interrupt;
  const artifact::SynthModel model{LOCKSTEP_TRY(artifact::synth_geometry(options.geometry)),
                                   LOCKSTEP_TRY(artifact::find_recipe(options.recipe)), options.seed};
  artifact::SynthOptions work;
  work.force = options.force;
  work.threads = granted_threads(options.threads);
  work.cancel = &InterruptScope::flag();
  if (options.tokenizer.empty()) {
    work.tokenizer = LOCKSTEP_TRY(find_demo_model());
  } else if (options.tokenizer != "none") {
    work.tokenizer = options.tokenizer;
  }
  std::unique_ptr<Progress> progress;
  work.progress = [&](std::uint64_t done, std::uint64_t total) {
    if (!progress) progress = std::make_unique<Progress>("writing", total, ProgressUnit::Bytes);
    progress->set(done);
  };
  const artifact::PackResult result = LOCKSTEP_TRY(artifact::write_synthetic(model, options.destination, work));
  progress.reset();
  return write_stdout(report(options, result));
}

}  // namespace

void add_synth(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("synth", "Write a model with random weights, for measuring");
  const auto options = std::make_shared<Options>();
  command->add_option("destination", options->destination, "Directory to create")->required()->check(not_empty());
  command->add_option("--geometry", options->geometry, "toy, mid, flash-next, or a config.json file")
      ->check(not_empty())
      ->capture_default_str();
  command->add_option("--recipe", options->recipe, "Which precision each module gets")
      ->check(CLI::IsMember(artifact::recipe_names()))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Chooses the weights")
      ->transform(whole_number(0, UINT64_MAX))
      ->capture_default_str();
  command
      ->add_option("--tokenizer", options->tokenizer,
                   "Model whose tokenizer is copied and padded to the vocabulary, or none (default: the demo model)")
      ->check(not_empty());
  command->add_flag("--force", options->force, "Replace an existing model at the destination");
  add_threads_option(*command, options->threads, "every physical core");
  command->add_flag("--json", options->json, "Print the result as JSON");
  command->footer(
      "Examples:\n"
      "  lockstep synth toy-model\n"
      "  lockstep synth --geometry mid --recipe bare --seed 1 mid-bare       about 4 GB\n"
      "  lockstep synth --geometry flash-next --recipe optimized big         the published sizes: over 100 GB\n"
      "  lockstep synth --geometry my-config.json --tokenizer none mine\n"
      "\n"
      "Geometry, recipe and seed decide every byte. An interrupted run goes on where it stopped when the same command\n"
      "is given again.");
  command->callback([options, &context] { context.status = synth(*options); });
}

}  // namespace lockstep::cli
