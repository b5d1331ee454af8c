// Turns tensors into checked pieces of the model: vectors widened to f32, dense and affine matrices as views.
#pragma once

#include <deque>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "artifact/model_view.hpp"
#include "artifact/quantization.hpp"
#include "artifact/tensor_set.hpp"

namespace lockstep::artifact {

using Shape = std::vector<std::int64_t>;

/// Where a vector's values come from: as stored, or stored as w with the multiplier 1 + w.
enum class Centre : std::uint8_t { AsStored, OnePlus };

class ModuleReader {
 public:
  ModuleReader(TensorSet& tensors, const QuantizationConfig& quantization)
      : tensors_(tensors), quantization_(quantization) {}

  [[nodiscard]] TensorSet& tensors() { return tensors_; }

  /// A float tensor of one of `shapes` as f32. Errors: NotFound, Invalid (shape, element type, a value that is not
  /// finite).
  Result<Vector> vector(const std::string& name, std::initializer_list<Shape> shapes, Centre centre);

  /// A non-negative I64 tensor of `count` elements.
  Result<std::vector<std::uint64_t>> integers(const std::string& name, std::int64_t count);

  /// `module`.weight [rows, cols], dense or affine: affine when `module`.scales exists.
  Result<MatrixView> matrix(const std::string& module, std::int64_t rows, std::int64_t cols);
  /// `module`.weight [count, rows, cols], dense or affine.
  Result<MatrixView> stack(const std::string& module, std::int64_t count, std::int64_t rows, std::int64_t cols);
  /// Like matrix(), for a side file that config.json's quantization does not cover.
  Result<MatrixView> side_matrix(const std::string& module, std::int64_t rows, std::int64_t cols);
  /// A dense tensor under exactly this name.
  Result<MatrixView> dense(const std::string& name, const Shape& shape);

  /// Quantised modules that differ from the default precision of config.json without an entry of their own.
  [[nodiscard]] const std::vector<std::string>& unlisted() const { return unlisted_; }

 private:
  Result<MatrixView> read(const std::string& module, const Shape& shape);
  Result<MatrixView> read_listed(const std::string& module, const Shape& shape);
  Result<MatrixView> read_dense(const std::string& name, const Shape& shape);
  Result<MatrixView> read_affine(const std::string& module, const Shape& shape);
  Status check_listed(const std::string& module, const MatrixView& view);

  TensorSet& tensors_;
  const QuantizationConfig& quantization_;
  std::vector<std::string> unlisted_;
};

/// A failure that names file and tensor.
template <class... Args>
[[nodiscard]] tl::unexpected<Error> tensor_fault(const TensorSet::Tensor& tensor, fmt::format_string<Args...> format,
                                                 Args&&... args) {
  return fail(ErrorKind::Invalid, "{}: tensor '{}': {}", tensor.file->path().string(), tensor.info->name,
              fmt::format(format, std::forward<Args>(args)...));
}

/// Widens `count` elements of a float type. `data` may be unaligned.
void widen(DType type, const std::byte* data, std::size_t count, float* out);

}  // namespace lockstep::artifact
