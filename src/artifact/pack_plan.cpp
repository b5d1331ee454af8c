#include "artifact/pack_plan.hpp"

#include <algorithm>
#include <cstring>

#include "numerics/bits.hpp"

namespace lockstep::artifact {
namespace {

using Entry = SafetensorsWriter::Entry;

std::uint64_t entries_bytes(const std::vector<Entry>& entries) {
  std::uint64_t bytes = 0;
  for (const Entry& entry : entries) bytes += *tensor_bytes(entry.dtype, entry.shape);
  return bytes;
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

/// Norms in bf16, A_log in F32, others in bf16 where that loses nothing.
PlannedTensor plan_vector(const VectorPart& part) {
  Vector values = *part.values;
  if (part.kind == VectorKind::InputNorm) {
    for (float& value : values) value -= 1.0F;
  }
  std::vector<std::uint16_t> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(),
                 [](float value) { return numerics::float_to_bf16(value); });
  bool exact = true;
  for (std::size_t i = 0; i < values.size(); ++i) exact = exact && numerics::bf16_to_float(rounded[i]) == values[i];
  const bool norm = part.kind == VectorKind::Norm || part.kind == VectorKind::InputNorm;
  if (norm || (exact && part.kind == VectorKind::Plain))
    return {{part.tensor, DType::BF16, part.shape}, bytes_of(rounded)};
  return {{part.tensor, DType::F32, part.shape}, bytes_of(values)};
}

PlannedTensor plan_constants(std::string name, const std::vector<std::uint64_t>& values) {
  return {{std::move(name), DType::I64, {static_cast<std::int64_t>(values.size())}}, bytes_of(values)};
}

/// The modules and tensors of one layer (or of what stands outside layers), kept together in a shard.
struct Block {
  std::string prefix;
  std::vector<PlannedMatrix> matrices;
  std::vector<PlannedTensor> tensors;
};

/// "language_model.model.layers.3." of a name inside that layer, else the whole name up to its last component.
std::string block_prefix(const std::string& name) {
  const std::size_t layers = name.find("layers.");
  if (layers == std::string::npos) return name.substr(0, name.rfind('.'));
  return name.substr(0, name.find('.', layers + 7) + 1);
}

class Planner {
 public:
  Planner(const ModelView& source, const Recipe& recipe, std::uint64_t shard_bytes)
      : view_(source), recipe_(recipe), shard_bytes_(shard_bytes) {}

  Result<PackPlan> plan() {
    const ModelParts parts = walk_model(view_);
    for (const MatrixPart& part : parts.matrices) LOCKSTEP_TRY(add_matrix(part));
    for (const VectorPart& part : parts.vectors) {
      (part.draft ? draft_.tensors : block(part.tensor).tensors).push_back(plan_vector(part));
    }
    LOCKSTEP_TRY(add_ngram());
    fill_shards();
    if (!draft_.matrices.empty()) plan_.files.push_back(std::move(draft_));
    if (!table_.matrices.empty()) plan_.files.push_back(std::move(table_));
    return std::move(plan_);
  }

 private:
  Block& block(const std::string& name) {
    std::string prefix = block_prefix(name);
    for (Block& known : blocks_) {
      if (known.prefix == prefix) return known;
    }
    return blocks_.emplace_back(Block{std::move(prefix), {}, {}});
  }

  Status add_matrix(const MatrixPart& part);
  Status add_ngram();
  void fill_shards();

  const ModelView& view_;
  const Recipe& recipe_;
  std::uint64_t shard_bytes_;
  std::vector<Block> blocks_;
  PlannedFile draft_{"mtp.safetensors", {{"format", "mlx"}}, {}, {}, false};
  PlannedFile table_{"ngram-table.safetensors", {}, {}, {}, false};
  PackPlan plan_;
};

Status refuse_quantised(const MatrixView& matrix) {
  if (!matrix.quantised) return {};
  return fail(ErrorKind::Unsupported,
              "already quantised (module '{}'): a pack is made from the BF16 release, so name that directory",
              matrix.name);
}

Status Planner::add_matrix(const MatrixPart& part) {
  LOCKSTEP_TRY(refuse_quantised(*part.matrix));
  PlannedMatrix planned{part.module, part.matrix, {}, precision_of(recipe_, part)};
  (part.draft ? draft_.matrices : block(part.module).matrices).push_back(std::move(planned));
  return {};
}

Status Planner::add_ngram() {
  for (std::size_t i = 0; i < view_.layers.size(); ++i) {
    if (!view_.layers[i].ple) continue;
    const PleView& ple = *view_.layers[i].ple;
    const std::string prefix = fmt::format("{}layers.{}.ple.ple_embedding.", kPackPrefix, i);
    std::vector<PlannedTensor>& tensors = block(prefix).tensors;
    tensors.push_back(plan_constants(prefix + "layer_multipliers", ple.hash.multipliers));
    tensors.push_back(plan_constants(prefix + "ngram_heads_vocab_sizes", ple.hash.sizes));
    tensors.push_back(plan_constants(prefix + "ngram_heads_offsets", ple.hash.offsets));
    PlannedMatrix table{"ngram", nullptr, {}, fit_group(recipe_.ngram, ple.table.dim)};
    if (ple.table.table) table.parts.push_back(&*ple.table.table);
    for (const MatrixView& shard : ple.table.shards) table.parts.push_back(&shard);
    table.source = table.parts.front();
    LOCKSTEP_TRY(refuse_quantised(*table.source));
    table_.metadata = {{"ngram_bits", std::to_string(table.precision ? table.precision->bits : 0)},
                       {"ngram_group_size", std::to_string(table.precision ? table.precision->group : 0)},
                       {"rows", std::to_string(ple.table.rows)},
                       {"dim", std::to_string(ple.table.dim)}};
    table_.matrices.push_back(std::move(table));
  }
  return {};
}

/// Modules in order, a new shard whenever the current one would grow beyond the limit.
void Planner::fill_shards() {
  std::vector<PlannedFile> shards;
  std::uint64_t filled = 0;
  const auto shard_for = [&](std::uint64_t bytes) -> PlannedFile& {
    if (shards.empty() || (filled > 0 && filled + bytes > shard_bytes_)) {
      shards.push_back({"", {{"format", "mlx"}}, {}, {}, true});
      filled = 0;
    }
    filled += bytes;
    return shards.back();
  };
  for (Block& block : blocks_) {
    for (PlannedMatrix& matrix : block.matrices) {
      shard_for(entries_bytes(matrix.entries())).matrices.push_back(std::move(matrix));
    }
    for (PlannedTensor& tensor : block.tensors) shard_for(tensor.bytes.size()).tensors.push_back(std::move(tensor));
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    plan_.files.push_back(std::move(shards[i]));
  }
}

}  // namespace

std::int64_t PlannedMatrix::rows() const {
  if (parts.empty()) return source->rows;
  std::int64_t total = 0;
  for (const MatrixView* part : parts) total += part->rows;
  return total;
}

std::vector<Entry> PlannedMatrix::entries() const {
  const auto shape = [&](std::int64_t last) {
    // Only routed experts are stacks, also when there is a single one.
    const bool stack = module.find(".switch_mlp.") != std::string::npos;
    return stack ? std::vector<std::int64_t>{source->count, rows(), last} : std::vector<std::int64_t>{rows(), last};
  };
  if (!precision) return {{module + ".weight", source->dtype, shape(source->cols)}};
  const std::int64_t words = source->cols * precision->bits / 32, groups = source->cols / precision->group;
  return {{module + ".weight", DType::U32, shape(words)},
          {module + ".scales", DType::BF16, shape(groups)},
          {module + ".biases", DType::BF16, shape(groups)}};
}

std::vector<Entry> PlannedFile::entries() const {
  std::vector<Entry> all;
  for (const PlannedMatrix& matrix : matrices) {
    for (Entry& entry : matrix.entries()) all.push_back(std::move(entry));
  }
  for (const PlannedTensor& tensor : tensors) all.push_back(tensor.entry);
  return all;
}

std::uint64_t PlannedFile::data_bytes() const {
  return entries_bytes(entries());
}

std::uint64_t PlannedFile::source_bytes() const {
  std::uint64_t bytes = 0;
  for (const PlannedMatrix& matrix : matrices) {
    const auto values = static_cast<std::uint64_t>(matrix.source->count * matrix.rows() * matrix.source->cols);
    bytes += values * dtype_size(matrix.source->dtype);
  }
  return bytes;
}

std::set<std::string> PackPlan::names() const {
  std::set<std::string> names;
  for (const PlannedFile& file : files) names.insert(file.name);
  return names;
}

Result<PackPlan> plan_pack(const ModelView& source, const Recipe& recipe, std::uint64_t shard_bytes) {
  return Planner(source, recipe, shard_bytes).plan();
}

}  // namespace lockstep::artifact
