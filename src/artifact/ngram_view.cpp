#include "artifact/ngram_view.hpp"

#include <fmt/format.h>

#include <array>

#include "artifact/ngram_hash.hpp"

namespace lockstep::artifact {
namespace {

constexpr const char* kTable = "ngram";

/// Stored constants, or the computed ones when none are stored.
Result<NgramHash> read_hash(ModuleReader& reader, const ModelConfig& config, const std::string& prefix,
                            const NgramHash& computed, std::vector<std::string>& warnings) {
  const std::string multipliers = prefix + "layer_multipliers", sizes = prefix + "ngram_heads_vocab_sizes",
                    offsets = prefix + "ngram_heads_offsets";
  TensorSet& tensors = reader.tensors();
  if (!tensors.contains(multipliers) && !tensors.contains(sizes) && !tensors.contains(offsets)) return computed;
  NgramHash stored;
  stored.multipliers = LOCKSTEP_TRY(reader.integers(multipliers, config.ngram_size));
  stored.sizes = LOCKSTEP_TRY(reader.integers(sizes, config.ngram_heads()));
  stored.offsets = LOCKSTEP_TRY(reader.integers(offsets, config.ngram_heads()));
  const std::array<std::pair<const std::string*, bool>, 3> same{
      {{&multipliers, stored.multipliers == computed.multipliers},
       {&sizes, stored.sizes == computed.sizes},
       {&offsets, stored.offsets == computed.offsets}}};
  for (const auto& [name, equal] : same) {
    if (equal) continue;
    warnings.push_back(fmt::format(
        "{}: tensor '{}': the stored constants of the n-gram hash differ from those that the configuration gives; "
        "the stored are used, and a damaged file would show as nonsense in the text",
        tensors.file_of(*name), *name));
  }
  return stored;
}

/// The metadata of a side file, where present, must describe the tensors beside it.
Status check_metadata(const SafetensorsFile& file, const MatrixView& table) {
  const std::array<std::pair<const char*, std::int64_t>, 4> expected{
      {{"rows", table.rows}, {"dim", table.cols}, {"ngram_bits", table.bits}, {"ngram_group_size", table.group}}};
  for (const auto& [key, value] : expected) {
    const auto found = file.metadata().find(key);
    const bool group_of_dense = !table.quantised && std::string_view(key) == "ngram_group_size";
    if (found == file.metadata().end() || group_of_dense || found->second == std::to_string(value)) continue;
    return fail(ErrorKind::Invalid, "{}: metadata {} is '{}' but the tensors say {}", file.path().string(), key,
                found->second, value);
  }
  return {};
}

Status set_planes(ModuleReader& reader, const std::string& module, NgramTableView& out) {
  const MatrixView& table = *out.table;
  const TensorSet::Tensor weight = LOCKSTEP_TRY(reader.tensors().take(module + ".weight"));
  RowsFile& place = out.files.emplace_back();
  place.path = weight.file->path().string();
  place.codes = weight.info->offset;
  if (!table.quantised) return {};
  const TensorSet::Tensor scales = LOCKSTEP_TRY(reader.tensors().take(module + ".scales"));
  const TensorSet::Tensor biases = LOCKSTEP_TRY(reader.tensors().take(module + ".biases"));
  if (scales.file != weight.file || biases.file != weight.file) {
    return tensor_fault(scales, "codes, scales and biases of the n-gram table lie in different files");
  }
  place.scales = scales.info->offset;
  place.biases = biases.info->offset;
  return {};
}

Status read_shards(ModuleReader& reader, const ModelConfig& config, const std::string& module, NgramTableView& out) {
  if (out.rows % config.ngram_shards != 0) {
    return fail(ErrorKind::Invalid, "{}: {} rows of the n-gram table do not divide into split_ngram_parts {}",
                config.file, out.rows, config.ngram_shards);
  }
  out.rows_per_shard = out.rows / config.ngram_shards;
  for (std::int64_t i = 0; i < config.ngram_shards; ++i) {
    const std::string name = fmt::format("{}.shard_{}.weight", module, i);
    out.shards.push_back(LOCKSTEP_TRY(reader.dense(name, {out.rows_per_shard, out.dim})));
    if (out.shards.back().dtype != out.shards.front().dtype) {
      return tensor_fault(LOCKSTEP_TRY(reader.tensors().take(name)),
                          "shards of the n-gram table have different element types");
    }
    const TensorSet::Tensor tensor = LOCKSTEP_TRY(reader.tensors().take(name));
    out.files.push_back({tensor.file->path().string(), tensor.info->offset});
  }
  return {};
}

}  // namespace

Status read_ngram(ModuleReader& reader, const ModelConfig& config, const SideFiles& side, const std::string& prefix,
                  PleView& out, std::vector<std::string>& warnings) {
  const NgramHash computed = LOCKSTEP_TRY(make_ngram_hash(config));
  out.hash = LOCKSTEP_TRY(read_hash(reader, config, prefix, computed, warnings));
  NgramTableView& table = out.table;
  table.rows =
      static_cast<std::int64_t>(ngram_padded_rows(computed, static_cast<std::uint64_t>(config.ngram_vocab_multiple)));
  table.dim = config.ngram_row_dim();
  LOCKSTEP_TRY(check_ngram_hash(out.hash, config, static_cast<std::uint64_t>(table.rows)));
  TensorSet& tensors = reader.tensors();
  const std::string inside = prefix + "ngram_embedding";
  if (tensors.contains(std::string(kTable) + ".weight")) {
    table.table = LOCKSTEP_TRY(reader.side_matrix(kTable, table.rows, table.dim));
    LOCKSTEP_TRY(set_planes(reader, kTable, table));
    const SafetensorsFile* file = side.ngram ? tensors.file(*side.ngram) : nullptr;
    return file == nullptr ? Status() : check_metadata(*file, *table.table);
  }
  if (tensors.contains(inside + ".weight")) {
    table.table = LOCKSTEP_TRY(reader.matrix(inside, table.rows, table.dim));
    return set_planes(reader, inside, table);
  }
  return read_shards(reader, config, inside, table);
}

}  // namespace lockstep::artifact
