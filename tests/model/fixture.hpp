// Loading models and golden tensors in tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "artifact/artifact.hpp"
#include "artifact/safetensors.hpp"
#include "backend/cpu/cpu_backend.hpp"
#include "model/runner.hpp"

namespace lockstep::model {

/// An opened artifact and a model on the CPU backend.
struct Loaded {
  artifact::Artifact artifact;
  std::unique_ptr<Model> model;
};

/// One thread: tiny models gain nothing from more, and tests run side by side. Tests of threads say so.
inline backend::CpuOptions one_thread() {
  backend::CpuOptions options;
  options.threads = 1;
  return options;
}

inline Loaded load(artifact::Artifact artifact, backend::StateType state,
                   const backend::CpuOptions& options = one_thread()) {
  auto backend = backend::CpuBackend::create(options);
  if (!backend) throw std::runtime_error(backend.error().message);
  ModelOptions model_options;
  model_options.state = state;
  auto model = Model::load(artifact, std::move(*backend), model_options);
  if (!model) throw std::runtime_error(model.error().message);
  return {std::move(artifact), std::move(*model)};
}

inline Loaded load(const std::string& directory, backend::StateType state,
                   const backend::CpuOptions& options = one_thread()) {
  auto artifact = artifact::Artifact::open(directory);
  if (!artifact) throw std::runtime_error(artifact.error().message);
  return load(std::move(*artifact), state, options);
}

/// A tensor of a golden file as T (no conversion).
template <class T>
std::vector<T> golden(const artifact::SafetensorsFile& file, const std::string& name) {
  const artifact::TensorInfo* info = file.find(name);
  if (info == nullptr) throw std::runtime_error("no golden tensor " + name);
  const auto bytes = file.data(*info);
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

/// Token ids of a golden file, stored as I64 or I32.
inline std::vector<std::int32_t> golden_ids(const artifact::SafetensorsFile& file, const std::string& name) {
  if (file.find(name)->dtype == artifact::DType::I32) return golden<std::int32_t>(file, name);
  const auto wide = golden<std::int64_t>(file, name);
  return {wide.begin(), wide.end()};
}

inline std::int32_t argmax(std::span<const float> row) {
  return static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

/// Largest |a - b| over the range of b.
inline double relative_error(std::span<const float> a, std::span<const float> b) {
  const auto [low, high] = std::minmax_element(b.begin(), b.end());
  double worst = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return worst / (static_cast<double>(*high) - static_cast<double>(*low));
}

/// Logits of all rows of `ids`, run in chunks of `chunk` tokens (0: at once). Also fills the draft layer when asked:
/// row t of `draft_logits` uses the wide residual of t and token t+1, the last row `next`.
struct Forward {
  std::vector<float> logits, draft_logits;
};

inline Forward run_all(const Model& model, std::span<const std::int32_t> ids, std::int64_t chunk,
                       Sequence* out = nullptr) {
  const auto n = static_cast<std::int64_t>(ids.size());
  if (chunk == 0) chunk = n;
  auto runner = Runner::create(model, chunk);
  auto sequence = Sequence::create(model);
  if (!runner || !sequence) throw std::runtime_error("cannot create a runner");
  Forward result;
  for (std::int64_t first = 0; first < n; first += chunk) {
    const auto count = static_cast<std::size_t>(std::min(chunk, n - first));
    const Segment segment{&*sequence, ids.subspan(static_cast<std::size_t>(first), count), LogitsWanted::All, false};
    const Status status = runner->forward({&segment, 1});
    if (!status) throw std::runtime_error(status.error().message);
    result.logits.insert(result.logits.end(), runner->logits().begin(), runner->logits().end());
  }
  if (out != nullptr) *out = std::move(*sequence);
  return result;
}

}  // namespace lockstep::model
