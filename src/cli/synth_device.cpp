#include "cli/synth_device.hpp"

#include <bit>
#include <chrono>
#include <random>

#include "artifact/affine_quantiser.hpp"
#include "artifact/model_walk.hpp"
#include "artifact/synth_matrix.hpp"
#include "backend/cuda/cuda_backend.hpp"
#include "backend/cuda_devices.hpp"
#include "backend/device_memory.hpp"
#include "base/progress.hpp"
#include "cli/interrupt.hpp"
#include "engine/device_plan.hpp"

namespace lockstep::cli {
namespace {

using artifact::MatrixView;

/// Rows of each stack of matrices that are compared.
constexpr int kRowsChecked = 3;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// One row of a stack as the processor makes it, without the others.
std::vector<float> row_on_host(const MatrixView& stack, std::uint64_t seed, std::int64_t index, std::int64_t row) {
  std::optional<artifact::Precision> precision;
  if (stack.quantised) precision = artifact::Precision{stack.bits, stack.group};
  const artifact::SynthMatrix matrix(stack.name, stack.count * stack.rows, stack.cols, precision, seed);
  const auto rows = static_cast<std::uint64_t>(stack.count * stack.rows);
  const auto at = static_cast<std::uint64_t>(index * stack.rows + row);
  std::vector<std::vector<std::byte>> planes;
  for (std::size_t i = 0; i < matrix.planes().size(); ++i) {
    const std::uint64_t bytes = matrix.planes()[i].bytes / rows;
    planes.emplace_back(bytes);
    matrix.fill(i, at * bytes, planes.back());
  }
  MatrixView view = stack;
  view.count = view.rows = 1;
  view.data = planes[0].data();
  if (stack.quantised) {
    view.codes = planes[0].data();
    view.scales = planes[1].data();
    view.biases = planes[2].data();
  }
  std::vector<float> values(static_cast<std::size_t>(stack.cols));
  artifact::read_row(view, 0, 0, values.data());
  return values;
}

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

Status check_row(backend::Backend& backend, const backend::Matrix& made, const MatrixView& stack, std::uint64_t seed,
                 std::int64_t index, std::int64_t row) {
  std::vector<float> got(static_cast<std::size_t>(stack.cols));
  LOCKSTEP_TRY(backend::read_cuda_row(backend, made, index, row, got));
  const std::vector<float> expected = row_on_host(stack, seed, index, row);
  const auto [a, b] = std::ranges::mismatch(expected, got, same);
  if (a == expected.end()) return {};
  return fail(
      ErrorKind::Internal,
      "{}: matrix {}, row {}, column {} is {:a} on the device, {:a} on the processor: this device does not give "
      "the processor's bits",
      stack.name, index, row, a - expected.begin(), *b, *a);
}

Status check_room(const artifact::Artifact& artifact, const InMemoryModel& model, const backend::DeviceChoice& device,
                  std::uint64_t free) {
  EngineOptions options;
  options.device = device.text();
  options.in_memory = model.geometry;
  engine::LoadSetup setup = load_setup(options, artifact, true);
  setup.cpu.ngram.mode = backend::NgramMode::Resident;  // not on the device
  const engine::DevicePlan plan = LOCKSTEP_TRY(engine::plan_device(artifact, setup, free, UINT64_MAX));
  return engine::check_fits(plan, free, UINT64_MAX, device.text(), model.label());
}

}  // namespace

Result<DeviceSynth> synth_on_device(const InMemoryModel& model, const backend::DeviceChoice& device,
                                    std::size_t threads, bool force) {
  const kernels::cuda::DeviceInfo info = LOCKSTEP_TRY(backend::open_cuda_device(device.index));
  const artifact::SynthModel described = LOCKSTEP_TRY(describe_in_memory(model));
  const artifact::Artifact artifact = LOCKSTEP_TRY(artifact::make_synthetic_on_demand(described, threads));
  if (!force) LOCKSTEP_TRY(check_room(artifact, model, device, info.free_memory));
  const std::unique_ptr<backend::Backend> backend = LOCKSTEP_TRY(backend::create_backend(device, {}));
  const std::vector<artifact::MatrixPart> parts = artifact::walk_model(artifact.view()).matrices;
  DeviceSynth out;
  out.device_name = info.name;
  out.matrices = parts.size();
  for (const artifact::MatrixPart& part : parts) {
    out.stored_bytes += artifact::matrix_bytes(*part.matrix);
    out.device_bytes += backend::device_matrix_bytes(*part.matrix);
  }
  std::vector<backend::MatrixPtr> made;
  const auto begin = std::chrono::steady_clock::now();
  {
    Progress bar("making", parts.size(), ProgressUnit::Items);
    for (const artifact::MatrixPart& part : parts) {
      if (InterruptScope::flag().load()) return fail(ErrorKind::Cancelled, "interrupted");
      made.push_back(LOCKSTEP_TRY(backend->upload(*part.matrix)));
      bar.set(made.size());
    }
  }
  LOCKSTEP_TRY(backend->status());
  out.seconds = seconds_since(begin);
  const auto check = std::chrono::steady_clock::now();
  std::mt19937_64 random(model.seed);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const MatrixView& stack = *parts[i].matrix;
    for (int n = 0; n < kRowsChecked; ++n) {
      if (InterruptScope::flag().load()) return fail(ErrorKind::Cancelled, "interrupted");
      const std::int64_t index = below(stack.count);
      LOCKSTEP_TRY(check_row(*backend, *made[i], stack, model.seed, index, below(stack.rows)));
      ++out.rows_checked;
    }
  }
  out.check_seconds = seconds_since(check);
  return out;
}

}  // namespace lockstep::cli
