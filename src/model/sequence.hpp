// One sequence: its tokens and every part of its state.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "model/model.hpp"
#include "model/state.hpp"

namespace lockstep::model {

class Sequence {
 public:
  static Result<Sequence> create(const Model& model);

  /// Tokens that have been through the model (captured ones count after commit()).
  [[nodiscard]] std::int64_t length() const { return kv_.length(); }
  [[nodiscard]] const std::vector<std::int32_t>& tokens() const { return history_.tokens(); }
  /// Rows in the draft layer's cache.
  [[nodiscard]] std::int64_t draft_length() const { return draft_ ? draft_->length() : 0; }

  /// True after a step failed in the middle and left its mark on the state: no step takes the sequence any more, and it
  /// can be neither saved nor forked, only restored or discarded.
  [[nodiscard]] bool broken() const { return broken_; }

  /// Drops rows of the draft layer's cache beyond `length`.
  void truncate_draft(std::int64_t length) { draft_->truncate(length); }

  /// Ends a captured step of `rows` rows: the first `keep` happened, the others leave no trace.
  void commit(std::int64_t rows, std::int64_t keep);

  /// The whole state as bytes: equal states give equal bytes. Not while a captured step is open, and not of a broken
  /// sequence. Without `draft` the draft layer's part is left out (for comparisons; restore() wants it).
  [[nodiscard]] std::vector<std::byte> save(bool draft = true) const;
  /// The same bytes cut into named parts, to say where two states differ.
  [[nodiscard]] std::vector<std::pair<std::string_view, std::vector<std::byte>>> save_parts(bool draft = true) const;
  /// Replaces the state by a saved one of a model with the same geometry and state type. It is built beside the present
  /// one, which an error leaves as it is. Errors: Invalid (not such a state, a token id outside the vocabulary), Limit.
  Status restore(std::span<const std::byte> saved);
  /// An independent copy; K/V pages are shared until one side writes. Errors: Limit; Io of a broken sequence.
  [[nodiscard]] Result<Sequence> fork() const;
  [[nodiscard]] std::size_t bytes() const;
  /// Bytes of everything a fork does not share: matrices, columns, rings and token ids, without what captures need.
  [[nodiscard]] std::size_t own_bytes() const;
  /// Calls visit(page, bytes) for every K/V page, the draft layer's too. Forks and restored copies share pages.
  template <class Visit>
  void for_each_page(Visit visit) const {
    for (const PageRef& page : kv_.pages()) visit(page.get(), model_->pages()->page_bytes());
    if (!draft_) return;
    for (const PageRef& page : draft_->pages()) visit(page.get(), model_->draft_pages()->page_bytes());
  }

 private:
  friend class Runner;
  /// Fills a new sequence.
  Status read(std::span<const std::byte> saved);
  Sequence(const Model& model, KvCache kv, ConvState conv, DeltaState delta)
      : model_(&model), kv_(std::move(kv)), conv_(std::move(conv)), delta_(std::move(delta)) {}

  const Model* model_;
  KvCache kv_;
  ConvState conv_;
  DeltaState delta_;
  std::optional<ConvState> ple_conv_;
  std::optional<KvCache> draft_;
  NgramHistory history_;
  bool broken_ = false;
};

}  // namespace lockstep::model
