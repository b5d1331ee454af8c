#include "engine/bank_file.hpp"

#include <algorithm>
#include <cstring>

#include "base/sha256.hpp"

namespace lockstep::engine {
namespace {

constexpr std::string_view kMagic = "LSBANK01";
constexpr std::size_t kDigest = 64;
constexpr std::size_t kFixed = 8 + 4 + 4 + 8 + 8 + 8;

std::string_view text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::uint64_t number(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<std::uint64_t>(bytes[i]);
  return value;
}

class Writer {
 public:
  void bytes(std::span<const std::byte> data) { out_.insert(out_.end(), data.begin(), data.end()); }
  void chars(std::string_view data) { bytes(std::as_bytes(std::span(data))); }
  void number(std::uint64_t value, int width) {
    for (int i = 0; i < width; ++i) out_.push_back(static_cast<std::byte>(value >> (8 * i)));
  }
  /// SHA-256 of everything from `from` on.
  void digest(std::size_t from) {
    Sha256 hash;
    hash.update(std::span<const std::byte>(out_).subspan(from));
    chars(hash.hex());
  }
  std::vector<std::byte>& out() { return out_; }

 private:
  std::vector<std::byte> out_;
};

/// Bytes of the head with its digest, or 0 when the counts are out of range.
std::uint64_t head_bytes(std::uint64_t identity, std::uint64_t tokens) {
  if (identity > kMaxIdentity || tokens > kMaxBankTokens) return 0;
  return kFixed + identity + tokens * 4 + kDigest;
}

bool digest_matches(std::span<const std::byte> data, std::span<const std::byte> digest) {
  Sha256 hash;
  hash.update(data);
  return hash.hex() == text(digest);
}

}  // namespace

std::vector<std::byte> write_bank_file(const BankFileHead& head, std::span<const std::byte> state,
                                       std::span<const std::byte> hidden, std::span<const std::byte> logits) {
  Writer writer;
  writer.out().reserve(head_bytes(head.identity.size(), head.tokens.size()) + state.size() + hidden.size() +
                       logits.size() + kDigest);
  writer.chars(kMagic);
  writer.number(head.identity.size(), 4);
  writer.number(head.tokens.size(), 4);
  for (const auto part : {state, hidden, logits}) writer.number(part.size(), 8);
  writer.chars(head.identity);
  for (const std::int32_t token : head.tokens) writer.number(static_cast<std::uint32_t>(token), 4);
  writer.digest(0);
  const std::size_t body = writer.out().size();
  for (const auto part : {state, hidden, logits}) writer.bytes(part);
  writer.digest(body);
  return std::move(writer.out());
}

Result<BankFileHead> parse_bank_head(std::span<const std::byte> file) {
  if (file.size() < kFixed) return fail(ErrorKind::Invalid, "only {} bytes, no state of the bank", file.size());
  if (text(file.first(kMagic.size())) != kMagic) return fail(ErrorKind::Invalid, "not a state of the bank");
  const std::uint64_t identity = number(file.subspan(8, 4));
  const std::uint64_t tokens = number(file.subspan(12, 4));
  const std::uint64_t bytes = head_bytes(identity, tokens);
  if (bytes == 0 || bytes > file.size()) {
    return fail(ErrorKind::Invalid, "a head of {} bytes of identity and {} tokens does not fit", identity, tokens);
  }
  const auto head = file.first(static_cast<std::size_t>(bytes));
  if (!digest_matches(head.first(head.size() - kDigest), head.last(kDigest))) {
    return fail(ErrorKind::Invalid, "the head's checksum is wrong");
  }
  BankFileHead out;
  out.state_bytes = number(file.subspan(16, 8));
  out.hidden_bytes = number(file.subspan(24, 8));
  out.logits_bytes = number(file.subspan(32, 8));
  // What is left of the file is known, so no sum can overflow unseen.
  std::uint64_t left = file.size() - bytes;
  for (const std::uint64_t part : {out.state_bytes, out.hidden_bytes, out.logits_bytes, std::uint64_t{kDigest}}) {
    if (part > left) return fail(ErrorKind::Invalid, "the file ends early");
    left -= part;
  }
  if (left != 0) return fail(ErrorKind::Invalid, "{} bytes too many", left);
  out.identity = text(head.subspan(kFixed, static_cast<std::size_t>(identity)));
  out.tokens.resize(static_cast<std::size_t>(tokens));
  const auto ids = head.subspan(kFixed + static_cast<std::size_t>(identity));
  for (std::size_t i = 0; i < out.tokens.size(); ++i) {
    out.tokens[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(number(ids.subspan(i * 4, 4))));
  }
  return out;
}

Result<BankFile> parse_bank_file(std::span<const std::byte> file) {
  BankFile out;
  out.head = LOCKSTEP_TRY(parse_bank_head(file));
  const auto body =
      file.subspan(static_cast<std::size_t>(head_bytes(out.head.identity.size(), out.head.tokens.size())));
  const auto parts = body.first(body.size() - kDigest);
  if (!digest_matches(parts, body.last(kDigest))) return fail(ErrorKind::Invalid, "the state's checksum is wrong");
  out.state = parts.first(static_cast<std::size_t>(out.head.state_bytes));
  out.hidden = parts.subspan(out.state.size(), static_cast<std::size_t>(out.head.hidden_bytes));
  out.logits = parts.subspan(out.state.size() + out.hidden.size());
  return out;
}

}  // namespace lockstep::engine
