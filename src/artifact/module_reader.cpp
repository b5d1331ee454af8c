#include "artifact/module_reader.hpp"

#include <algorithm>
#include <cstring>

#include "numerics/bits.hpp"

namespace lockstep::artifact {
namespace {

template <class T, class Convert>
void widen_as(const std::byte* data, std::size_t count, float* out, Convert convert) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, data + i * sizeof(T), sizeof(T));
    out[i] = convert(value);
  }
}

std::string module_of(std::string_view weight) {
  return std::string(weight.substr(0, weight.rfind('.')));
}

Shape with_last(Shape shape, std::int64_t last) {
  shape.back() = last;
  return shape;
}

}  // namespace

void widen(DType type, const std::byte* data, std::size_t count, float* out) {
  switch (type) {
    case DType::F32:
      std::memcpy(out, data, count * sizeof(float));
      break;
    case DType::F16:
      widen_as<std::uint16_t>(data, count, out, [](std::uint16_t v) { return numerics::half_to_float(v); });
      break;
    default:
      widen_as<std::uint16_t>(data, count, out, [](std::uint16_t v) { return numerics::bf16_to_float(v); });
      break;
  }
}

Result<Vector> ModuleReader::vector(const std::string& name, std::initializer_list<Shape> shapes, Centre centre) {
  const TensorSet::Tensor tensor = LOCKSTEP_TRY(tensors_.take(name));
  const TensorInfo& info = *tensor.info;
  if (std::find(shapes.begin(), shapes.end(), info.shape) == shapes.end()) {
    return tensor_fault(tensor, "shape {}, expected {}", shape_text(info.shape), shape_text(*shapes.begin()));
  }
  if (!is_float(info.dtype))
    return tensor_fault(tensor, "element type {} is not F32, F16 or BF16", dtype_name(info.dtype));
  Vector values(info.bytes / dtype_size(info.dtype));
  widen(info.dtype, tensor.data().data(), values.size(), values.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!numerics::is_finite(values[i])) return tensor_fault(tensor, "element {} is not finite", i);
    if (centre == Centre::OnePlus) values[i] += 1.0F;
  }
  return values;
}

Result<std::vector<std::uint64_t>> ModuleReader::integers(const std::string& name, std::int64_t count) {
  const TensorSet::Tensor tensor = LOCKSTEP_TRY(tensors_.take(name));
  if (tensor.info->dtype != DType::I64 || tensor.info->shape != Shape{count}) {
    return tensor_fault(tensor, "{} {}, expected I64 [{}]", dtype_name(tensor.info->dtype),
                        shape_text(tensor.info->shape), count);
  }
  std::vector<std::uint64_t> values(static_cast<std::size_t>(count));
  std::memcpy(values.data(), tensor.data().data(), tensor.info->bytes);
  for (const std::uint64_t value : values) {
    if (value > static_cast<std::uint64_t>(INT64_MAX)) return tensor_fault(tensor, "has a negative value");
  }
  return values;
}

Result<MatrixView> ModuleReader::matrix(const std::string& module, std::int64_t rows, std::int64_t cols) {
  return read_listed(module, {rows, cols});
}

Result<MatrixView> ModuleReader::stack(const std::string& module, std::int64_t count, std::int64_t rows,
                                       std::int64_t cols) {
  return read_listed(module, {count, rows, cols});
}

Result<MatrixView> ModuleReader::side_matrix(const std::string& module, std::int64_t rows, std::int64_t cols) {
  return read(module, {rows, cols});
}

Result<MatrixView> ModuleReader::dense(const std::string& name, const Shape& shape) {
  MatrixView view = LOCKSTEP_TRY(read_dense(name, shape));
  LOCKSTEP_TRY(check_listed(module_of(name), view));
  return view;
}

Result<MatrixView> ModuleReader::read_listed(const std::string& module, const Shape& shape) {
  MatrixView view = LOCKSTEP_TRY(read(module, shape));
  LOCKSTEP_TRY(check_listed(module, view));
  return view;
}

Result<MatrixView> ModuleReader::read(const std::string& module, const Shape& shape) {
  if (tensors_.contains(module + ".scales")) return read_affine(module, shape);
  return read_dense(module + ".weight", shape);
}

Status ModuleReader::check_listed(const std::string& module, const MatrixView& view) {
  const auto real = view.quantised ? std::optional(Precision{view.bits, view.group}) : std::nullopt;
  return quantization_.check(module, real, unlisted_);
}

Result<MatrixView> ModuleReader::read_dense(const std::string& name, const Shape& shape) {
  const TensorSet::Tensor tensor = LOCKSTEP_TRY(tensors_.take(name));
  const TensorInfo& info = *tensor.info;
  if (info.shape != shape)
    return tensor_fault(tensor, "shape {}, expected {}", shape_text(info.shape), shape_text(shape));
  if (!is_float(info.dtype)) {
    return tensor_fault(tensor, "element type {} is not supported here (F32, F16 or BF16{})", dtype_name(info.dtype),
                        info.dtype == DType::F8E4M3 ? "; use the BF16 release or a pack" : "");
  }
  MatrixView view;
  view.name = name;
  view.count = shape.size() == 3 ? shape.front() : 1;
  view.rows = shape[shape.size() - 2];
  view.cols = shape.back();
  view.dtype = info.dtype;
  view.data = tensor.data().data();
  view.matrix_stride = static_cast<std::size_t>(view.rows * view.cols) * dtype_size(info.dtype);
  return view;
}

Result<MatrixView> ModuleReader::read_affine(const std::string& module, const Shape& shape) {
  const TensorSet::Tensor codes = LOCKSTEP_TRY(tensors_.take(module + ".weight"));
  const TensorSet::Tensor scales = LOCKSTEP_TRY(tensors_.take(module + ".scales"));
  const TensorSet::Tensor biases = LOCKSTEP_TRY(tensors_.take(module + ".biases"));
  const std::int64_t cols = shape.back();
  if (codes.info->dtype != DType::U32)
    return tensor_fault(codes, "codes of type {}, expected U32", dtype_name(codes.info->dtype));
  if (!is_float(scales.info->dtype))
    return tensor_fault(scales, "element type {} is no float", dtype_name(scales.info->dtype));
  const Shape& code_shape = codes.info->shape;
  const std::int64_t words = code_shape.size() == shape.size() ? code_shape.back() : 0;
  if (code_shape != with_last(shape, words) || words > cols || words * 32 % cols != 0 ||
      !supported_bits(words * 32 / cols)) {
    return tensor_fault(codes, "shape {} does not hold {} at 2, 3, 4, 5, 6 or 8 bits", shape_text(code_shape),
                        shape_text(shape));
  }
  const Shape& scale_shape = scales.info->shape;
  const std::int64_t groups = scale_shape.size() == shape.size() ? scale_shape.back() : 0;
  if (scale_shape != with_last(shape, groups) || groups <= 0 || cols % groups != 0 || !supported_group(cols / groups)) {
    return tensor_fault(scales, "shape {} does not divide {} in groups of 32, 64 or 128", shape_text(scale_shape),
                        shape_text(shape));
  }
  if (biases.info->shape != scale_shape || biases.info->dtype != scales.info->dtype) {
    return tensor_fault(biases, "{} {} differs from the scales", dtype_name(biases.info->dtype),
                        shape_text(biases.info->shape));
  }
  MatrixView view;
  view.name = module;
  view.count = shape.size() == 3 ? shape.front() : 1;
  view.rows = shape[shape.size() - 2];
  view.cols = cols;
  view.quantised = true;
  view.bits = static_cast<int>(words * 32 / cols);
  view.group = static_cast<int>(cols / groups);
  view.codes = codes.data().data();
  view.scales = scales.data().data();
  view.biases = biases.data().data();
  view.scale_dtype = scales.info->dtype;
  view.matrix_stride = static_cast<std::size_t>(view.rows) * view.code_row_bytes();
  return view;
}

}  // namespace lockstep::artifact
