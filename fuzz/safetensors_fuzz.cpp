// Arbitrary bytes as a safetensors file: every tensor that is accepted must lie inside the file.
#include <cstdlib>

#include "artifact/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const auto header = lockstep::artifact::parse_safetensors(file, "fuzz");
  if (!header) return 0;
  std::uint64_t covered = 0;
  for (const auto& tensor : header->tensors) {
    if (tensor.offset > size || tensor.bytes > size - tensor.offset) std::abort();
    if (tensor.bytes != lockstep::artifact::tensor_bytes(tensor.dtype, tensor.shape)) std::abort();
    covered += tensor.bytes;
  }
  if (covered > size) std::abort();
  return 0;
}
