#include "model/state.hpp"

#include <algorithm>
#include <cstring>
#include <exception>

#include "kernels/cpu/kernels.hpp"

namespace lockstep::model {
namespace {

std::byte* raw(backend::Buffer& buffer) {
  return buffer.data();
}

Result<backend::BufferPtr> clone(backend::Backend& backend, backend::Buffer& from) {
  backend::BufferPtr copy = LOCKSTEP_TRY(backend.allocate(from.size()));
  backend.copy(copy->data(), from.data(), from.size());
  return copy;
}

std::size_t float_bytes(std::int64_t n) {
  return static_cast<std::size_t>(n) * sizeof(float);
}

}  // namespace

void StateWriter::device(const std::byte* data, std::size_t bytes) {
  const std::size_t at = out_.size();
  out_.resize(at + bytes);
  backend_.read(out_.data() + at, data, bytes);
}

void StateWriter::host(const void* data, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  out_.insert(out_.end(), begin, begin + bytes);
}

Status StateReader::device(std::byte* to, std::size_t bytes) {
  if (bytes > in_.size())
    return fail(ErrorKind::Invalid, "saved state ends early: {} bytes missing", bytes - in_.size());
  backend_.write(to, in_.data(), bytes);
  in_ = in_.subspan(bytes);
  return {};
}

Status StateReader::host(void* to, std::size_t bytes) {
  if (bytes > in_.size())
    return fail(ErrorKind::Invalid, "saved state ends early: {} bytes missing", bytes - in_.size());
  if (bytes == 0) return {};  // an empty list has no address
  std::memcpy(to, in_.data(), bytes);
  in_ = in_.subspan(bytes);
  return {};
}

Result<KvCache> KvCache::create(backend::Backend& backend, std::shared_ptr<PagePool> pool,
                                const artifact::ModelConfig& config, backend::StateType type, std::int64_t layers) {
  KvCache cache(backend, std::move(pool));
  cache.layout_ = backend::page_layout(config, type);
  cache.layers_ = layers;
  cache.ratio_ = config.indexer_ratio;
  cache.ring_ = backend::raw_key_ring(config.indexer_ratio);
  cache.index_dim_ = config.indexer_dim;
  const std::size_t element = type == backend::StateType::F32 ? 4 : 2;
  cache.token_bytes_ = static_cast<std::size_t>(config.kv_heads * config.head_dim) * element;
  cache.group_bytes_ = static_cast<std::size_t>(config.indexer_dim) * element;
  cache.raw_keys_ = LOCKSTEP_TRY(backend.allocate(float_bytes(layers * cache.ring_ * cache.index_dim_)));
  return cache;
}

Status KvCache::prepare(std::int64_t rows) {
  const std::int64_t last = (length_ + rows + kernels::kPageTokens - 1) / kernels::kPageTokens;
  const std::int64_t first_written = length_ / kernels::kPageTokens;
  for (std::int64_t i = first_written; i < std::min<std::int64_t>(last, static_cast<std::int64_t>(pages_.size()));
       ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (pages_[at].use_count() == 1) continue;
    PageRef own = LOCKSTEP_TRY(pool_->acquire());
    backend_->copy(own->memory->data(), pages_[at]->memory->data(), pool_->page_bytes());
    pages_[at] = std::move(own);
    table_[at] = pages_[at]->memory->data();
  }
  while (static_cast<std::int64_t>(pages_.size()) < last) {
    pages_.push_back(LOCKSTEP_TRY(pool_->acquire()));
    table_.push_back(pages_.back()->memory->data());
  }
  return {};
}

void KvCache::truncate(std::int64_t length) {
  length_ = length;
  const auto pages = static_cast<std::size_t>((length + kernels::kPageTokens - 1) / kernels::kPageTokens);
  pages_.resize(std::min(pages_.size(), pages));
  table_.resize(pages_.size());
}

backend::AttentionSlot KvCache::slot(std::int64_t layer, backend::Run run) {
  return {run, length_, table_.data(), static_cast<std::size_t>(layer) * layout_.bytes,
          raw_keys_->floats() + layer * ring_ * index_dim_};
}

// Whole pages would carry bytes of positions that were rolled back; only what belongs to the state is visited, so that
// equal states are equal bytes.
template <class Body>
Status KvCache::each_piece(Body body) const {
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    const std::int64_t left = length_ - static_cast<std::int64_t>(i) * kernels::kPageTokens;
    const auto tokens = static_cast<std::size_t>(std::min(kernels::kPageTokens, left));
    const std::size_t groups = tokens / static_cast<std::size_t>(ratio_);
    for (std::int64_t layer = 0; layer < layers_; ++layer) {
      std::byte* block = table_[i] + static_cast<std::size_t>(layer) * layout_.bytes;
      LOCKSTEP_TRY(body(block + layout_.keys, tokens * token_bytes_));
      LOCKSTEP_TRY(body(block + layout_.values, tokens * token_bytes_));
      LOCKSTEP_TRY(body(block + layout_.index, groups * group_bytes_));
    }
  }
  for (std::int64_t layer = 0; layer < layers_; ++layer) {
    for (std::int64_t p = length_ - length_ % ratio_; p < length_; ++p) {
      float* key = raw_keys_->floats() + (layer * ring_ + p % ring_) * index_dim_;
      LOCKSTEP_TRY(body(reinterpret_cast<std::byte*>(key), float_bytes(index_dim_)));
    }
  }
  return {};
}

void KvCache::save(StateWriter& writer) const {
  (void)each_piece([&](const std::byte* data, std::size_t bytes) -> Status {
    writer.device(data, bytes);
    return {};
  });
}

Status KvCache::restore(StateReader& reader, std::int64_t length) {
  truncate(0);
  LOCKSTEP_TRY(prepare(length));
  length_ = length;
  return each_piece([&](std::byte* data, std::size_t bytes) { return reader.device(data, bytes); });
}

Result<KvCache> KvCache::fork() const {
  KvCache copy(*backend_, pool_);
  copy.layout_ = layout_;
  copy.layers_ = layers_;
  copy.ring_ = ring_;
  copy.ratio_ = ratio_;
  copy.index_dim_ = index_dim_;
  copy.token_bytes_ = token_bytes_;
  copy.group_bytes_ = group_bytes_;
  copy.length_ = length_;
  copy.pages_ = pages_;
  copy.table_ = table_;
  copy.raw_keys_ = LOCKSTEP_TRY(clone(*backend_, *raw_keys_));
  return copy;
}

std::size_t KvCache::bytes() const {
  return pages_.size() * pool_->page_bytes() + raw_keys_->size();
}

Result<ConvState> ConvState::create(backend::Backend& backend, std::int64_t layers, std::int64_t history,
                                    std::int64_t channels) {
  ConvState state(backend);
  state.layers_ = layers;
  state.history_ = history;
  state.channels_ = channels;
  state.columns_ = LOCKSTEP_TRY(backend.allocate(float_bytes(layers * history * channels)));
  return state;
}

Status ConvState::prepare_capture(std::int64_t rows) {
  if (rows <= capture_rows_) return {};
  captured_ = LOCKSTEP_TRY(backend_->allocate(float_bytes(layers_ * rows * channels_)));
  capture_rows_ = rows;
  return {};
}

backend::ConvSlot ConvState::slot(std::int64_t layer, bool capture) {
  return {columns_->floats() + layer * history_ * channels_,
          capture ? captured_->floats() + layer * capture_rows_ * channels_ : nullptr};
}

void ConvState::commit(std::int64_t keep) {
  for (std::int64_t layer = 0; layer < layers_; ++layer) {
    backend_->commit_conv(slot(layer, true), history_, channels_, keep);
  }
}

void ConvState::save(StateWriter& writer) const {
  writer.device(raw(*columns_), float_bytes(layers_ * history_ * channels_));
}

Status ConvState::restore(StateReader& reader) {
  return reader.device(raw(*columns_), float_bytes(layers_ * history_ * channels_));
}

Result<ConvState> ConvState::fork() const {
  ConvState copy(*backend_);
  copy.layers_ = layers_;
  copy.history_ = history_;
  copy.channels_ = channels_;
  copy.columns_ = LOCKSTEP_TRY(clone(*backend_, *columns_));
  return copy;
}

Result<DeltaState> DeltaState::create(backend::Backend& backend, const artifact::ModelConfig& config,
                                      std::int64_t layers) {
  DeltaState state(backend);
  state.layers_ = layers;
  state.heads_ = config.linear_value_heads;
  state.layer_floats_ = config.linear_value_heads * config.linear_key_dim * config.linear_value_dim;
  state.key_floats_ = config.linear_key_heads * config.linear_key_dim;
  state.value_floats_ = config.value_size();
  state.state_ = LOCKSTEP_TRY(backend.allocate(float_bytes(layers * state.layer_floats_)));
  return state;
}

Status DeltaState::prepare_capture(std::int64_t rows) {
  if (next_ == nullptr) next_ = LOCKSTEP_TRY(backend_->allocate(float_bytes(layers_ * layer_floats_)));
  if (rows <= capture_rows_) return {};
  keys_ = LOCKSTEP_TRY(backend_->allocate(float_bytes(layers_ * rows * key_floats_)));
  deltas_ = LOCKSTEP_TRY(backend_->allocate(float_bytes(layers_ * rows * value_floats_)));
  decays_ = LOCKSTEP_TRY(backend_->allocate(float_bytes(layers_ * rows * heads_)));
  capture_rows_ = rows;
  return {};
}

backend::DeltaSlot DeltaState::slot(std::int64_t layer, backend::Run run, bool capture) {
  backend::DeltaSlot slot;
  slot.run = run;
  slot.state = state_->floats() + layer * layer_floats_;
  slot.next_state = state_->floats() + layer * layer_floats_;
  if (capture) {
    slot.next_state = next_->floats() + layer * layer_floats_;
    slot.keys = keys_->floats() + layer * capture_rows_ * key_floats_;
    slot.deltas = deltas_->floats() + layer * capture_rows_ * value_floats_;
    slot.decays = decays_->floats() + layer * capture_rows_ * heads_;
  }
  return slot;
}

void DeltaState::commit(std::int64_t rows, std::int64_t keep) {
  if (keep == 0) return;
  if (keep < rows) {
    for (std::int64_t layer = 0; layer < layers_; ++layer) backend_->commit_delta(slot(layer, {0, rows}, true), keep);
  }
  std::swap(state_, next_);
}

Status NgramHistory::restore(StateReader& reader, std::int64_t length, std::int64_t vocabulary) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(length));
  LOCKSTEP_TRY(reader.host(tokens.data(), tokens.size() * sizeof(std::int32_t)));
  const auto bad = std::ranges::find_if(tokens, [&](std::int32_t id) { return id < 0 || id >= vocabulary; });
  if (bad != tokens.end()) {
    return fail(ErrorKind::Invalid, "saved state has token id {} at position {}, outside the vocabulary of {}", *bad,
                bad - tokens.begin(), vocabulary);
  }
  tokens_ = std::move(tokens);
  return {};
}

Status NgramHistory::reserve(std::size_t more) {
  const std::size_t needed = tokens_.size() + more;
  if (needed <= tokens_.capacity()) return {};
  try {
    tokens_.reserve(
        std::max(needed, 2 * tokens_.capacity()));  // in steps of a token it would copy all of them each time
  } catch (const std::exception&) {                 // bad_alloc, length_error
    return fail(ErrorKind::Limit, "cannot allocate memory for the ids of {} tokens", needed);
  }
  return {};
}

void DeltaState::save(StateWriter& writer) const {
  writer.device(raw(*state_), float_bytes(layers_ * layer_floats_));
}

Status DeltaState::restore(StateReader& reader) {
  return reader.device(raw(*state_), float_bytes(layers_ * layer_floats_));
}

Result<DeltaState> DeltaState::fork() const {
  DeltaState copy(*backend_);
  copy.layers_ = layers_;
  copy.heads_ = heads_;
  copy.layer_floats_ = layer_floats_;
  copy.key_floats_ = key_floats_;
  copy.value_floats_ = value_floats_;
  copy.state_ = LOCKSTEP_TRY(clone(*backend_, *state_));
  return copy;
}

}  // namespace lockstep::model
