#include "artifact/ngram_hash.hpp"

#include <algorithm>
#include <cassert>

namespace lockstep::artifact {
namespace {

constexpr std::uint64_t kGamma = 0x9E3779B97F4A7C15U;
constexpr std::uint64_t kMaxRows = std::uint64_t{1} << 40;
constexpr std::uint64_t kSeedStep = 10007;  // between the seeds of several n-gram layers; there is one, number 0

std::uint64_t splitmix64(std::uint64_t v) {
  v += kGamma;
  v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9U;
  v = (v ^ (v >> 27)) * 0x94D049BB133111EBU;
  return v ^ (v >> 31);
}

bool is_prime(std::uint64_t n) {
  if (n < 4) return n >= 2;
  if (n % 2 == 0) return false;
  for (std::uint64_t divisor = 3; divisor * divisor <= n; divisor += 2) {
    if (n % divisor == 0) return false;
  }
  return true;
}

}  // namespace

Result<NgramHash> make_ngram_hash(const ModelConfig& config) {
  NgramHash hash;
  const auto vocab = static_cast<std::uint64_t>(config.vocab_size);
  const std::uint64_t half = std::max<std::uint64_t>(1, (static_cast<std::uint64_t>(INT64_MAX) / vocab) / 2);
  const std::uint64_t layer = 0;
  const std::uint64_t base = static_cast<std::uint64_t>(config.ngram_seed) + kSeedStep * layer;
  for (std::int64_t i = 0; i < config.ngram_size; ++i) {
    // splitmix64 adds its increment once more.
    const std::uint64_t value = splitmix64(base + kGamma * (static_cast<std::uint64_t>(i) + 1));
    hash.multipliers.push_back(2 * (value % half) + 1);
  }
  auto candidate = static_cast<std::uint64_t>(config.ngram_vocab_base);
  std::uint64_t offset = 0;
  for (std::int64_t head = 0; head < config.ngram_heads(); ++head) {
    while (!is_prime(candidate)) ++candidate;
    hash.sizes.push_back(candidate);
    hash.offsets.push_back(offset);
    offset += candidate++;
  }
  if (offset > kMaxRows) {
    return fail(ErrorKind::Limit, "{}: an n-gram table of {} rows is more than the limit of {}", config.file, offset,
                kMaxRows);
  }
  return hash;
}

std::uint64_t ngram_padded_rows(const NgramHash& hash, std::uint64_t multiple) {
  const std::uint64_t rows = hash.offsets.empty() ? 0 : hash.offsets.back() + hash.sizes.back();
  return (rows + multiple - 1) / multiple * multiple;
}

Status check_ngram_hash(const NgramHash& hash, const ModelConfig& config, std::uint64_t rows) {
  const auto heads = static_cast<std::size_t>(config.ngram_heads());
  if (hash.multipliers.size() != static_cast<std::size_t>(config.ngram_size) || hash.sizes.size() != heads ||
      hash.offsets.size() != heads) {
    return fail(ErrorKind::Invalid,
                "{}: n-gram hash in the tensors: {} multipliers, {} sizes and {} offsets; expected {}, {} and {}",
                config.file, hash.multipliers.size(), hash.sizes.size(), hash.offsets.size(), config.ngram_size, heads,
                heads);
  }
  const std::uint64_t largest = static_cast<std::uint64_t>(INT64_MAX) / static_cast<std::uint64_t>(config.vocab_size);
  for (const std::uint64_t multiplier : hash.multipliers) {
    if (multiplier > largest) {
      return fail(ErrorKind::Invalid, "{}: n-gram hash in the tensors: multiplier {} overflows for a vocabulary of {}",
                  config.file, multiplier, config.vocab_size);
    }
  }
  for (std::size_t head = 0; head < heads; ++head) {
    const std::uint64_t size = hash.sizes[head], offset = hash.offsets[head];
    if (size == 0 || size > rows || offset > rows - size) {
      return fail(ErrorKind::Invalid,
                  "{}: n-gram hash in the tensors: head {} addresses rows {} to {} + {} of a table of {}", config.file,
                  head, offset, offset, size, rows);
    }
  }
  return {};
}

void cut_ngram_window(std::span<std::int64_t> window, std::int64_t eos) {
  bool cut = false;
  for (std::size_t back = 1; back < window.size(); ++back) {
    cut = cut || window[back] == eos;
    if (cut) window[back] = eos;
  }
}

void ngram_rows(const NgramHash& hash, std::span<const std::int64_t> window, std::span<std::uint64_t> rows) {
  assert(window.size() == hash.multipliers.size() && rows.size() == hash.sizes.size());
  const std::size_t per = rows.size() / (window.size() - 1);
  std::uint64_t mix = static_cast<std::uint64_t>(window[0]) * hash.multipliers[0];
  for (std::size_t n = 1; n < window.size(); ++n) {
    mix ^= static_cast<std::uint64_t>(window[n]) * hash.multipliers[n];
    for (std::size_t head = (n - 1) * per; head < n * per; ++head)
      rows[head] = mix % hash.sizes[head] + hash.offsets[head];
  }
}

void ngram_past(const NgramHash& hash, std::span<const std::int64_t> window, std::span<std::uint64_t> past) {
  assert(window.size() == hash.multipliers.size() && past.size() + 1 == window.size());
  std::uint64_t mix = 0;
  for (std::size_t n = 1; n < window.size(); ++n) {
    past[n - 1] = mix ^= static_cast<std::uint64_t>(window[n]) * hash.multipliers[n];
  }
}

}  // namespace lockstep::artifact
