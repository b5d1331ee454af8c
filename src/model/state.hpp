// The parts of a sequence's state. Nothing else may carry information between steps (docs/architecture.md "State").
//
// Every part knows append or capture, rollback (truncate or commit), save, restore and fork. A fork shares what it can
// and copies the rest; the original and the fork then evolve independently.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "artifact/config.hpp"
#include "backend/backend.hpp"
#include "model/page_pool.hpp"

namespace lockstep::model {

/// Reads and writes the bytes of a saved state; the reader checks every size.
class StateWriter {
 public:
  StateWriter(backend::Backend& backend, std::vector<std::byte>& out) : backend_(backend), out_(out) {}
  void device(const std::byte* data, std::size_t bytes);
  void host(const void* data, std::size_t bytes);

 private:
  backend::Backend& backend_;
  std::vector<std::byte>& out_;
};

class StateReader {
 public:
  StateReader(backend::Backend& backend, std::span<const std::byte> in) : backend_(backend), in_(in) {}
  Status device(std::byte* to, std::size_t bytes);
  Status host(void* to, std::size_t bytes);
  [[nodiscard]] std::size_t left() const { return in_.size(); }

 private:
  backend::Backend& backend_;
  std::span<const std::byte> in_;
};

/// Attention K/V and pooled index keys in pages, for `layers` layers that share one page table, and the raw index keys
/// of the newest positions. Truncation may go back at most raw_key_ring - ratio positions at a time.
class KvCache {
 public:
  static Result<KvCache> create(backend::Backend& backend, std::shared_ptr<PagePool> pool,
                                const artifact::ModelConfig& config, backend::StateType type, std::int64_t layers);

  /// Pages for positions below `length() + rows`, none of those to be written shared with another owner.
  Status prepare(std::int64_t rows);
  void append(std::int64_t rows) { length_ += rows; }
  void truncate(std::int64_t length);
  [[nodiscard]] std::int64_t length() const { return length_; }
  /// Slot of layer `layer` (0-based among the cache's layers) for rows from position length().
  [[nodiscard]] backend::AttentionSlot slot(std::int64_t layer, backend::Run run);

  void save(StateWriter& writer) const;
  /// Replaces the content by `length` saved positions.
  Status restore(StateReader& reader, std::int64_t length);
  Result<KvCache> fork() const;
  /// Bytes of pages and rings this cache refers to (shared pages counted fully).
  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] std::span<const PageRef> pages() const { return pages_; }
  [[nodiscard]] std::size_t ring_bytes() const { return raw_keys_->size(); }

 private:
  KvCache(backend::Backend& backend, std::shared_ptr<PagePool> pool) : backend_(&backend), pool_(std::move(pool)) {}

  backend::Backend* backend_;
  std::shared_ptr<PagePool> pool_;
  backend::PageLayout layout_;
  /// Calls body(bytes of the state, size) for every piece that belongs to the first length_ positions.
  template <class Body>
  Status each_piece(Body body) const;

  std::int64_t layers_ = 0, ring_ = 0, ratio_ = 0, index_dim_ = 0, length_ = 0;
  std::size_t token_bytes_ = 0, group_bytes_ = 0;  ///< of K (or V) of a position, of a pooled key, in one layer
  std::vector<PageRef> pages_;
  std::vector<std::byte*> table_;
  backend::BufferPtr raw_keys_;  ///< [layers, ring, index_dim]
};

/// The last columns of one causal convolution in each of `layers` layers.
class ConvState {
 public:
  static Result<ConvState> create(backend::Backend& backend, std::int64_t layers, std::int64_t history,
                                  std::int64_t channels);

  /// Room to capture `rows` rows; kept for later captures.
  Status prepare_capture(std::int64_t rows);
  [[nodiscard]] backend::ConvSlot slot(std::int64_t layer, bool capture);
  /// The first `keep` captured rows happened.
  void commit(std::int64_t keep);

  void save(StateWriter& writer) const;
  Status restore(StateReader& reader);
  Result<ConvState> fork() const;
  [[nodiscard]] std::size_t bytes() const { return columns_->size(); }

 private:
  explicit ConvState(backend::Backend& backend) : backend_(&backend) {}

  backend::Backend* backend_;
  std::int64_t layers_ = 0, history_ = 0, channels_ = 0, capture_rows_ = 0;
  backend::BufferPtr columns_;   ///< [layers, history, channels]
  backend::BufferPtr captured_;  ///< [layers, capture_rows, channels]
};

/// The recurrent matrices of all GDN layers. A captured run writes the state after its last row into a second buffer
/// and keeps each row's rank-one factors: accepting all rows swaps the buffers, accepting fewer replays their updates
/// elementwise from the old state, which performs the same operations as the step did (docs/numerics.md N6).
class DeltaState {
 public:
  static Result<DeltaState> create(backend::Backend& backend, const artifact::ModelConfig& config, std::int64_t layers);

  Status prepare_capture(std::int64_t rows);
  [[nodiscard]] backend::DeltaSlot slot(std::int64_t layer, backend::Run run, bool capture);
  void commit(std::int64_t rows, std::int64_t keep);

  void save(StateWriter& writer) const;
  Status restore(StateReader& reader);
  Result<DeltaState> fork() const;
  [[nodiscard]] std::size_t bytes() const { return state_->size(); }

 private:
  explicit DeltaState(backend::Backend& backend) : backend_(&backend) {}

  backend::Backend* backend_;
  std::int64_t layers_ = 0, capture_rows_ = 0;
  std::int64_t layer_floats_ = 0, key_floats_ = 0, value_floats_ = 0, heads_ = 0;
  backend::BufferPtr state_, next_;  ///< [layers, value heads, key dim, value dim]; next_ exists after a capture
  backend::BufferPtr keys_, deltas_, decays_;
};

/// The token ids of the sequence. The n-gram hash looks back by position, so a rewind cannot leave wrong history.
class NgramHistory {
 public:
  /// Room for that many more tokens, so that append() cannot fail. Errors: Limit.
  Status reserve(std::size_t more);
  void append(std::span<const std::int32_t> tokens) { tokens_.insert(tokens_.end(), tokens.begin(), tokens.end()); }
  void truncate(std::int64_t length) { tokens_.resize(static_cast<std::size_t>(length)); }
  [[nodiscard]] const std::vector<std::int32_t>& tokens() const { return tokens_; }

  void save(StateWriter& writer) const { writer.host(tokens_.data(), tokens_.size() * sizeof(std::int32_t)); }
  /// Reads `length` ids, which `reader` has. Errors: Invalid for an id outside [0, vocabulary).
  Status restore(StateReader& reader, std::int64_t length, std::int64_t vocabulary);
  [[nodiscard]] NgramHistory fork() const { return *this; }

 private:
  std::vector<std::int32_t> tokens_;
};

}  // namespace lockstep::model
