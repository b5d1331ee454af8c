// A backend that hands everything on to another one: tests override what they want to see or spoil.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "backend/backend.hpp"

namespace lockstep::test {

class ForwardingBackend : public backend::Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<backend::Backend> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] std::string describe() const override { return inner_->describe(); }
  Status status() override { return inner_->status(); }
  [[nodiscard]] const backend::NgramStore* ngram_store() const override { return inner_->ngram_store(); }
  [[nodiscard]] backend::LaneOptions lanes() const override { return inner_->lanes(); }
  [[nodiscard]] backend::LaneCounters lane_counters() const override { return inner_->lane_counters(); }
  Result<backend::BufferPtr> allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  void copy(std::byte* to, const std::byte* from, std::size_t n) override { inner_->copy(to, from, n); }
  void read(void* host, const std::byte* from, std::size_t n) override { inner_->read(host, from, n); }
  void write(std::byte* to, const void* host, std::size_t n) override { inner_->write(to, host, n); }
  Result<backend::MatrixPtr> upload(const artifact::MatrixView& view) override { return inner_->upload(view); }
  Result<backend::MatrixPtr> upload_rows(const artifact::MatrixView& view) override {
    return inner_->upload_rows(view);
  }
  Result<backend::BufferPtr> upload(std::span<const float> vector) override { return inner_->upload(vector); }
  Status set_ngram_table(const artifact::NgramTableView& table, const backend::CopyWatch& watch) override {
    return inner_->set_ngram_table(table, watch);
  }
  [[nodiscard]] std::uint64_t ngram_copy_bytes(const artifact::NgramTableView& table) const override {
    return inner_->ngram_copy_bytes(table);
  }
  [[nodiscard]] std::uint64_t waits() const override { return inner_->waits(); }
  Status configure(const artifact::ModelConfig& config, backend::StateType state) override {
    return inner_->configure(config, state);
  }
  Status prepare_positions(std::int64_t positions) override { return inner_->prepare_positions(positions); }
  Status reserve_rows(std::int64_t rows) override { return inner_->reserve_rows(rows); }
  void embed(const backend::Matrix& embedding, std::span<const std::int32_t> tokens, float* x) override {
    inner_->embed(embedding, tokens, x);
  }
  Status ngram_request(std::span<const std::int64_t> ids) override { return inner_->ngram_request(ids); }
  Status ngram_lookup(std::span<const std::int64_t> ids, float* e) override { return inner_->ngram_lookup(ids, e); }
  void ple_begin(const backend::PleWeights& weights, std::span<const std::int64_t> ids) override {
    inner_->ple_begin(weights, ids);
  }
  void ple_inject(const backend::PleWeights& weights, const float* e, std::span<const backend::PleSlot> slots,
                  std::int64_t rows, float* x) override {
    inner_->ple_inject(weights, e, slots, rows, x);
  }
  void hyper_read(const backend::HyperWeights& weights, const float* x, std::int64_t rows, float* u,
                  float* inject) override {
    inner_->hyper_read(weights, x, rows, u, inject);
  }
  void hyper_write(const float* inject, const float* y, std::int64_t rows, float* x) override {
    inner_->hyper_write(inject, y, rows, x);
  }
  void delta_net(const backend::DeltaWeights& weights, const float* u, std::span<const backend::DeltaSlot> slots,
                 std::int64_t rows, float* y) override {
    inner_->delta_net(weights, u, slots, rows, y);
  }
  void attention(const backend::AttentionWeights& weights, const float* u,
                 std::span<const backend::AttentionSlot> slots, std::int64_t rows, float* y) override {
    inner_->attention(weights, u, slots, rows, y);
  }
  void attention_keys(const backend::AttentionWeights& weights, const float* u,
                      std::span<const backend::AttentionSlot> slots, std::int64_t rows) override {
    inner_->attention_keys(weights, u, slots, rows);
  }
  void experts(const backend::MoeWeights& weights, const float* u, std::int64_t rows, float* y) override {
    inner_->experts(weights, u, rows, y);
  }
  void project(const backend::Matrix& matrix, const float* u, std::int64_t rows, float* out) override {
    inner_->project(matrix, u, rows, out);
  }
  [[nodiscard]] std::int64_t draw_vocabulary() const override { return inner_->draw_vocabulary(); }
  void draw(const float* logits, std::int64_t width, std::span<const backend::DrawRequest> requests,
            std::span<backend::Drawn> out) override {
    inner_->draw(logits, width, requests, out);
  }
  void draft_input(const backend::DraftWeights& weights, const backend::Matrix& embedding,
                   std::span<const std::int32_t> tokens, const float* h, float* x) override {
    inner_->draft_input(weights, embedding, tokens, h, x);
  }
  void commit_delta(const backend::DeltaSlot& slot, std::int64_t keep) override { inner_->commit_delta(slot, keep); }
  void commit_conv(const backend::ConvSlot& slot, std::int64_t history, std::int64_t channels,
                   std::int64_t keep) override {
    inner_->commit_conv(slot, history, channels, keep);
  }

 protected:
  std::unique_ptr<backend::Backend> inner_;
};

}  // namespace lockstep::test
