// What a pack will contain: every output tensor of every file, decided before a byte is written.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "artifact/artifact.hpp"
#include "artifact/recipe.hpp"
#include "artifact/safetensors.hpp"

namespace lockstep::artifact {

/// A module of the output: one dense tensor MODULE.weight, or three planes MODULE.{weight,scales,biases}.
struct PlannedMatrix {
  std::string module;
  const MatrixView* source = nullptr;
  std::vector<const MatrixView*> parts;  ///< row blocks of the n-gram table, when it comes in shards; else empty
  std::optional<Precision> precision;    ///< nothing: dense, copied

  [[nodiscard]] std::vector<SafetensorsWriter::Entry> entries() const;
  [[nodiscard]] std::int64_t rows() const;
};

/// A tensor small enough to be held: vectors and hash constants, ready to be written.
struct PlannedTensor {
  SafetensorsWriter::Entry entry;
  std::vector<std::byte> bytes;
};

struct PlannedFile {
  std::string name;
  std::map<std::string, std::string> metadata;
  std::vector<PlannedMatrix> matrices;
  std::vector<PlannedTensor> tensors;
  bool indexed = true;  ///< listed in model.safetensors.index.json

  [[nodiscard]] std::vector<SafetensorsWriter::Entry> entries() const;
  [[nodiscard]] std::uint64_t data_bytes() const;
  [[nodiscard]] std::uint64_t source_bytes() const;  ///< of matrices to read, for progress
};

struct PackPlan {
  std::vector<PlannedFile> files;

  [[nodiscard]] std::set<std::string> names() const;
};

/// Plans the trunk in shards of about `shard_bytes`, mtp.safetensors and ngram-table.safetensors. Pointers are into
/// `source`; weights are not read. Errors: Unsupported when the source is already quantised.
Result<PackPlan> plan_pack(const ModelView& source, const Recipe& recipe, std::uint64_t shard_bytes);

}  // namespace lockstep::artifact
