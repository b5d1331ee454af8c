// States of the prefix bank: whatever the bytes are, parsing ends, and what it accepts is written back unchanged.
#include <cstdlib>
#include <cstring>

#include "engine/bank_file.hpp"

namespace engine = lockstep::engine;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto head = engine::parse_bank_head(bytes);
  const auto file = engine::parse_bank_file(bytes);
  if (file && !head) std::abort();
  if (file) {
    const auto again = engine::write_bank_file(file->head, file->state, file->hidden, file->logits);
    if (again.size() != size || std::memcmp(again.data(), data, size) != 0) std::abort();
  }
  // Bytes made valid by fresh checksums reach the code behind them: the input is cut into the parts of a file.
  if (size < 4) return 0;
  engine::BankFileHead made;
  made.identity.assign(reinterpret_cast<const char*>(data), std::min<std::size_t>(data[0], size));
  made.tokens.assign(data[1], data[2]);
  const auto parts = bytes.subspan(3);
  const std::size_t first = std::min<std::size_t>(data[3], parts.size());
  const auto written =
      engine::write_bank_file(made, parts.first(first), parts.subspan(first), parts.first(parts.size() - first));
  if (!engine::parse_bank_file(written)) std::abort();
  return 0;
}
