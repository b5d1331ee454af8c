#include "artifact/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "artifact/safetensors_header.hpp"
#include "base/checked.hpp"

namespace lockstep::artifact {
namespace {

/// Tensors by ascending range, each starting where the one before it ends, the last ending with the file.
Status check_coverage(const std::vector<TensorInfo>& tensors, std::uint64_t begin, std::uint64_t end,
                      std::string_view what) {
  std::vector<const TensorInfo*> order;
  order.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  std::uint64_t covered = begin;
  for (const TensorInfo* tensor : order) {
    if (tensor->offset != covered) {
      const char* fault = tensor->offset < covered ? "overlaps the tensor before it" : "leaves a hole before it";
      return fail(ErrorKind::Invalid, "{}: tensor '{}' {} (starts at byte {}, expected {})", what, tensor->name, fault,
                  tensor->offset, covered);
    }
    covered += tensor->bytes;
  }
  if (covered != end) {
    return fail(ErrorKind::Invalid, "{}: {} bytes behind the last tensor belong to none", what, end - covered);
  }
  return {};
}

}  // namespace

std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::int64_t> shape) {
  std::optional<std::uint64_t> product = dtype_size(dtype);
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    product = checked_mul(*product, static_cast<std::uint64_t>(dimension));
    if (!product) return std::nullopt;
  }
  return product;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, std::string_view what) {
  std::uint64_t length = 0;
  if (file.size() < sizeof(length)) {
    return fail(ErrorKind::Invalid, "{}: {} bytes, too short for a safetensors file", what, file.size());
  }
  std::memcpy(&length, file.data(), sizeof(length));
  if (length > kMaxHeaderBytes) {
    return fail(ErrorKind::Limit, "{}: header of {} bytes, more than the limit of {}", what, length, kMaxHeaderBytes);
  }
  if (length > file.size() - sizeof(length)) {
    return fail(ErrorKind::Invalid, "{}: header of {} bytes reaches beyond the file's {} bytes", what, length,
                file.size());
  }
  const std::uint64_t data_begin = sizeof(length) + length;
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof(length), length);
  SafetensorsHeader header = LOCKSTEP_TRY(parse_header_text(text, what));
  for (TensorInfo& tensor : header.tensors) {
    if (tensor.bytes > file.size() - data_begin || tensor.offset > file.size() - data_begin - tensor.bytes) {
      return fail(ErrorKind::Invalid, "{}: tensor '{}' ends at byte {} of a data section of {} bytes (truncated file?)",
                  what, tensor.name, tensor.offset + tensor.bytes, file.size() - data_begin);
    }
    tensor.offset += data_begin;
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  LOCKSTEP_TRY(check_coverage(header.tensors, data_begin, file.size(), what));
  return header;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile file;
  file.file_ = LOCKSTEP_TRY(MappedFile::open(path));
  Result<SafetensorsHeader> header = parse_safetensors(file.file_.bytes(), path.string());
  LOCKSTEP_TRY(file.intact());  // or else it is no wonder that there was something wrong
  file.header_ = LOCKSTEP_TRY(std::move(header));
  return file;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto& all = header_.tensors;
  const auto found = std::lower_bound(all.begin(), all.end(), name,
                                      [](const TensorInfo& tensor, std::string_view key) { return tensor.name < key; });
  return found != all.end() && found->name == name ? &*found : nullptr;
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::filesystem::path& path, std::span<const Entry> entries,
                                                    const std::map<std::string, std::string>& metadata) {
  std::vector<const Entry*> order;
  for (const Entry& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    const std::size_t size_a = dtype_size(a->dtype), size_b = dtype_size(b->dtype);
    return size_a != size_b ? size_a > size_b : a->name < b->name;
  });
  OrderedJson header = OrderedJson::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::map<std::string, Slot, std::less<>> slots;
  std::uint64_t offset = 0;
  for (const Entry* entry : order) {
    const auto bytes = tensor_bytes(entry->dtype, entry->shape);
    const auto end = bytes ? checked_add(offset, *bytes) : std::nullopt;
    if (!end || !usable_name(entry->name) || entry->name == "__metadata__") {
      return fail(ErrorKind::Invalid, "{}: tensor '{}' cannot be written (name or shape {})", path.string(),
                  entry->name, shape_text(entry->shape));
    }
    if (!slots.emplace(entry->name, Slot{offset, *bytes, 0}).second) {
      return fail(ErrorKind::Invalid, "{}: tensor '{}' appears twice", path.string(), entry->name);
    }
    header[entry->name] = {
        {"dtype", dtype_name(entry->dtype)}, {"shape", entry->shape}, {"data_offsets", {offset, *end}}};
    offset = *end;
  }
  std::string text = header.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  SafetensorsWriter writer(LOCKSTEP_TRY(AtomicFile::create(path)));
  LOCKSTEP_TRY(writer.file_.write(std::as_bytes(std::span(&length, 1))));
  LOCKSTEP_TRY(writer.file_.write(text));
  for (auto& [name, slot] : slots) slot.offset += sizeof(length) + length;
  writer.slots_ = std::move(slots);
  writer.file_bytes_ = sizeof(length) + length + offset;
  return writer;
}

Status SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  const auto found = slots_.find(name);
  if (found == slots_.end()) return fail(ErrorKind::NotFound, "tensor '{}' was not announced", name);
  Slot& slot = found->second;
  if (bytes.size() > slot.bytes - slot.written) {
    return fail(ErrorKind::Limit, "tensor '{}': more than its {} bytes", name, slot.bytes);
  }
  LOCKSTEP_TRY(file_.write_at(slot.offset + slot.written, bytes));
  slot.written += bytes.size();
  return {};
}

Status SafetensorsWriter::finish() {
  for (const auto& [name, slot] : slots_) {
    if (slot.written != slot.bytes) {
      return fail(ErrorKind::Invalid, "tensor '{}': {} of {} bytes written", name, slot.written, slot.bytes);
    }
  }
  return file_.commit();
}

}  // namespace lockstep::artifact
