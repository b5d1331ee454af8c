#include "artifact/synth.hpp"

#include <algorithm>

#include "artifact/pack_config.hpp"
#include "artifact/pack_directory.hpp"
#include "artifact/pack_plan.hpp"
#include "artifact/synth_matrix.hpp"
#include "artifact/synth_tokenizer.hpp"
#include "artifact/synth_view.hpp"
#include "base/file.hpp"
#include "base/sha256.hpp"

namespace lockstep::artifact {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlockBytes = std::size_t{16} << 20;

Result<Json> plain_json(const OrderedJson& config) {
  return parse_json(config.dump(-1, ' ', false, OrderedJson::error_handler_t::replace), "geometry");
}

/// Writes the files of one model, a block at a time.
class Writer {
 public:
  Writer(const SynthModel& model, const SynthOptions& options, std::uint64_t total)
      : model_(model), options_(options), total_(total), pool_(options.threads) {}

  Status write(const PlannedFile& file, const fs::path& directory) {
    const std::vector<SafetensorsWriter::Entry> entries = file.entries();
    SafetensorsWriter writer = LOCKSTEP_TRY(SafetensorsWriter::create(directory / file.name, entries, file.metadata));
    for (const PlannedTensor& tensor : file.tensors) {
      LOCKSTEP_TRY(writer.append(tensor.entry.name, tensor.bytes));
      options_.progress(done_ += tensor.bytes.size(), total_);
    }
    for (const PlannedMatrix& planned : file.matrices) {
      const SynthMatrix matrix(planned.module, planned.source->count * planned.rows(), planned.source->cols,
                               planned.precision, model_.seed);
      for (std::size_t plane = 0; plane < matrix.planes().size(); ++plane) {
        LOCKSTEP_TRY(write_plane(matrix, plane, writer));
      }
    }
    return writer.finish();
  }

  void skip(const PlannedFile& file) { options_.progress(done_ += file.data_bytes(), total_); }

 private:
  Status write_plane(const SynthMatrix& matrix, std::size_t plane, SafetensorsWriter& writer) {
    const std::uint64_t bytes = matrix.planes()[plane].bytes;
    for (std::uint64_t at = 0; at < bytes; at += kBlockBytes) {
      LOCKSTEP_TRY(check_cancel(options_.cancel));
      block_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kBlockBytes, bytes - at)));
      matrix.fill(plane, at, block_, pool_);
      LOCKSTEP_TRY(writer.append(matrix.planes()[plane].tensor, block_));
      options_.progress(done_ += block_.size(), total_);
    }
    return {};
  }

  const SynthModel& model_;
  const SynthOptions& options_;
  std::uint64_t total_, done_ = 0;
  ThreadPool pool_;
  std::vector<std::byte> block_;
};

Json fingerprint(const SynthModel& model, const SynthOptions& options) {
  return {{"format", "synthetic 1"},
          {"config", sha256_hex(model.config.dump())},
          {"recipe", model.recipe.name},
          {"seed", model.seed},
          {"shard_bytes", options.shard_bytes}};
}

std::string runtime_text(const SynthModel& model) {
  const OrderedJson json{{"arch_id", "qwen4-exp-mtp"},
                         {"trunk_norm_layout", "plus_one"},
                         {"mtp_norm_layout", "plus_one_except_pre_fc"},
                         {"mtp_hidden_norm", "joint"},
                         {"synthetic", {{"recipe", model.recipe.name}, {"seed", model.seed}}}};
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Status write_texts(const SynthModel& model, const SynthOptions& options, const PackPlan& plan, std::int64_t vocabulary,
                   const fs::path& directory) {
  LOCKSTEP_TRY(write_file(directory / "config.json", pack_config_text(model.config, model.recipe, plan)));
  LOCKSTEP_TRY(write_file(directory / "model.safetensors.index.json", pack_index_text(plan)));
  LOCKSTEP_TRY(write_file(directory / "mtplx_runtime.json", runtime_text(model)));
  if (options.tokenizer.empty()) return {};
  return write_padded_tokenizer(options.tokenizer, vocabulary, directory);
}

/// Everything that can be wrong with the request, before a directory is made.
Result<PackPlan> make_plan(const SynthModel& model, const ModelConfig& config, const ModelView& view,
                           const SynthOptions& options) {
  if (!options.tokenizer.empty()) LOCKSTEP_TRY(check_tokenizer(options.tokenizer, config.vocab_size));
  return plan_pack(view, model.recipe, options.shard_bytes);
}

/// Everything that lies in the partial directory, then moves it into place.
Result<PackResult> write_files(const SynthModel& model, const SynthOptions& options, const PackPlan& plan,
                               std::int64_t vocabulary, PackDirectory& directory) {
  const auto not_cancelled = [&](std::uint64_t) { return check_cancel(options.cancel); };
  PackResult result;
  result.damaged = LOCKSTEP_TRY(directory.check_finished(not_cancelled));
  std::uint64_t missing = 0;
  for (const PlannedFile& file : plan.files) {
    result.bytes += file.data_bytes();
    if (!directory.has(file.name)) missing += file.data_bytes();
  }
  LOCKSTEP_TRY(directory.check_space(missing));
  Writer writer(model, options, result.bytes);
  for (const PlannedFile& file : plan.files) {
    ++result.files;
    if (directory.has(file.name)) {
      ++result.reused;
      writer.skip(file);
      continue;
    }
    LOCKSTEP_TRY(writer.write(file, directory.partial()));
    LOCKSTEP_TRY(directory.finish_file(file.name, not_cancelled));
  }
  LOCKSTEP_TRY(write_texts(model, options, plan, vocabulary, directory.partial()));
  const auto written = Artifact::open(directory.partial());
  if (!written) return with_context(written.error(), "the finished model does not open");
  LOCKSTEP_TRY(directory.publish());
  return result;
}

}  // namespace

Result<PackResult> write_synthetic(const SynthModel& model, const fs::path& destination, const SynthOptions& options) {
  const Json json = LOCKSTEP_TRY(plain_json(model.config));
  const ModelConfig config = LOCKSTEP_TRY(parse_config(json));
  const ModelView view = LOCKSTEP_TRY(synth_view(config, model.seed, matrix_shape));
  const PackPlan plan = LOCKSTEP_TRY(make_plan(model, config, view, options));
  PackDirectory directory =
      LOCKSTEP_TRY(PackDirectory::open(destination, fingerprint(model, options), plan.names(), options.force));
  Result<PackResult> result = write_files(model, options, plan, config.vocab_size, directory);
  // An interrupted run may go on later. After a failure, a full disk say, gigabytes of random numbers are only in the
  // way.
  const bool failed = !result && (result.error().kind == ErrorKind::Io || result.error().kind == ErrorKind::Limit);
  if (failed) directory.discard();
  if (!result) return directory.give_up(std::move(result).error());
  return result;
}

}  // namespace lockstep::artifact
