#include "artifact/pack_file.hpp"

#include <algorithm>

#include "artifact/affine_quantiser.hpp"
#include "numerics/bits.hpp"

namespace lockstep::artifact {
namespace {

constexpr std::size_t kBlockValues = std::size_t{8} << 20;

/// Rows [first, first + count) of one matrix, quantised into planes.
class RowBlock {
 public:
  RowBlock(const MatrixView& source, Precision precision) : source_(source), precision_(precision) {}

  /// False when a value is not finite.
  bool quantise(std::int64_t index, std::int64_t first, std::int64_t count, ThreadPool& pool) {
    const auto rows = static_cast<std::size_t>(count), cols = static_cast<std::size_t>(source_.cols);
    const std::size_t groups = cols / static_cast<std::size_t>(precision_.group);
    const std::size_t code_bytes = cols * static_cast<std::size_t>(precision_.bits) / 8;
    codes_.resize(rows * code_bytes);
    scales_.resize(rows * groups);
    biases_.resize(rows * groups);
    std::atomic<bool> finite{true};
    pool.parallel_for(rows, 1, [&](std::size_t begin, std::size_t end) {
      std::vector<float> values(cols);
      for (std::size_t row = begin; row < end; ++row) {
        read_row(source_, index, first + static_cast<std::int64_t>(row), values.data());
        if (!std::all_of(values.begin(), values.end(), [](float value) { return numerics::is_finite(value); })) {
          finite.store(false);
          return;
        }
        quantise_row(values, precision_,
                     {codes_.data() + row * code_bytes, scales_.data() + row * groups, biases_.data() + row * groups});
      }
    });
    return finite.load();
  }

  [[nodiscard]] std::span<const std::byte> codes() const { return codes_; }
  [[nodiscard]] std::span<const std::byte> scales() const { return std::as_bytes(std::span(scales_)); }
  [[nodiscard]] std::span<const std::byte> biases() const { return std::as_bytes(std::span(biases_)); }

 private:
  const MatrixView& source_;
  Precision precision_;
  std::vector<std::byte> codes_;
  std::vector<std::uint16_t> scales_, biases_;
};

class FileWriter {
 public:
  FileWriter(SafetensorsWriter writer, const PackWork& work) : writer_(std::move(writer)), work_(work) {}

  Status write(const PlannedFile& file) {
    for (const PlannedTensor& tensor : file.tensors) LOCKSTEP_TRY(writer_.append(tensor.entry.name, tensor.bytes));
    for (const PlannedMatrix& matrix : file.matrices) {
      if (matrix.parts.empty()) {
        std::vector<std::byte> transposed;
        LOCKSTEP_TRY(part(matrix, work_.source.readable(*matrix.source, transposed)));
      } else {
        for (const MatrixView* source : matrix.parts) LOCKSTEP_TRY(part(matrix, *source));
      }
    }
    return writer_.finish();
  }

 private:
  Status part(const PlannedMatrix& planned, const MatrixView& source) {
    const std::int64_t step =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(kBlockValues) / std::max<std::int64_t>(1, source.cols));
    for (std::int64_t index = 0; index < source.count; ++index) {
      for (std::int64_t row = 0; row < source.rows; row += step) {
        if (work_.cancel != nullptr && work_.cancel->load()) {
          return fail(ErrorKind::Cancelled, "interrupted; run the same command again to go on where it stopped");
        }
        const std::int64_t count = std::min(step, source.rows - row);
        LOCKSTEP_TRY(planned.precision ? affine(planned, source, index, row, count)
                                       : dense(planned, source, index, row, count));
        work_.progress(static_cast<std::uint64_t>(count * source.cols) * dtype_size(source.dtype));
      }
    }
    return {};
  }

  Status dense(const PlannedMatrix& planned, const MatrixView& source, std::int64_t index, std::int64_t row,
               std::int64_t count) {
    const std::size_t row_bytes = static_cast<std::size_t>(source.cols) * dtype_size(source.dtype);
    const std::byte* data = source.data + static_cast<std::size_t>(index) * source.matrix_stride;
    return writer_.append(planned.module + ".weight", {data + static_cast<std::size_t>(row) * row_bytes,
                                                       static_cast<std::size_t>(count) * row_bytes});
  }

  Status affine(const PlannedMatrix& planned, const MatrixView& source, std::int64_t index, std::int64_t row,
                std::int64_t count) {
    RowBlock block(source, *planned.precision);
    if (!block.quantise(index, row, count, work_.pool)) {
      return fail(ErrorKind::Invalid, "{}: tensor '{}': a weight in rows {} to {} is not finite",
                  work_.source.directory().string(), source.name, row, row + count - 1);
    }
    LOCKSTEP_TRY(writer_.append(planned.module + ".weight", block.codes()));
    LOCKSTEP_TRY(writer_.append(planned.module + ".scales", block.scales()));
    return writer_.append(planned.module + ".biases", block.biases());
  }

  SafetensorsWriter writer_;
  const PackWork& work_;
};

}  // namespace

Status write_pack_file(const PlannedFile& file, const std::filesystem::path& directory, const PackWork& work) {
  const std::vector<SafetensorsWriter::Entry> entries = file.entries();
  FileWriter writer(LOCKSTEP_TRY(SafetensorsWriter::create(directory / file.name, entries, file.metadata)), work);
  return writer.write(file);
}

}  // namespace lockstep::artifact
