// `lockstep pack`: quantises a BF16 checkpoint.
#include <memory>
#include <string>

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>

#include "artifact/pack.hpp"
#include "base/progress.hpp"
#include "cli/arguments.hpp"
#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "cli/options.hpp"
#include "cli/terminal.hpp"

namespace lockstep::cli {
namespace {

struct Options {
  std::string source, destination, recipe = "bare";
  bool force = false;
  std::size_t threads = 0;
};

Status pack(const Options& options) {
  const InterruptScope interrupt;
  artifact::PackOptions work;
  work.recipe = LOCKSTEP_TRY(artifact::find_recipe(options.recipe));
  work.force = options.force;
  work.threads = granted_threads(options.threads);
  work.cancel = &InterruptScope::flag();
  std::unique_ptr<Progress> progress;
  work.progress = [&](std::uint64_t done, std::uint64_t total) {
    if (!progress) progress = std::make_unique<Progress>("packing", total, ProgressUnit::Bytes);
    progress->set(done);
  };
  std::unique_ptr<Progress> checking;
  work.checking = [&](std::uint64_t done, std::uint64_t total) {
    if (!checking) checking = std::make_unique<Progress>("checking", total, ProgressUnit::Bytes);
    checking->set(done);
    if (done == total) checking.reset();
  };
  const artifact::PackResult result = LOCKSTEP_TRY(artifact::write_pack(options.source, options.destination, work));
  progress.reset();
  std::string text = fmt::format("{}: {} in {} tensor files", options.destination,
                                 format_bytes(static_cast<double>(result.bytes)), result.files);
  if (result.reused > 0) text += fmt::format(", {} of them from the interrupted run", result.reused);
  if (result.damaged > 0) text += fmt::format(", {} of its files made again because they had changed", result.damaged);
  return write_stdout(text + "\n");
}

}  // namespace

void add_pack(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("pack", "Quantise a BF16 checkpoint into a pack");
  const auto options = std::make_shared<Options>();
  command->add_option("source", options->source, "Checkpoint in the official layout")->required()->check(not_empty());
  command->add_option("destination", options->destination, "Directory to create")->required()->check(not_empty());
  command->add_option("--recipe", options->recipe, "Which precision each module gets")
      ->check(CLI::IsMember(artifact::recipe_names()))
      ->capture_default_str();
  command->add_flag("--force", options->force, "Replace an existing model at the destination");
  add_threads_option(*command, options->threads, "every physical core");
  command->footer(
      "Examples:\n"
      "  lockstep pack Qwen3.8-Flash-Next flash-next-bare\n"
      "  lockstep pack Qwen3.8-Flash-Next flash-next-optimized --recipe optimized\n"
      "\n"
      "An interrupted run goes on where it stopped when the same command is given again.");
  command->callback([options, &context] { context.status = pack(*options); });
}

}  // namespace lockstep::cli
