#include "artifact/summary.hpp"

#include <algorithm>
#include <set>

#include "artifact/model_walk.hpp"

namespace lockstep::artifact {
namespace {

std::string precision_text(const MatrixView& matrix) {
  return matrix.quantised ? fmt::format("{}-bit g{}", matrix.bits, matrix.group) : dtype_name(matrix.dtype);
}

void note_precision(FamilySummary& family, const MatrixView& matrix) {
  std::string text = precision_text(matrix);
  auto& list = family.precision;
  if (std::find(list.begin(), list.end(), text) == list.end()) list.push_back(std::move(text));
}

std::uint64_t touched_bytes(const MatrixPart& part, const ModelConfig& config) {
  const std::uint64_t bytes = matrix_bytes(*part.matrix);
  if (part.family == Family::Embedding) return bytes / static_cast<std::uint64_t>(part.matrix->rows);
  if (part.family != Family::Experts) return bytes;
  return bytes / static_cast<std::uint64_t>(config.experts) * static_cast<std::uint64_t>(config.experts_per_token);
}

void add_matrices(const ModelParts& parts, const ModelConfig& config, bool draft, std::vector<FamilySummary>& out) {
  for (std::size_t i = 0; i < kFamilies; ++i) {
    const auto kind = static_cast<Family>(i);
    FamilySummary family;
    family.draft = draft;
    family.name = std::string(draft && kind != Family::DraftInput ? "draft: " : "") + family_name(kind);
    for (const MatrixPart& part : parts.matrices) {
      if (part.family != kind || part.draft != draft) continue;
      const MatrixView& matrix = *part.matrix;
      note_precision(family, matrix);
      family.parameters += static_cast<std::uint64_t>(matrix.count * matrix.rows * matrix.cols);
      family.bytes += matrix_bytes(matrix);
      family.touched += touched_bytes(part, config);
    }
    if (family.parameters > 0) out.push_back(std::move(family));
  }
}

void add_tables(const ModelView& view, std::vector<FamilySummary>& out) {
  for (const LayerView& layer : view.layers) {
    if (!layer.ple) continue;
    const NgramTableView& table = layer.ple->table;
    FamilySummary family;
    family.name = "n-gram table";
    note_precision(family, table.table ? *table.table : table.shards.front());
    family.parameters = static_cast<std::uint64_t>(table.rows * table.dim);
    family.bytes = table_bytes(table);
    family.touched =
        family.bytes / static_cast<std::uint64_t>(table.rows) * static_cast<std::uint64_t>(view.config.ngram_heads());
    out.push_back(std::move(family));
  }
}

/// Norms, convolutions, constants: all tensors that are neither matrix nor table.
FamilySummary vector_family(const Artifact& artifact, const ModelParts& parts, std::uint64_t matrices) {
  FamilySummary family;
  family.name = "vectors";
  const std::set<std::string> ignored(artifact.ignored().begin(), artifact.ignored().end());
  for (const TensorRecord& record : artifact.inventory()) {
    if (!ignored.contains(record.name)) family.bytes += record.bytes;
  }
  family.bytes -= matrices;
  family.touched = family.bytes;
  for (const VectorPart& part : parts.vectors) family.parameters += part.values->size();
  return family;
}

}  // namespace

Summary summarise(const Artifact& artifact) {
  const ModelView& view = artifact.view();
  const ModelParts parts = walk_model(view);
  Summary summary;
  auto& families = summary.families;
  add_matrices(parts, view.config, false, families);
  add_tables(view, families);
  add_matrices(parts, view.config, true, families);
  std::uint64_t matrices = 0;
  for (const FamilySummary& family : families) matrices += family.bytes;
  families.push_back(vector_family(artifact, parts, matrices));
  for (const FamilySummary& family : families) {
    summary.parameters += family.parameters;
    summary.bytes += family.bytes;
    (family.draft ? summary.drafted_token_bytes : summary.decoded_token_bytes) += family.touched;
  }
  if (view.draft) summary.drafted_token_bytes += matrix_bytes(view.head);
  return summary;
}

}  // namespace lockstep::artifact
