// Synthetic matrices that the CUDA backend makes itself against the processor's bytes. Skipped without a device.
#include <map>
#include <random>

#include "artifact/affine_quantiser.hpp"
#include "artifact/synth_matrix.hpp"
#include "backend/cuda/device_backend.hpp"
#include "backend/cuda_fixture.hpp"

namespace lockstep::backend {
namespace {

/// A matrix without data, as make_synthetic_on_demand() describes it.
struct Described {
  artifact::MatrixView view;
  artifact::SynthMatrix matrix;
};

Described describe(std::mt19937_64& random) {
  const auto pick = [&](auto... values) {
    const std::array all{values...};
    return all[random() % all.size()];
  };
  artifact::MatrixView view;
  view.name = fmt::format("layers.{}.{}", random() % 100,
                          pick("mlp.gate", "self_attn.q_proj", "switch_mlp.down_proj", "embed_tokens", "lm_head"));
  view.count = pick(1, 1, 3, 7);
  view.rows = static_cast<std::int64_t>(random() % 90 + 1);
  view.cols = 128 * static_cast<std::int64_t>(random() % 5 + 1);
  view.matrix_stride = static_cast<std::size_t>(view.rows * view.cols * 2);
  std::optional<artifact::Precision> precision;
  if (const int bits = pick(0, 2, 3, 4, 5, 6, 8); bits != 0) {
    precision = artifact::Precision{bits, pick(32, 64, 128)};
    view.quantised = true;
    view.bits = precision->bits;
    view.group = precision->group;
    view.matrix_stride = static_cast<std::size_t>(view.rows) * view.code_row_bytes();
  }
  artifact::SynthMatrix matrix(view.name, view.count * view.rows, view.cols, precision, random());
  view.synth = matrix.source();
  return {std::move(view), std::move(matrix)};
}

/// The same matrix with the processor's bytes.
artifact::MatrixView on_host(const Described& described, std::vector<std::vector<std::byte>>& planes) {
  artifact::MatrixView view = described.view;
  for (std::size_t i = 0; i < described.matrix.planes().size(); ++i) {
    planes.emplace_back(described.matrix.planes()[i].bytes);
    described.matrix.fill(i, 0, planes.back());
  }
  if (view.quantised) {
    view.codes = planes[0].data();
    view.scales = planes[1].data();
    view.biases = planes[2].data();
  } else {
    view.data = planes[0].data();
  }
  return view;
}

std::vector<std::byte> bytes_of(Backend& backend, Buffer* buffer) {
  std::vector<std::byte> bytes(buffer == nullptr ? 0 : buffer->size());
  if (!bytes.empty()) backend.read(bytes.data(), buffer->data(), bytes.size());
  return bytes;
}

using CudaSynth = Cuda;

TEST_F(CudaSynth, MatricesMadeOnTheDeviceAreThoseSentToIt) {
  const std::unique_ptr<Backend> cuda = next();
  ASSERT_TRUE(cuda->makes_synthetic());
  for (unsigned seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Described described = describe(random);
    std::vector<std::vector<std::byte>> planes;
    const artifact::MatrixView full = on_host(described, planes);
    const MatrixPtr made = cuda->upload(described.view).value();
    const MatrixPtr sent = cuda->upload(full).value();
    const auto& a = static_cast<const DeviceMatrix&>(*made);
    const auto& b = static_cast<const DeviceMatrix&>(*sent);
    ASSERT_GT(a.first->size(), 0U);
    EXPECT_EQ(bytes_of(*cuda, a.first.get()), bytes_of(*cuda, b.first.get()));
    EXPECT_EQ(bytes_of(*cuda, a.second.get()), bytes_of(*cuda, b.second.get()));
    for (int i = 0; i < 8; ++i) {
      const auto index = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(full.count));
      const auto row = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(full.rows));
      std::vector<float> expected(static_cast<std::size_t>(full.cols));
      std::vector<float> got(expected.size());
      artifact::read_row(full, index, row, expected.data());
      ASSERT_TRUE(read_cuda_row(*cuda, *made, index, row, got));
      expect_same(fmt::format("matrix {}, row {}", index, row), expected, got);
    }
  }
}

}  // namespace
}  // namespace lockstep::backend
