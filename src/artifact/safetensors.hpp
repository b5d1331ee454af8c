// safetensors files: a hardened reader over a memory map and a streaming writer.
//
// Layout of a file: 8 bytes little-endian header length, a JSON object {"name": {"dtype", "shape", "data_offsets"},
// ...,
// "__metadata__": {string: string}}, then the data section. docs/artifact.md lists the rules that the reader enforces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "artifact/model_view.hpp"
#include "base/file.hpp"
#include "base/result.hpp"

namespace lockstep::artifact {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  ///< the format's own limit
inline constexpr std::size_t kMaxRank = 8, kMaxNameBytes = 512;

struct TensorInfo {
  std::string name;
  DType dtype = DType::BF16;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0, bytes = 0;  ///< byte range inside the file
};

/// Bytes of a tensor, or nothing on overflow or a negative dimension. The empty shape is a scalar.
[[nodiscard]] std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::int64_t> shape);

/// "[2, 3]"
[[nodiscard]] std::string shape_text(std::span<const std::int64_t> shape);

/// What the header of one file says, checked against the file's size.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  ///< ascending by name
  std::map<std::string, std::string> metadata;
};

/// Checks a whole file given as bytes: header length, JSON, unique names, dtype and shape against the byte range, and
/// that the ranges cover the data section exactly, without holes or overlap. `what` names the file in errors.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, std::string_view what);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// nullptr when there is no such tensor.
  [[nodiscard]] const TensorInfo* find(std::string_view name) const;
  /// The bytes of a tensor of this file. They may be unaligned: read elements with memcpy.
  [[nodiscard]] std::span<const std::byte> data(const TensorInfo& tensor) const {
    return file_.bytes().subspan(tensor.offset, tensor.bytes);
  }
  void release_pages() const noexcept { file_.release_pages(); }
  /// Fails once the file has shrunk or could not be read: data() may be zeros since.
  [[nodiscard]] Status intact() const { return file_.intact(); }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

/// Writes a file whose tensors are known beforehand; their bytes may come in any order and in pieces. The file appears
/// under its name only at finish().
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    DType dtype = DType::BF16;
    std::vector<std::int64_t> shape;
  };

  /// Data is laid out by descending element size, then by name, so every tensor is aligned to its element.
  /// Errors: Invalid for repeated or unusable names and shapes, Io.
  static Result<SafetensorsWriter> create(const std::filesystem::path& path, std::span<const Entry> entries,
                                          const std::map<std::string, std::string>& metadata);

  /// Appends to the bytes of one tensor. Errors: NotFound, Limit when it would hold more than its shape says, Io.
  Status append(std::string_view name, std::span<const std::byte> bytes);
  /// Errors: Invalid when a tensor is incomplete, Io.
  Status finish();
  [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }

 private:
  struct Slot {
    std::uint64_t offset = 0, bytes = 0, written = 0;
  };
  explicit SafetensorsWriter(AtomicFile file) : file_(std::move(file)) {}

  AtomicFile file_;
  std::map<std::string, Slot, std::less<>> slots_;
  std::uint64_t file_bytes_ = 0;
};

}  // namespace lockstep::artifact
