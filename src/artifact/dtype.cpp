#include <array>
#include <utility>

#include "artifact/model_view.hpp"

namespace lockstep::artifact {
namespace {

struct Entry {
  DType type;
  const char* name;
  std::size_t size;
};

constexpr std::array<Entry, 8> kTypes{{{DType::F32, "F32", 4},
                                       {DType::F16, "F16", 2},
                                       {DType::BF16, "BF16", 2},
                                       {DType::I64, "I64", 8},
                                       {DType::I32, "I32", 4},
                                       {DType::U32, "U32", 4},
                                       {DType::U8, "U8", 1},
                                       {DType::F8E4M3, "F8_E4M3", 1}}};

const Entry& entry(DType type) {
  return kTypes.at(static_cast<std::size_t>(type));
}

}  // namespace

std::size_t dtype_size(DType type) {
  return entry(type).size;
}

const char* dtype_name(DType type) {
  return entry(type).name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Entry& known : kTypes) {
    if (name == known.name) return known.type;
  }
  return std::nullopt;
}

bool is_float(DType type) {
  return type == DType::F32 || type == DType::F16 || type == DType::BF16;
}

}  // namespace lockstep::artifact
