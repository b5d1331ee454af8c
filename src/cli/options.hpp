// Options that several commands share.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lockstep::cli {

/// Adds `-m,--model DIR`, stored in `directory`, which must outlive the parse.
CLI::Option* add_model_option(CLI::App& command, std::string& directory);

/// Adds `--threads N`; `zero` says what 0, the default, stands for. `threads` must outlive the parse.
CLI::Option* add_threads_option(CLI::App& command, std::size_t& threads, const std::string& zero);

/// `asked` (0: the default of ThreadPool), but at most usable_processors(), with one warning line where that is less:
/// threads that wait for one another on too few processors are many times slower than fewer threads.
[[nodiscard]] std::size_t granted_threads(std::size_t asked);

/// The model directory: `given` (the value of --model) if not empty, else LOCKSTEP_MODEL, else the demo model, looked
/// for in ../share/lockstep/models/demo next to the executable, in the source tree, and in ./models/demo. A directory
/// counts as a model when it has a config.json. Errors: NotFound, naming every place that was tried.
Result<std::filesystem::path> find_model(const std::string& given);
/// The demo model alone.
Result<std::filesystem::path> find_demo_model();

}  // namespace lockstep::cli
