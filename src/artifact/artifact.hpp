// A model directory, opened and checked: geometry, views of all weights, inventory and identity.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "artifact/model_view.hpp"
#include "base/result.hpp"

namespace lockstep::artifact {

/// One tensor of the inventory, as the files name it.
struct TensorRecord {
  std::string name, file;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0, bytes = 0;  ///< byte range inside `file`
};

enum class Layout : std::uint8_t { Official, Pack };

struct Identity {
  std::string config_sha256;
  std::string runtime_sha256;    ///< of mtplx_runtime.json; empty when there is none
  std::string inventory_sha256;  ///< over lines "name dtype [d0, d1]\n" in ascending order of name (docs/artifact.md)
};

/// Makes the data of a matrix of this shape and precision, in `memory`; the same bytes every time.
using MatrixFill = std::function<MatrixView(const MatrixView& shape, std::vector<std::byte>& memory)>;

class Artifact {
 public:
  /// Opens a directory in either layout, checks everything that can be checked without reading weights, and fails on
  /// the first violation with file, tensor and reason. No weight is read, and none copied but transposed experts.
  static Result<Artifact> open(const std::filesystem::path& directory);
  /// The same without copying anything: shapes, precisions and names are there, but the experts of a layout that
  /// stores them transposed have no data until make_ready().
  static Result<Artifact> open_shapes(const std::filesystem::path& directory);
  /// Transposes what has to be, once; open() has done it. Of weights that are made on demand it makes the n-gram table.
  void make_ready();
  /// `view`, one of view()'s, with data: itself, or a copy of the view whose data is in `memory` where it has none:
  /// made on demand, or to be transposed by a make_ready() that has not been called.
  [[nodiscard]] MatrixView readable(const MatrixView& view, std::vector<std::byte>& memory) const;
  /// Bytes that make_ready() copies into memory.
  [[nodiscard]] std::uint64_t transposed_bytes() const;

  /// A model whose weights are already in memory. `owner` keeps alive what the view points to; `name` stands for the
  /// directory. There is no inventory; the identity is that of the name.
  static Artifact from_memory(ModelView view, std::shared_ptr<const void> owner, const std::string& name);
  /// The same for weights that are made when they are asked for, so that they need not be in memory twice: the matrices
  /// of `shapes` have no data.
  static Artifact on_demand(ModelView shapes, MatrixFill fill, const std::string& name);

  Artifact(Artifact&&) noexcept;
  Artifact& operator=(Artifact&&) noexcept;
  ~Artifact();

  [[nodiscard]] const std::filesystem::path& directory() const;
  /// Name of the file that has this tensor, without the directory; empty when none has.
  [[nodiscard]] std::string file_of(std::string_view tensor) const;
  [[nodiscard]] Layout layout() const;
  [[nodiscard]] const ModelConfig& config() const { return view().config; }
  [[nodiscard]] const ModelView& view() const;
  [[nodiscard]] const std::vector<TensorRecord>& inventory() const;
  [[nodiscard]] const std::vector<std::string>& ignored() const;   ///< e.g. the tensors of a vision tower
  [[nodiscard]] const std::vector<std::string>& warnings() const;  ///< e.g. stored hash constants differ from computed
  [[nodiscard]] const Identity& identity() const;

  /// Fails once a mapped file of the model was cut, written to or unreadable: what the views give may be wrong since,
  /// and what was computed from it means nothing. Costs an fstat() a file. Errors: Io, naming the file.
  [[nodiscard]] Status intact() const;
  /// intact(), as long as this artifact or the one that it is moved to lives.
  [[nodiscard]] std::function<Status()> watch() const;

  /// Takes the mapped files' pages out of this process: after weights were copied elsewhere. Views stay valid.
  void release_pages() const noexcept;

 private:
  struct State;
  explicit Artifact(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::artifact
