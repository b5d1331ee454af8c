#include "cli/options.hpp"

#include <cstdlib>
#include <system_error>
#include <vector>

#include <CLI/App.hpp>

#include "base/file.hpp"
#include "base/thread_pool.hpp"
#include "cli/arguments.hpp"
#include "cli/terminal.hpp"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

bool is_model(const fs::path& directory) {
  std::error_code ignored;
  return fs::is_regular_file(directory / "config.json", ignored);
}

Result<fs::path> named_model(const fs::path& directory, std::string_view origin) {
  if (is_model(directory)) return directory;
  // First: a link that leads nowhere is no missing name.
  for (const fs::path& path : {directory, directory / "config.json"}) {
    if (const auto present = file_present(path); !present) {
      return fail(present.error().kind, "model (from {}): {}", origin, present.error().message);
    }
  }
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
      ->type_name("DIR")
      ->check(not_empty());
}

CLI::Option* add_threads_option(CLI::App& command, std::size_t& threads, const std::string& zero) {
  return command.add_option("--threads", threads, fmt::format("Threads; 0: {}", zero))
      ->transform(whole_number(0, ThreadPool::kMaxThreads))
      ->capture_default_str();
}

std::size_t granted_threads(std::size_t asked) {
  const std::size_t most = usable_processors();
  if (asked <= most) return asked;
  complain(fmt::format("--threads {0}: this process may use {1} processor{2}, so {1} thread{2} {3} used", asked, most,
                       most == 1 ? "" : "s", most == 1 ? "is" : "are"));
  return most;
}

Result<fs::path> find_model(const std::string& given) {
  if (!given.empty()) return named_model(given, "--model");
  const char* variable = std::getenv("LOCKSTEP_MODEL");
  if (variable != nullptr && *variable != '\0') return named_model(variable, "LOCKSTEP_MODEL");
  return find_demo_model();
}

Result<fs::path> find_demo_model() {
  std::string tried;
  for (const fs::path& place : demo_places()) {
    if (is_model(place)) return place;
    tried += (tried.empty() ? "" : ", ") + place.string();
  }
  return fail(ErrorKind::NotFound, "the demo model was not found in {}; name a model with --model DIR", tried);
}

}  // namespace lockstep::cli
