#include "cli/options.hpp"

#include <cstdlib>
#include <system_error>
#include <vector>

#include <CLI/App.hpp>

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

bool is_model(const fs::path& directory) {
  std::error_code ignored;
  return fs::is_regular_file(directory / "config.json", ignored);
}

Result<fs::path> named_model(const fs::path& directory, std::string_view origin) {
  if (is_model(directory)) return directory;
  std::error_code ignored;
  const char* reason = fs::is_directory(directory, ignored) ? "has no config.json" : "is not a directory";
  return fail(ErrorKind::NotFound, "model '{}' (from {}) {}; name a directory with config.json and the weights",
              directory.string(), origin, reason);
}

std::vector<fs::path> demo_places() {
  std::vector<fs::path> places;
  std::error_code failed;
  const fs::path executable = fs::read_symlink("/proc/self/exe", failed);
  if (!failed) places.push_back((executable.parent_path() / "../share/lockstep/models/demo").lexically_normal());
  places.emplace_back(LOCKSTEP_SOURCE_MODELS "/demo");
  places.emplace_back("models/demo");
  return places;
}

}  // namespace

CLI::Option* add_model_option(CLI::App& command, std::string& directory) {
  return command.add_option("-m,--model", directory, "Model directory (default: $LOCKSTEP_MODEL, else the demo model)")
      ->type_name("DIR");
}

Result<fs::path> find_model(const std::string& given) {
  if (!given.empty()) return named_model(given, "--model");
  const char* variable = std::getenv("LOCKSTEP_MODEL");
  if (variable != nullptr && *variable != '\0') return named_model(variable, "LOCKSTEP_MODEL");
  std::string tried;
  for (const fs::path& place : demo_places()) {
    if (is_model(place)) return place;
    tried += (tried.empty() ? "" : ", ") + place.string();
  }
  return fail(ErrorKind::NotFound, "the demo model was not found in {}; name a model with --model DIR", tried);
}

}  // namespace lockstep::cli
