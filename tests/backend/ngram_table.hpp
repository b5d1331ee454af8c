// Random n-gram tables in files, with the view that the artifact layer would make of them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/ngram/ngram_store.hpp"
#include "support/scratch.hpp"

namespace lockstep::backend {

struct TableShape {
  std::string name;
  std::int64_t rows = 0, dim = 0;
  int bits = 0;  ///< 0: dense
  int group = 32;
  artifact::DType dtype = artifact::DType::BF16;  ///< of dense elements or of scales
  std::int64_t shards = 0;                        ///< dense only; 0: one matrix
};

/// A table of which each plane starts at an odd offset of its file. The view's maps are the bytes in memory.
class RandomTable {
 public:
  RandomTable(const TableShape& shape, unsigned seed) : shape_(shape) {
    std::mt19937 random(seed);
    view_.rows = shape.rows;
    view_.dim = shape.dim;
    const std::int64_t parts = std::max<std::int64_t>(1, shape.shards);
    view_.rows_per_shard = shape.shards > 0 ? shape.rows / shape.shards : 0;
    for (std::int64_t i = 0; i < parts; ++i) add_part(random, shape.rows / parts, i);
  }

  [[nodiscard]] const artifact::NgramTableView& view() const { return view_; }
  artifact::NgramTableView& view() { return view_; }
  [[nodiscard]] const std::string& file(std::size_t i = 0) const { return view_.files.at(i).path; }
  /// Cache bytes that hold `rows` rows and not one more.
  [[nodiscard]] std::uint64_t cache_for(std::uint64_t rows) const;

 private:
  void add_part(std::mt19937& random, std::int64_t rows, std::int64_t index) {
    artifact::MatrixView matrix;
    matrix.name = "ngram";
    matrix.rows = rows;
    matrix.cols = shape_.dim;
    matrix.quantised = shape_.bits != 0;
    std::size_t planes[3] = {0, 0, 0};
    if (matrix.quantised) {
      matrix.bits = shape_.bits;
      matrix.group = shape_.group;
      matrix.scale_dtype = shape_.dtype;
      planes[0] = matrix.code_row_bytes();
      planes[1] = planes[2] = matrix.scale_row_bytes();
    } else {
      matrix.dtype = shape_.dtype;
      planes[0] = static_cast<std::size_t>(shape_.dim) * artifact::dtype_size(shape_.dtype);
    }
    auto bytes = std::make_shared<std::string>();
    std::uint64_t starts[3] = {0, 0, 0};
    for (const int plane : {2, 0, 1}) {
      if (planes[plane] == 0) continue;
      bytes->resize(bytes->size() + 1 + random() % 5000);
      starts[plane] = bytes->size();
      fill(random, *bytes, planes[plane] * static_cast<std::size_t>(rows), plane != 0 || shape_.bits == 0);
    }
    const auto at = [&](int plane) { return reinterpret_cast<const std::byte*>(bytes->data()) + starts[plane]; };
    if (matrix.quantised) {
      matrix.codes = at(0);
      matrix.scales = at(1);
      matrix.biases = at(2);
    } else {
      matrix.data = at(0);
      matrix.matrix_stride = planes[0] * static_cast<std::size_t>(rows);
    }
    const std::filesystem::path path = scratch_ / (std::to_string(index) + ".bin");
    std::ofstream(path, std::ios::binary).write(bytes->data(), static_cast<std::streamsize>(bytes->size()));
    view_.files.push_back({path.string(), starts[0], starts[1], starts[2]});
    bytes_.push_back(bytes);
    if (shape_.shards > 0) {
      view_.shards.push_back(matrix);
    } else {
      view_.table = matrix;
    }
  }

  /// Random bytes; of floats only the exponent's top bit is kept clear, so that all are finite.
  void fill(std::mt19937& random, std::string& bytes, std::size_t count, bool floats) const {
    const std::size_t start = bytes.size();
    bytes.resize(start + count);
    for (std::size_t i = 0; i < count; ++i) bytes[start + i] = static_cast<char>(random());
    if (!floats) return;
    const std::size_t size = artifact::dtype_size(shape_.dtype);
    for (std::size_t i = size - 1; i < count; i += size) bytes[start + i] = static_cast<char>(bytes[start + i] & 0xbf);
  }

  TableShape shape_;
  lockstep::test::ScratchDirectory scratch_;
  artifact::NgramTableView view_;
  std::vector<std::shared_ptr<std::string>> bytes_;
};

inline const kernels::Kernels& any_kernels() {
  return *kernels::available_kernels().front();
}

inline std::unique_ptr<NgramStore> open_or_throw(const RandomTable& table, const NgramOptions& options) {
  auto store = open_ngram_store(table.view(), any_kernels(), options);
  if (!store) throw std::runtime_error(store.error().message);
  return std::move(*store);
}

inline NgramOptions streamed(std::uint64_t cache_bytes, bool force_pread, bool direct = true) {
  NgramOptions options;
  options.mode = NgramMode::Streamed;
  options.cache_bytes = cache_bytes;
  options.force_pread = force_pread;
  options.direct = direct;
  return options;
}

inline std::vector<std::int64_t> random_rows(std::mt19937& random, std::size_t count, std::int64_t rows) {
  std::vector<std::int64_t> ids(count);
  for (std::int64_t& id : ids) id = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(rows));
  return ids;
}

/// The rows as the store hands them out. The test fails, and the result is empty, on an error.
inline std::vector<float> gathered(NgramStore& store, const std::vector<std::int64_t>& ids, std::int64_t dim) {
  std::vector<float> out(ids.size() * static_cast<std::size_t>(dim), -1.0F);
  const Status status = store.gather(ids, out.data());
  EXPECT_TRUE(status) << status.error().message;
  return status ? out : std::vector<float>();
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline std::uint64_t RandomTable::cache_for(std::uint64_t rows) const {
  // What a row costs is what the smallest cache that is accepted has.
  const auto too_small = open_ngram_store(view_, any_kernels(), streamed(1, true));
  if (too_small) throw std::runtime_error("a cache of one byte was accepted");
  const std::string& message = too_small.error().message;
  return rows * std::stoull(message.substr(message.find(": ") + 2));
}

}  // namespace lockstep::backend
