#include "artifact/pack.hpp"

#include <algorithm>
#include <set>

#include "artifact/pack_config.hpp"
#include "artifact/pack_directory.hpp"
#include "artifact/pack_file.hpp"

namespace lockstep::artifact {
namespace {

namespace fs = std::filesystem;

/// Changes whenever the output could: the source's files (names, sizes, times), its config and inventory, the recipe.
Json fingerprint(const Artifact& source, const PackOptions& options) {
  std::set<std::string> names;
  for (const TensorRecord& record : source.inventory()) names.insert(record.file);
  Json files = Json::object();
  for (const std::string& name : names) {
    std::error_code error;
    const fs::path path = source.directory() / name;
    const std::uint64_t size = fs::file_size(path, error);
    const auto time = fs::last_write_time(path, error).time_since_epoch().count();
    files[name] = {size, static_cast<std::int64_t>(time)};
  }
  const Json recipe = *parse_json(recipe_json(options.recipe).dump(), "recipe");
  return {{"format", 1},
          {"config", source.identity().config_sha256},
          {"inventory", source.identity().inventory_sha256},
          {"runtime", source.identity().runtime_sha256},
          {"recipe", recipe},
          {"shard_bytes", options.shard_bytes},
          {"files", files}};
}

/// Writing into the source, or over it, would destroy what is being read.
Status check_apart(const fs::path& source, const fs::path& destination) {
  std::error_code error;
  const fs::path from = fs::weakly_canonical(source, error), to = fs::weakly_canonical(destination, error);
  const auto [end, rest] = std::mismatch(to.begin(), to.end(), from.begin(), from.end());
  if (end != to.end()) return {};
  return fail(ErrorKind::Usage, "{} holds the source {}", destination.string(), source.string());
}

Status write_texts(const Artifact& source, const PackOptions& options, const PackPlan& plan,
                   const fs::path& directory) {
  const std::string config = LOCKSTEP_TRY(pack_config_text(source, options.recipe, plan));
  LOCKSTEP_TRY(write_file(directory / "config.json", config));
  LOCKSTEP_TRY(write_file(directory / "model.safetensors.index.json", pack_index_text(plan)));
  LOCKSTEP_TRY(write_file(directory / "mtplx_runtime.json", pack_runtime_text(source, options.recipe)));
  for (const std::string& name : LOCKSTEP_TRY(copied_files(source.directory()))) {
    const std::string text = LOCKSTEP_TRY(read_file(source.directory() / name, std::uint64_t{1} << 30));
    if (name == "tokenizer.json") {  // a pack that cannot read its own text is of no use
      LOCKSTEP_TRY(parse_json(text, (source.directory() / name).string(), {.max_bytes = std::size_t{256} << 20}));
    }
    LOCKSTEP_TRY(write_file(directory / name, text));
  }
  return {};
}

Result<PackPlan> make_plan(const Artifact& source, const PackOptions& options) {
  Result<PackPlan> plan = plan_pack(source.view(), options.recipe, options.shard_bytes);
  if (!plan) return with_context(plan.error(), source.directory().string());
  return plan;
}

/// Everything that lies in the partial directory, then moves it into place.
Result<PackResult> write_files(const Artifact& source, const PackPlan& plan, const PackOptions& options,
                               PackDirectory& directory) {
  const auto not_cancelled = [&](std::uint64_t) { return check_cancel(options.cancel); };
  PackResult result;
  const std::uint64_t finished = directory.finished_bytes();
  std::uint64_t checked = 0;
  result.damaged = LOCKSTEP_TRY(directory.check_finished([&](std::uint64_t bytes) {
    options.checking(checked += bytes, finished);
    return check_cancel(options.cancel);
  }));
  std::uint64_t total = 0, done = 0, missing_bytes = 0;
  for (const PlannedFile& file : plan.files) {
    result.bytes += file.data_bytes();
    if (directory.has(file.name)) continue;
    total += file.source_bytes();
    missing_bytes += file.data_bytes();
  }
  LOCKSTEP_TRY(directory.check_space(missing_bytes));
  ThreadPool pool(options.threads);
  const auto advance = [&](std::uint64_t bytes) { options.progress(done += bytes, total); };
  for (const PlannedFile& file : plan.files) {
    ++result.files;
    if (directory.has(file.name)) {
      ++result.reused;
      continue;
    }
    LOCKSTEP_TRY(write_pack_file(file, directory.partial(), {pool, source, advance, options.cancel}));
    LOCKSTEP_TRY(directory.finish_file(file.name, not_cancelled));
  }
  LOCKSTEP_TRY(write_texts(source, options, plan, directory.partial()));
  const auto written = Artifact::open(directory.partial());
  if (!written) return with_context(written.error(), "the finished pack does not open");
  LOCKSTEP_TRY(source.intact());  // what was written may have been read from a file that changed
  LOCKSTEP_TRY(directory.publish());
  return result;
}

/// The directory that a run goes on in, when the source can be packed at all.
Result<PackResult> pack(const Artifact& source, const fs::path& destination, const PackOptions& options) {
  const PackPlan plan = LOCKSTEP_TRY(make_plan(source, options));
  PackDirectory directory =
      LOCKSTEP_TRY(PackDirectory::open(destination, fingerprint(source, options), plan.names(), options.force));
  Result<PackResult> result = write_files(source, plan, options, directory);
  if (!result) return directory.give_up(std::move(result).error());
  return result;
}

}  // namespace

Result<PackResult> write_pack(const fs::path& source_path, const fs::path& destination, const PackOptions& options) {
  LOCKSTEP_TRY(check_apart(source_path, destination));
  const Result<Artifact> source = Artifact::open_shapes(source_path);
  if (!source) return tl::unexpected(with_partial(source.error(), destination));
  Result<PackResult> result = pack(*source, destination, options);
  if (!result) return tl::unexpected(with_partial(std::move(result).error(), destination));
  return result;
}

}  // namespace lockstep::artifact
