#include "artifact/synth_matrix.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "artifact/synth_values.hpp"

namespace lockstep::artifact {

SynthMatrix::SynthMatrix(const std::string& module, std::int64_t rows, std::int64_t cols,
                         std::optional<Precision> precision, std::uint64_t seed)
    : precision_(precision),
      deviation_(synth_deviation(module, cols)),
      weight_key_(synth_key(seed, module + ".weight")),
      scale_key_(synth_key(seed, module + ".scales")) {
  const auto elements = static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(cols);
  if (!precision) {
    planes_ = {{module + ".weight", elements * sizeof(std::uint16_t)}};
    return;
  }
  const std::uint64_t scales = elements / static_cast<std::uint64_t>(precision->group) * sizeof(std::uint16_t);
  planes_ = {{module + ".weight", elements / 8 * static_cast<std::uint64_t>(precision->bits)},
             {module + ".scales", scales},
             {module + ".biases", scales}};
}

SynthSource SynthMatrix::source() const {
  if (!precision_) return {weight_key_, scale_key_, synth_unit(deviation_), 0, 0};
  return {weight_key_, scale_key_, 0, synth_step(*precision_, deviation_), synth_middle(*precision_)};
}

void SynthMatrix::fill(std::size_t plane, std::uint64_t offset, std::span<std::byte> out) const {
  if (plane == 0 && precision_) {
    synth_bytes(weight_key_, offset, out);
    return;
  }
  constexpr std::size_t kAtOnce = 2048;
  std::array<std::uint16_t, kAtOnce> words{};
  for (std::size_t done = 0; done < out.size();) {
    const std::span<std::uint16_t> some = std::span(words).first(std::min(kAtOnce, (out.size() - done) / 2));
    const std::uint64_t first = (offset + done) / 2;
    if (plane == 0) {
      synth_dense(weight_key_, first, deviation_, some);
    } else {
      synth_scales(scale_key_, first, *precision_, deviation_, some);
      if (plane == 2) synth_biases(some, *precision_, some);
    }
    std::memcpy(out.data() + done, some.data(), some.size_bytes());
    done += some.size_bytes();
  }
}

void SynthMatrix::fill(std::size_t plane, std::uint64_t offset, std::span<std::byte> out, ThreadPool& pool) const {
  constexpr std::size_t kGrain = std::size_t{32} << 10;
  pool.parallel_for(out.size() / 2, kGrain, [&](std::size_t begin, std::size_t end) {
    fill(plane, offset + 2 * begin, out.subspan(2 * begin, 2 * (end - begin)));
  });
}

}  // namespace lockstep::artifact
