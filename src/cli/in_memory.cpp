#include "cli/in_memory.hpp"

#include <CLI/App.hpp>
#include <algorithm>
#include <charconv>

#include "artifact/synth_geometry.hpp"
#include "base/memory.hpp"
#include "cli/arguments.hpp"
#include "cli/options.hpp"
#include "cli/terminal.hpp"

namespace lockstep::cli {
namespace {

bool is_recipe(const std::string& text) {
  return std::ranges::find(artifact::recipe_names(), text) != artifact::recipe_names().end();
}

/// Cuts what follows the last colon off; nothing when there is none.
std::optional<std::string> cut_last(std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  std::string last = text.substr(colon + 1);
  text.resize(colon);
  return last;
}

}  // namespace

std::string InMemoryModel::label() const {
  return fmt::format("synthetic model {}, recipe {}, seed {}{} (random weights)", geometry, recipe, seed,
                     ngram_rows > 0 ? fmt::format(", {} n-gram rows a head", ngram_rows) : "");
}

CLI::Option* add_ngram_rows_option(CLI::App& command, std::int64_t& rows) {
  return command
      .add_option("--ngram-rows", rows, "Rows a head of the synthetic model's n-gram table (default: the geometry's)")
      ->transform(whole_number(2, std::uint64_t{1} << 32));
}

Result<artifact::SynthModel> describe_in_memory(const InMemoryModel& model) {
  artifact::SynthModel synth{LOCKSTEP_TRY(artifact::synth_geometry(model.geometry)),
                             LOCKSTEP_TRY(artifact::find_recipe(model.recipe)), model.seed};
  if (model.ngram_rows == 0) return synth;
  OrderedJson& text = synth.config.contains("text_config") ? synth.config["text_config"] : synth.config;
  if (!text.is_object()) return fail(ErrorKind::Invalid, "{}: 'text_config' is no object", model.geometry);
  text["ngram_vocab_size_base"] = model.ngram_rows;
  return synth;
}

Result<InMemoryModel> parse_in_memory(const std::string& text) {
  InMemoryModel model;
  model.geometry = text;
  std::string rest = text;
  std::optional<std::string> last = cut_last(rest);
  if (last && !is_recipe(*last)) {
    std::string before = rest;
    const std::optional<std::string> recipe = cut_last(before);
    std::uint64_t seed = 0;
    const auto [end, error] = std::from_chars(last->data(), last->data() + last->size(), seed);
    const bool number = error == std::errc() && end == last->data() + last->size() && !last->empty();
    if (!number || !recipe || !is_recipe(*recipe)) {
      if (std::ranges::find(artifact::synth_geometry_names(), text.substr(0, text.find(':'))) !=
          artifact::synth_geometry_names().end()) {
        return fail(ErrorKind::Usage, "--in-memory '{}' is not GEOMETRY[:RECIPE[:SEED]], as in mid:bare:1", text);
      }
      return model;  // the colons are the path's
    }
    model.seed = seed;
    last = recipe;
    rest = before;
  }
  if (last) {
    model.geometry = rest;
    model.recipe = *last;
  }
  return model;
}

Result<LoadedModel> make_in_memory(const EngineOptions& options) {
  InMemoryModel asked = LOCKSTEP_TRY(parse_in_memory(options.in_memory));
  asked.ngram_rows = options.ngram_rows;
  LOCKSTEP_TRY(memory_limit());
  const artifact::SynthModel model = LOCKSTEP_TRY(describe_in_memory(asked));
  LoadedModel loaded;
  loaded.texts = LOCKSTEP_TRY(find_demo_model());
  loaded.label = asked.label();
  complain(loaded.label);
  loaded.artifact = std::make_unique<artifact::Artifact>(
      LOCKSTEP_TRY(artifact::make_synthetic_on_demand(model, granted_threads(options.threads), cancel_flag(options))));
  return loaded;
}

}  // namespace lockstep::cli
