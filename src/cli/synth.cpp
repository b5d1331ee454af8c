// `lockstep synth`: writes a synthetic model, or makes it on a device.
#include <memory>
#include <string>

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>

#include "artifact/synth.hpp"
#include "artifact/synth_geometry.hpp"
#include "base/progress.hpp"
#include "cli/arguments.hpp"
#include "cli/command.hpp"
#include "cli/in_memory.hpp"
#include "cli/interrupt.hpp"
#include "cli/options.hpp"
#include "cli/synth_device.hpp"
#include "cli/terminal.hpp"

namespace lockstep::cli {
namespace {

struct Options {
  std::string destination, tokenizer, device = "cpu";
  InMemoryModel model{.geometry = "toy"};
  std::size_t threads = 0;
  bool in_memory = false, force = false, force_memory = false, json = false;
};

std::string report(const Options& options, const artifact::PackResult& result) {
  if (options.json) {
    const OrderedJson json{{"directory", options.destination},
                           {"geometry", options.model.geometry},
                           {"recipe", options.model.recipe},
                           {"seed", options.model.seed},
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

Status write_files(const Options& options) {
  const artifact::SynthModel model = LOCKSTEP_TRY(describe_in_memory(options.model));
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

std::string report(const Options& options, const DeviceSynth& made) {
  const auto bytes = static_cast<double>(made.stored_bytes);
  if (options.json) {
    const OrderedJson json{{"synthetic", options.model.label()},
                           {"geometry", options.model.geometry},
                           {"recipe", options.model.recipe},
                           {"seed", options.model.seed},
                           {"device", options.device},
                           {"device_name", made.device_name},
                           {"matrices", made.matrices},
                           {"bytes", made.stored_bytes},
                           {"device_bytes", made.device_bytes},
                           {"seconds", made.seconds},
                           {"bytes_per_second", bytes / made.seconds},
                           {"rows_checked", made.rows_checked},
                           {"check_seconds", made.check_seconds},
                           {"equal", true}};
    return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  }
  return fmt::format(
      "{}: {} matrices, {} as stored, {} on {} ({}), made in {:.2f} s ({:.1f} GB/s)\nchecked {} rows against the "
      "processor's generator in {:.1f} s: equal\n",
      options.model.label(), made.matrices, format_bytes(bytes), format_bytes(static_cast<double>(made.device_bytes)),
      options.device, made.device_name, made.seconds, bytes / made.seconds * 1e-9, made.rows_checked,
      made.check_seconds);
}

Status make_on_device(const Options& options, const CLI::App& command) {
  for (const char* of_files : {"destination", "--tokenizer", "--force"}) {
    if (command.get_option(of_files)->count() == 0) continue;
    return fail(ErrorKind::Usage, "{} has no meaning with --in-memory: no file is written", of_files);
  }
  const backend::DeviceChoice device = LOCKSTEP_TRY(backend::parse_device(options.device));
  if (!device.cuda) {
    return fail(ErrorKind::Usage,
                "--in-memory needs --device cuda: on the processor a model is made by the command that runs it "
                "('lockstep bench --in-memory')");
  }
  const DeviceSynth made = LOCKSTEP_TRY(synth_on_device(options.model, device, options.threads, options.force_memory));
  return write_stdout(report(options, made));
}

Status synth(const Options& options, const CLI::App& command) {
  const InterruptScope interrupt;
  if (options.in_memory) return make_on_device(options, command);
  for (const char* of_memory : {"--device", "--force-memory"}) {
    if (command.get_option(of_memory)->count() > 0)
      return fail(ErrorKind::Usage, "{} belongs to --in-memory", of_memory);
  }
  if (options.destination.empty()) {
    return fail(ErrorKind::Usage, "name the directory to create, or give --in-memory --device cuda to write none");
  }
  return write_files(options);
}

}  // namespace

void add_synth(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("synth", "Make a model with random weights, for measuring");
  const auto options = std::make_shared<Options>();
  command->add_option("destination", options->destination, "Directory to create")->check(not_empty());
  command->add_option("--geometry", options->model.geometry, "toy, mid, flash-next, or a config.json file")
      ->check(not_empty())
      ->capture_default_str();
  command->add_option("--recipe", options->model.recipe, "Which precision each module gets")
      ->check(CLI::IsMember(artifact::recipe_names()))
      ->capture_default_str();
  command->add_option("--seed", options->model.seed, "Chooses the weights")
      ->transform(whole_number(0, UINT64_MAX))
      ->capture_default_str();
  command
      ->add_option("--tokenizer", options->tokenizer,
                   "Model whose tokenizer is copied and padded to the vocabulary, or none (default: the demo model)")
      ->check(not_empty());
  add_ngram_rows_option(*command, options->model.ngram_rows);
  command->add_flag("--in-memory", options->in_memory, "Write nothing: make the weights on --device and check them");
  command->add_option("--device", options->device, "With --in-memory: cuda or cuda:N")->capture_default_str();
  add_force_memory_option(*command, options->force_memory);
  command->add_flag("--force", options->force, "Replace an existing model at the destination");
  add_threads_option(*command, options->threads, "every physical core");
  command->add_flag("--json", options->json, "Print the result as JSON");
  command->footer(
      "Examples:\n"
      "  lockstep synth toy-model\n"
      "  lockstep synth --geometry mid --recipe bare --seed 1 mid-bare       about 4 GB\n"
      "  lockstep synth --geometry flash-next --recipe optimized big         the published sizes: over 100 GB\n"
      "  lockstep synth --geometry my-config.json --tokenizer none mine\n"
      "  lockstep synth --geometry flash-next --in-memory --device cuda      in the device's memory, then checked\n"
      "\n"
      "Geometry, recipe and seed decide every byte. An interrupted run goes on where it stopped when the same command\n"
      "is given again.");
  command->callback([options, command, &context] { context.status = synth(*options, *command); });
}

}  // namespace lockstep::cli
