#include "artifact/pack_file.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "artifact/affine_quantiser.hpp"
#include "artifact/finite.hpp"
#include "artifact/pack_directory.hpp"
#include "numerics/bits.hpp"

namespace lockstep::artifact {
namespace {

constexpr std::size_t kBlockValues = std::size_t{8} << 20;

bool all_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return numerics::is_finite(value); });
}

/// Rows [first, first + count) of one matrix, quantised into planes.
class RowBlock {
 public:
  RowBlock(const MatrixView& source, Precision precision) : source_(source), precision_(precision) {}

  /// The first row with a value that is not finite, or with values for which the scale or bias of a group is not;
  /// nothing when all is well.
  std::optional<std::int64_t> quantise(std::int64_t index, std::int64_t first, std::int64_t count, ThreadPool& pool) {
    const auto rows = static_cast<std::size_t>(count), cols = static_cast<std::size_t>(source_.cols);
    const std::size_t groups = cols / static_cast<std::size_t>(precision_.group);
    const std::size_t code_bytes = cols * static_cast<std::size_t>(precision_.bits) / 8;
    codes_.resize(rows * code_bytes);
    scales_.resize(rows * groups);
    biases_.resize(rows * groups);
    std::atomic<std::size_t> bad{rows};
    pool.parallel_for(rows, 1, [&](std::size_t begin, std::size_t end) {
      std::vector<float> values(cols);
      for (std::size_t row = begin; row < end; ++row) {
        read_row(source_, index, first + static_cast<std::int64_t>(row), values.data());
        if (all_finite(values)) {
          quantise_row(
              values, precision_,
              {codes_.data() + row * code_bytes, scales_.data() + row * groups, biases_.data() + row * groups});
          if (usable_scales(row, groups) && finite_biases(row, groups)) continue;
        }
        std::size_t first_bad = bad.load();
        while (row < first_bad && !bad.compare_exchange_weak(first_bad, row)) {
        }
        return;
      }
    });
    if (bad.load() == rows) return std::nullopt;
    return first + static_cast<std::int64_t>(bad.load());
  }

  [[nodiscard]] std::span<const std::byte> codes() const { return codes_; }
  [[nodiscard]] std::span<const std::byte> scales() const { return std::as_bytes(std::span(scales_)); }
  [[nodiscard]] std::span<const std::byte> biases() const { return std::as_bytes(std::span(biases_)); }

 private:
  /// Weights that are too large make a scale of infinity or zero, or one that gives infinite weights.
  [[nodiscard]] bool usable_scales(std::size_t row, std::size_t groups) const {
    const float limit = scale_limit(precision_.bits);
    return all_of(scales_, row, groups, [&](float scale) { return std::fabs(scale) > 0 && std::fabs(scale) < limit; });
  }
  [[nodiscard]] bool finite_biases(std::size_t row, std::size_t groups) const {
    return all_of(biases_, row, groups, [](float bias) { return numerics::is_finite(bias); });
  }
  template <class Test>
  static bool all_of(const std::vector<std::uint16_t>& plane, std::size_t row, std::size_t groups, const Test& test) {
    return std::all_of(plane.begin() + static_cast<std::ptrdiff_t>(row * groups),
                       plane.begin() + static_cast<std::ptrdiff_t>((row + 1) * groups),
                       [&](std::uint16_t bits) { return test(numerics::bf16_to_float(bits)); });
  }

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
    for (const PlannedMatrix& planned : file.matrices) {
      const Status written = matrix(planned);
      LOCKSTEP_TRY(work_.source.intact());  // first: it explains what else may have gone wrong
      LOCKSTEP_TRY(written);
      work_.source.release_pages();  // read once: resident memory stays at the largest matrix
    }
    return writer_.finish();
  }

 private:
  Status matrix(const PlannedMatrix& planned) {
    if (planned.parts.empty()) {
      std::vector<std::byte> transposed;
      return part(planned, work_.source.readable(*planned.source, transposed));
    }
    for (const MatrixView* source : planned.parts) LOCKSTEP_TRY(part(planned, *source));
    return {};
  }

  Status part(const PlannedMatrix& planned, const MatrixView& source) {
    const std::int64_t step =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(kBlockValues) / std::max<std::int64_t>(1, source.cols));
    for (std::int64_t index = 0; index < source.count; ++index) {
      for (std::int64_t row = 0; row < source.rows; row += step) {
        LOCKSTEP_TRY(check_cancel(work_.cancel));
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
    if (const auto bad = block.quantise(index, row, count, work_.pool)) return refuse(source, index, *bad);
    LOCKSTEP_TRY(writer_.append(planned.module + ".weight", block.codes()));
    LOCKSTEP_TRY(writer_.append(planned.module + ".scales", block.scales()));
    return writer_.append(planned.module + ".biases", block.biases());
  }

  [[nodiscard]] Status refuse(const MatrixView& source, std::int64_t index, std::int64_t row) const {
    std::vector<float> values(static_cast<std::size_t>(source.cols));
    read_row(source, index, row, values.data());
    const std::string where = fmt::format("{}: tensor '{}': {}row {}", work_.source.directory().string(), source.name,
                                          source.count > 1 ? fmt::format("matrix {}, ", index) : "", row);
    if (!all_finite(values)) return fail(ErrorKind::Invalid, "{} has a weight that is not finite", where);
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    return fail(ErrorKind::Invalid,
                "{} has weights from {:g} to {:g}, too large or too far apart for the scale of a group", where, *low,
                *high);
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
