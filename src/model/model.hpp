// A loaded model: weights on a backend, and the sequences that run on it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "artifact/artifact.hpp"
#include "backend/backend.hpp"
#include "model/page_pool.hpp"
#include "model/weights.hpp"

namespace lockstep::model {

struct ModelOptions {
  backend::StateType state = backend::StateType::BF16;
  bool draft = true;  ///< load the draft layer where the artifact has one
  /// Tokens that a short draft head proposes from, below the vocabulary size and each once; empty: no short head.
  std::vector<std::int32_t> draft_tokens;
  /// Called in the loading thread with the bytes of weights done and in all. May be empty.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
  const std::atomic<bool>* cancel = nullptr;  ///< looked at before every matrix
};

/// Weights and shared memory pools. Sequences and runners keep references: the model outlives them.
class Model {
 public:
  /// Uploads all weights of `artifact`, which must outlive the model. Errors: Unsupported geometry, Limit, Cancelled,
  /// Io when a file has changed meanwhile.
  static Result<std::unique_ptr<Model>> load(const artifact::Artifact& artifact,
                                             std::unique_ptr<backend::Backend> backend, const ModelOptions& options);

  [[nodiscard]] const artifact::ModelConfig& config() const { return config_; }
  [[nodiscard]] const Weights& weights() const { return weights_; }
  [[nodiscard]] backend::Backend& backend() const { return *backend_; }
  /// The first error for good: of the device, of the n-gram table, or of a mapped file of the model that has changed.
  /// After it nothing that the model computes means anything; it must be loaded again.
  [[nodiscard]] Status status() const;
  [[nodiscard]] backend::StateType state_type() const { return state_; }
  [[nodiscard]] bool has_draft() const { return weights_.draft.has_value(); }
  [[nodiscard]] bool has_short_head() const { return has_draft() && weights_.draft->short_head.has_value(); }
  [[nodiscard]] std::int64_t linear_layers() const { return linear_layers_; }
  [[nodiscard]] std::int64_t attention_layers() const { return attention_layers_; }
  [[nodiscard]] const std::shared_ptr<PagePool>& pages() const { return pages_; }
  [[nodiscard]] const std::shared_ptr<PagePool>& draft_pages() const { return draft_pages_; }

 private:
  Model() = default;

  artifact::ModelConfig config_;
  std::unique_ptr<backend::Backend> backend_;
  backend::StateType state_ = backend::StateType::BF16;
  Weights weights_;
  std::function<Status()> files_intact_;
  std::int64_t linear_layers_ = 0, attention_layers_ = 0;
  std::shared_ptr<PagePool> pages_, draft_pages_;
};

}  // namespace lockstep::model
