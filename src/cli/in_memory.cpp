#include "cli/in_memory.hpp"

#include <algorithm>
#include <charconv>

#include "artifact/synth.hpp"
#include "artifact/synth_geometry.hpp"
#include "base/memory.hpp"
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
  return fmt::format("synthetic model {}, recipe {}, seed {} (random weights)", geometry, recipe, seed);
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
  const InMemoryModel asked = LOCKSTEP_TRY(parse_in_memory(options.in_memory));
  LOCKSTEP_TRY(memory_limit());
  const artifact::SynthModel model{LOCKSTEP_TRY(artifact::synth_geometry(asked.geometry)),
                                   LOCKSTEP_TRY(artifact::find_recipe(asked.recipe)), asked.seed};
  LoadedModel loaded;
  loaded.texts = LOCKSTEP_TRY(find_demo_model());
  loaded.label = asked.label();
  complain(loaded.label);
  loaded.artifact = std::make_unique<artifact::Artifact>(
      LOCKSTEP_TRY(artifact::make_synthetic_on_demand(model, granted_threads(options.threads), cancel_flag(options))));
  return loaded;
}

}  // namespace lockstep::cli
