// A backend that keeps a digest of every row of logits, so that a test can tell whether a row was the same bits.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "support/forwarding_backend.hpp"

namespace lockstep::engine {

/// Shared between a backend inside a model and the test. Only the thread that runs the model's steps may use it.
struct LogitsWatch {
  std::vector<std::size_t> pass;  ///< digests of the rows of the last pass of the target, in order
  std::set<std::size_t> all;      ///< of all passes of the target since the test cleared it
  std::size_t widest = 0;         ///< most rows of logits of one pass
};

class WatchedBackend final : public test::ForwardingBackend {
 public:
  WatchedBackend(std::unique_ptr<backend::Backend> inner, std::shared_ptr<LogitsWatch> watch)
      : ForwardingBackend(std::move(inner)), watch_(std::move(watch)) {}

  // Every pass of the target begins with embed(), every pass of the draft layer with draft_input().
  void embed(const backend::Matrix& embedding, std::span<const std::int32_t> tokens, float* x) override {
    drafting_ = false;
    watch_->pass.clear();
    inner_->embed(embedding, tokens, x);
  }
  void draft_input(const backend::DraftWeights& weights, const backend::Matrix& embedding,
                   std::span<const std::int32_t> tokens, const float* h, float* x) override {
    drafting_ = true;
    inner_->draft_input(weights, embedding, tokens, h, x);
  }
  void project(const backend::Matrix& matrix, const float* u, std::int64_t rows, float* out) override {
    inner_->project(matrix, u, rows, out);
    if (drafting_) return;
    const std::size_t row_bytes = static_cast<std::size_t>(matrix.rows()) * sizeof(float);
    std::vector<char> bytes(static_cast<std::size_t>(rows) * row_bytes);
    inner_->read(bytes.data(), reinterpret_cast<const std::byte*>(out), bytes.size());
    for (std::size_t at = 0; at < bytes.size(); at += row_bytes) {
      watch_->pass.push_back(std::hash<std::string_view>()(std::string_view(bytes.data() + at, row_bytes)));
      watch_->all.insert(watch_->pass.back());
    }
    watch_->widest = std::max(watch_->widest, watch_->pass.size());
  }

 private:
  std::shared_ptr<LogitsWatch> watch_;
  bool drafting_ = false;
};

}  // namespace lockstep::engine
