// The file of one state in the bank's disk tier (docs/engine.md "Disk tier").
//
//   bytes   content
//   8       "LSBANK01"
//   4, 4    length of the identity, number of tokens
//   8, 8, 8 bytes of the state, of the unfed hidden rows, of the logits
//   ...     identity, token ids (4 bytes each)
//   64      SHA-256 of everything before it, in hexadecimal
//   ...     state, hidden rows, logits
//   64      SHA-256 of these three, in hexadecimal
//
// Numbers are little endian. Nothing follows. The head can be checked without reading the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace lockstep::engine {

struct BankFileHead {
  std::string identity;              ///< what the state belongs to, see Options::identity
  std::vector<std::int32_t> tokens;  ///< of the sequence
  std::uint64_t state_bytes = 0, hidden_bytes = 0, logits_bytes = 0;
};

/// Parts of a file whose checks have passed; spans point into it.
struct BankFile {
  BankFileHead head;
  std::span<const std::byte> state, hidden, logits;
};

/// Longest identity and most tokens that a head may have.
inline constexpr std::uint32_t kMaxIdentity = 1024;
inline constexpr std::uint32_t kMaxBankTokens = std::uint32_t{1} << 26;

/// The whole file. The sizes in `head` are set from the parts.
[[nodiscard]] std::vector<std::byte> write_bank_file(const BankFileHead& head, std::span<const std::byte> state,
                                                     std::span<const std::byte> hidden,
                                                     std::span<const std::byte> logits);

/// Reads and checks the head of a file. Errors: Invalid, with what is wrong.
Result<BankFileHead> parse_bank_head(std::span<const std::byte> file);

/// Reads and checks a whole file. Errors: Invalid.
Result<BankFile> parse_bank_file(std::span<const std::byte> file);

}  // namespace lockstep::engine
