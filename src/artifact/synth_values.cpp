#include "artifact/synth_values.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "base/sha256.hpp"
#include "numerics/philox.hpp"
#include "numerics/synthetic.hpp"

namespace lockstep::artifact {
namespace {

constexpr std::uint64_t kCounterBytes = 16;

std::array<std::byte, kCounterBytes> block(std::uint64_t key, std::uint64_t index) {
  const numerics::PhiloxBlock words =
      numerics::philox4x32({{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0}},
                           static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32));
  std::array<std::byte, kCounterBytes> bytes{};
  std::memcpy(bytes.data(), words.word, bytes.size());
  return bytes;
}

/// Calls body(i, halfword of element first + i) for `count` elements.
template <class Body>
void each_halfword(std::uint64_t key, std::uint64_t first, std::size_t count, Body body) {
  constexpr std::size_t kAtOnce = 2048;
  std::array<std::uint16_t, kAtOnce> words{};
  for (std::size_t done = 0; done < count; done += kAtOnce) {
    const std::size_t now = std::min(kAtOnce, count - done);
    synth_bytes(key, 2 * (first + done), std::as_writable_bytes(std::span(words).first(now)));
    for (std::size_t i = 0; i < now; ++i) body(done + i, words[i]);
  }
}

bool ends_in(std::string_view module, std::string_view suffix) {
  return module.ends_with(suffix) &&
         (module.size() == suffix.size() || module[module.size() - suffix.size() - 1] == '.');
}

}  // namespace

std::uint64_t synth_key(std::uint64_t seed, std::string_view name) {
  const std::string digest = sha256_hex(std::to_string(seed) + " " + std::string(name));
  std::uint64_t key = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    key |= static_cast<std::uint64_t>(std::stoul(digest.substr(2 * i, 2), nullptr, 16)) << (8 * i);
  }
  return key;
}

void synth_bytes(std::uint64_t key, std::uint64_t offset, std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::uint64_t at = offset + done;
    const auto skip = static_cast<std::size_t>(at % kCounterBytes);
    const auto bytes = block(key, at / kCounterBytes);
    const std::size_t count = std::min(bytes.size() - skip, out.size() - done);
    std::memcpy(out.data() + done, bytes.data() + skip, count);
    done += count;
  }
}

void synth_dense(std::uint64_t key, std::uint64_t first, float deviation, std::span<std::uint16_t> out) {
  const float unit = synth_unit(deviation);
  each_halfword(key, first, out.size(),
                [&](std::size_t i, std::uint16_t h) { out[i] = numerics::synthetic_weight(h, unit); });
}

void synth_scales(std::uint64_t key, std::uint64_t first, Precision precision, float deviation,
                  std::span<std::uint16_t> out) {
  const float step = synth_step(precision, deviation);
  each_halfword(key, first, out.size(),
                [&](std::size_t i, std::uint16_t h) { out[i] = numerics::synthetic_scale(h, step); });
}

void synth_biases(std::span<const std::uint16_t> scales, Precision precision, std::span<std::uint16_t> out) {
  const float middle = synth_middle(precision);
  std::transform(scales.begin(), scales.end(), out.begin(),
                 [&](std::uint16_t scale) { return numerics::synthetic_bias(scale, middle); });
}

float synth_unit(float deviation) {
  return std::sqrt(3.0F) * deviation / 32768.0F;
}

float synth_step(Precision precision, float deviation) {
  const auto levels = static_cast<float>(1 << precision.bits);
  return deviation * std::sqrt(12.0F / (levels * levels - 1.0F));
}

float synth_middle(Precision precision) {
  return static_cast<float>((1 << precision.bits) - 1) / 2.0F;
}

float synth_deviation(std::string_view module, std::int64_t cols) {
  // Looked up, not multiplied.
  if (ends_in(module, "embed_tokens") || module == "ngram") return 1.0F;
  // What reads a block's input sees an RMS of about one half; gates want some spread; outputs of blocks stay below one.
  constexpr std::array<std::pair<std::string_view, float>, 12> kGains{{{"lm_head", 6.0F},
                                                                       {"mlp.gate", 3.0F},
                                                                       {"input_mix_weight_down", 4.0F},
                                                                       {"input_mix_weight_up", 4.0F},
                                                                       {"block_inject_weight", 4.0F},
                                                                       {"out_proj", 1.0F},
                                                                       {"o_proj", 1.0F},
                                                                       {"down_proj", 1.0F},
                                                                       {"key_proj", 1.0F},
                                                                       {"value_proj", 1.0F},
                                                                       {"fc_embedding", 1.0F},
                                                                       {"fc_hidden", 1.0F}}};
  float gain = 2.0F;
  for (const auto& [suffix, wanted] : kGains) {
    if (ends_in(module, suffix)) gain = wanted;
  }
  return gain / std::sqrt(static_cast<float>(cols));
}

}  // namespace lockstep::artifact
