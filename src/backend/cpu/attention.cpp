// Sparse attention layers on the CPU: keys and values in pages, group selection, attention over the selected positions.
#include <algorithm>

#include "backend/cpu/cpu_backend.hpp"

namespace lockstep::backend {

/// Finds once per layer what keys, selection and attention need to know of each slot. How many groups of index keys
/// become complete follows from where the slot's rows begin and how many they are.
void CpuBackend::bind(std::span<const AttentionSlot> slots) {
  const std::int64_t ratio = config_.indexer_ratio;
  const std::int64_t budget = config_.indexer_budget / ratio;
  bound_.clear();
  for (const AttentionSlot& slot : slots) {
    BoundSlot bound;
    bound.slot = slot;
    bound.keys = {slot.pages,
                  slot.layer_offset + layout_.keys,
                  slot.layer_offset + layout_.values,
                  slot.layer_offset + layout_.index,
                  element_,
                  config_.kv_heads,
                  config_.head_dim,
                  config_.indexer_dim,
                  ratio};
    bound.first_group = slot.position / ratio;
    bound.new_groups = (slot.position + slot.run.rows) / ratio - bound.first_group;
    // Rows see more groups the later they are, so those that must choose are the last ones of the run.
    bound.first_choice = std::clamp<std::int64_t>((budget + 1) * ratio - 1 - slot.position, 0, slot.run.rows);
    bound_.push_back(bound);
  }
}

void CpuBackend::attention(const AttentionWeights& weights, const float* u, std::span<const AttentionSlot> slots,
                           std::int64_t rows, float* y) {
  const std::int64_t heads = config_.attention_heads;
  const std::int64_t dim = config_.head_dim;
  const auto floats = [&](std::size_t slot, std::int64_t per_row) {
    return scratch_.at(slot).floats(static_cast<std::size_t>(rows * per_row));
  };
  float* q_gate = floats(0, 2 * heads * dim);
  float* k = floats(1, config_.kv_heads * dim);
  float* v = floats(2, config_.kv_heads * dim);
  float* index_qk = floats(3, (config_.indexer_heads + 1) * config_.indexer_dim);
  float* q = floats(4, heads * dim);
  float* out = floats(5, heads * dim);
  ProfileScope at(profile_, Part::AttentionProjections);
  Activations input = activations(u, rows, config_.hidden_size);
  matmul(*weights.q, input, q_gate);
  matmul(*weights.k, input, k);
  matmul(*weights.v, input, v);
  matmul(*weights.index_qk, input, index_qk);

  const std::int64_t width = max_attended();
  selected_.resize(std::max(selected_.size(), static_cast<std::size_t>(rows * width)));
  counts_.resize(std::max(counts_.size(), static_cast<std::size_t>(rows)));
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  bind(slots);
  for (const BoundSlot& bound : bound_) {
    const AttentionSlot& slot = bound.slot;
    at.next(Part::AttentionKeys);
    store_keys(weights, bound, k, v, index_qk);
    at.next(Part::AttentionSelection);
    (this->*select_)(weights, bound, index_qk, selected_.data(), counts_.data());
    at.next(Part::Attention);
    parallel(slot.run.rows, grain(4 * heads * dim), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int64_t row = slot.run.first_row + t;
        for (std::int64_t h = 0; h < heads; ++h) {
          kernels_.norm_rope(q_gate + (row * heads + h) * 2 * dim, weights.q_norm->floats(), dim, eps,
                             rotation(slot.position + t), q + (row * heads + h) * dim);
        }
      }
    });
  }
  attend_rows(q, selected_.data(), counts_.data(), rows, out);
  at.next(Part::AttentionOutput);
  parallel(rows * heads, grain(8 * dim), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) kernels_.sigmoid_gate(out + i * dim, q_gate + (2 * i + 1) * dim, dim);
  });
  Activations attended = activations(out, rows, heads * dim);
  matmul(*weights.o, attended, y);
}

void CpuBackend::attention_keys(const AttentionWeights& weights, const float* u, std::span<const AttentionSlot> slots,
                                std::int64_t rows) {
  const ProfileScope at(profile_, Part::AttentionKeys);
  const auto floats = [&](std::size_t slot, std::int64_t per_row) {
    return scratch_.at(slot).floats(static_cast<std::size_t>(rows * per_row));
  };
  float* k = floats(1, config_.kv_heads * config_.head_dim);
  float* v = floats(2, config_.kv_heads * config_.head_dim);
  float* index_qk = floats(3, (config_.indexer_heads + 1) * config_.indexer_dim);
  Activations input = activations(u, rows, config_.hidden_size);
  matmul(*weights.k, input, k);
  matmul(*weights.v, input, v);
  matmul(*weights.index_qk, input, index_qk);
  bind(slots);
  for (const BoundSlot& bound : bound_) store_keys(weights, bound, k, v, index_qk);
}

void CpuBackend::store_keys(const AttentionWeights& weights, const BoundSlot& bound, const float* k, const float* v,
                            const float* index_qk) {
  std::int64_t t = 0;
  for (std::int64_t i = 0; i < bound.new_groups; ++i) {
    const std::int64_t group = bound.first_group + i;
    const std::int64_t end = (group + 1) * config_.indexer_ratio - bound.slot.position;
    for (; t < end; ++t) store_row(weights, bound.slot, t, k, v, index_qk);
    pool_group(weights, bound.slot, group);  // before later rows take its place in the ring
  }
  for (; t < bound.slot.run.rows; ++t) store_row(weights, bound.slot, t, k, v, index_qk);
}

/// Key, value and raw index key of row t of a run.
void CpuBackend::store_row(const AttentionWeights& weights, const AttentionSlot& slot, std::int64_t t, const float* k,
                           const float* v, const float* index_qk) {
  const std::int64_t dim = config_.head_dim;
  const std::int64_t index_dim = config_.indexer_dim;
  const auto size = static_cast<std::int64_t>(kernels::element_size(element_));
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  float* normed = scratch_[6].floats(static_cast<std::size_t>(std::max(dim, index_dim)));
  const std::int64_t row = slot.run.first_row + t;
  const std::int64_t position = slot.position + t;
  std::byte* page = slot.pages[position / kernels::kPageTokens] + slot.layer_offset;
  for (std::int64_t h = 0; h < config_.kv_heads; ++h) {
    const std::int64_t source = (row * config_.kv_heads + h) * dim;
    const std::int64_t target = (position % kernels::kPageTokens * config_.kv_heads + h) * dim * size;
    kernels_.norm_rope(k + source, weights.k_norm->floats(), dim, eps, rotation(position), normed);
    kernels_.narrow(normed, dim, element_, page + layout_.keys + target);
    kernels_.narrow(v + source, dim, element_, page + layout_.values + target);
  }
  // The raw index key, rounded to the state type like everything that is kept.
  const float* raw = index_qk + (row * (config_.indexer_heads + 1) + config_.indexer_heads) * index_dim;
  float* kept = slot.raw_keys + position % raw_key_ring(config_.indexer_ratio) * index_dim;
  auto* narrowed = reinterpret_cast<std::byte*>(normed);
  kernels_.narrow(raw, index_dim, element_, narrowed);
  kernels_.widen(narrowed, index_dim, element_, kept);
}

/// The pooled index key of a group whose raw keys are in the ring.
void CpuBackend::pool_group(const AttentionWeights& weights, const AttentionSlot& slot, std::int64_t group) {
  const std::int64_t index_dim = config_.indexer_dim;
  const std::int64_t ratio = config_.indexer_ratio;
  const auto size = static_cast<std::int64_t>(kernels::element_size(element_));
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  float* pooled = scratch_[6].floats(static_cast<std::size_t>((ratio + 1) * index_dim));
  const std::int64_t first = group * ratio;
  for (std::int64_t i = 0; i < ratio; ++i) {
    const float* raw = slot.raw_keys + (first + i) % raw_key_ring(ratio) * index_dim;
    std::copy_n(raw, index_dim, pooled + (i + 1) * index_dim);
  }
  kernels_.pool_index_key(pooled + index_dim, ratio, weights.index_k_norm->floats(), index_dim, eps, rotation(first),
                          pooled);
  std::byte* page = slot.pages[first / kernels::kPageTokens] + slot.layer_offset;
  const std::int64_t in_page = first % kernels::kPageTokens / ratio;
  kernels_.narrow(pooled, index_dim, element_, page + layout_.index + in_page * index_dim * size);
}

void CpuBackend::select_positions(const AttentionWeights& weights, const BoundSlot& bound, const float* index_qk,
                                  std::int32_t* positions, std::int64_t* counts) {
  const std::int64_t rows = bound.slot.run.rows;
  const std::int64_t budget = config_.indexer_budget / config_.indexer_ratio;
  const std::int64_t query = config_.indexer_heads * config_.indexer_dim;
  const std::int64_t most_groups = (bound.slot.position + rows) / config_.indexer_ratio;
  // With enough rows each thread takes some, so that sorting is shared too; few rows share the scores of each.
  const auto threads = static_cast<std::int64_t>(pool_.threads());
  const std::int64_t choosing = rows - bound.first_choice;
  const bool by_rows = choosing >= 2 * threads && choosing * most_groups * query >= min_work_;
  const std::int64_t teams = by_rows ? threads : 1;
  const auto places = static_cast<std::size_t>(teams * (most_groups + 1));
  float* q = scratch_[6].floats(static_cast<std::size_t>(teams * query));
  float* scores = scratch_[7].floats(places);
  order_.resize(std::max(order_.size(), places));
  chosen_.resize(std::max(chosen_.size(), static_cast<std::size_t>(teams * budget)));
  const auto team = [&](std::int64_t index) {
    return RowChoice{q + index * query, scores + index * (most_groups + 1), chosen_.data() + index * budget,
                     order_.data() + index * (most_groups + 1), !by_rows};
  };
  for (std::int64_t t = 0; t < (by_rows ? bound.first_choice : rows); ++t) {
    select_row(weights, bound, index_qk, t, team(0), positions, counts);
  }
  if (!by_rows) return;
  // Later rows see more groups: threads take turns.
  parallel(threads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t t = bound.first_choice + i; t < rows; t += threads) {
        select_row(weights, bound, index_qk, t, team(i), positions, counts);
      }
    }
  });
}

void CpuBackend::index_query(const AttentionWeights& weights, const AttentionSlot& slot, const float* index_qk,
                             std::int64_t t, float* q) {
  const std::int64_t heads = config_.indexer_heads;
  const std::int64_t dim = config_.indexer_dim;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const float* source = index_qk + (slot.run.first_row + t) * (heads + 1) * dim;
  for (std::int64_t h = 0; h < heads; ++h) {
    kernels_.norm_rope(source + h * dim, weights.index_q_norm->floats(), dim, eps, rotation(slot.position + t),
                       q + h * dim);
  }
}

/// The positions that row t of a run attends to.
void CpuBackend::select_row(const AttentionWeights& weights, const BoundSlot& bound, const float* index_qk,
                            std::int64_t t, const RowChoice& choice, std::int32_t* positions, std::int64_t* counts) {
  const std::int64_t budget = config_.indexer_budget / config_.indexer_ratio;
  const std::int64_t heads = config_.indexer_heads;
  RowPositions list(*this, bound.slot, t, positions);
  const std::int64_t groups = list.groups();
  if (groups <= budget) {
    list.take_groups(0, groups);
  } else {
    index_query(weights, bound.slot, index_qk, t, choice.q);
    const auto score = [&](std::int64_t begin, std::int64_t end) {
      kernels_.index_scores(bound.keys, choice.q, heads, begin, end, choice.scores);
    };
    if (choice.share) {
      parallel(groups, grain(heads * config_.indexer_dim), score);
    } else {
      score(0, groups);
    }
    kernels_.top_k(choice.scores, groups, budget, choice.chosen, choice.order);
    std::sort(choice.chosen, choice.chosen + budget);
    for (std::int64_t i = 0; i < budget; ++i) list.take_groups(choice.chosen[i], 1);
  }
  counts[bound.slot.run.first_row + t] = list.finish();
}

void CpuBackend::attend_rows(const float* q, const std::int32_t* positions, const std::int64_t* counts,
                             std::int64_t rows, float* out) {
  const std::int64_t dim = config_.head_dim;
  const std::int64_t shared = config_.attention_heads / config_.kv_heads;
  const std::int64_t scratch_size = kernels::attention_scratch(shared, dim);
  // One piece of work is the heads of one KV head of one row. A single row has few of them, so each is cut in parts
  // when that keeps more threads busy; the parts read the same keys.
  const auto threads = static_cast<std::int64_t>(pool_.threads());
  std::int64_t parts = 1;
  while (rows * config_.kv_heads * parts < threads && shared % (2 * parts) == 0) parts *= 2;
  const std::int64_t part_heads = shared / parts;
  const std::int64_t total = rows * config_.kv_heads * parts;
  float* scratch = scratch_[8].floats(static_cast<std::size_t>(threads * scratch_size));
  for (const BoundSlot& bound : bound_) {
    const AttentionSlot& slot = bound.slot;
    const std::int64_t work = slot.run.rows * total / rows;
    const std::int64_t share = (work + threads - 1) / threads;
    const bool tiny = work * part_heads * counts[slot.run.first_row + slot.run.rows - 1] * dim < min_work_;
    parallel(threads, tiny ? threads : 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin * share; i < std::min(work, end * share); ++i) {
        const std::int64_t row = slot.run.first_row + i / (config_.kv_heads * parts);
        const std::int64_t kv_head = i / parts % config_.kv_heads;
        const std::int64_t head = kv_head * shared + i % parts * part_heads;
        const std::int64_t at = (row * config_.attention_heads + head) * dim;
        kernels_.attend(bound.keys, kv_head, q + at, part_heads, positions + row * max_attended(), counts[row],
                        out + at, scratch + begin * scratch_size);
      }
    });
  }
}

}  // namespace lockstep::backend
