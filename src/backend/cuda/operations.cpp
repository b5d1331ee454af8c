// The coarse operations on CUDA, in the order of their kernels.
#include <algorithm>
#include <cstring>

#include "backend/cuda/device_backend.hpp"
#include "backend/device_memory.hpp"
#include "kernels/cpu/kernels.hpp"
#include "kernels/cuda/few_delta.hpp"
#include "kernels/cuda/hyper.hpp"
#include "kernels/cuda/ngram_few.hpp"
#include "kernels/cuda/residual.hpp"
#include "kernels/cuda/several.hpp"
#include "kernels/cuda/several_hyper.hpp"
#include "kernels/cuda/tiles.hpp"

namespace lockstep::backend {
namespace {

namespace cuda = kernels::cuda;

}  // namespace

void DeviceBackend::embed(const Matrix& embedding, std::span<const std::int32_t> tokens, float* x) {
  lookup(embedding, tokens, config_.streams, x);
}

Status DeviceBackend::ngram_lookup(std::span<const std::int64_t> row_ids, float* e) {
  if (table_ != nullptr) {
    LOCKSTEP_TRY(table_->check(row_ids));
    const std::int64_t room = std::max(std::ssize(row_ids), reserved_rows_ * config_.ngram_heads());
    auto* ids =
        static_cast<std::int64_t*>(row_ids_.bytes(*this, static_cast<std::size_t>(room) * sizeof(std::int64_t)));
    send(ids, row_ids.data(), row_ids.size_bytes());
    table_->lookup(ids, std::ssize(row_ids), e);
    return health();
  }
  queue_.flush();  // the layers in front run while the rows are read
  const std::size_t values = row_ids.size() * static_cast<std::size_t>(config_.ngram_row_dim());
  if (ngram_rows_.size() < values) ngram_rows_.resize(values);
  LOCKSTEP_TRY(ngram_->gather(row_ids, ngram_rows_.data()));
  send(e, ngram_rows_.data(), values * sizeof(float));
  return health();
}

void DeviceBackend::ple_inject(const PleWeights& weights, const float* e, std::span<const PleSlot> slots,
                               std::int64_t rows, float* x) {
  const std::int64_t wide = config_.wide_size();
  const std::int64_t hidden = config_.hidden_size;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  auto* key = scratch(0, rows, wide);
  auto* value = scratch(1, rows, hidden);
  auto* gated = scratch(2, rows, wide);
  auto* normed = scratch(3, rows, wide);
  auto* conv = scratch(4, rows, wide);
  std::vector<cuda::ConvRun> runs;
  for (const PleSlot& slot : slots) {
    runs.push_back({slot.conv.columns, slot.conv.captured, static_cast<std::int32_t>(slot.run.first_row),
                    static_cast<std::int32_t>(slot.run.rows)});
  }
  const cuda::ConvShape shape{wide, static_cast<int>(config_.ple_conv_kernel), static_cast<int>(config_.ngram_size)};
  const auto& key_matrix = static_cast<const DeviceMatrix&>(*weights.key);
  const auto& value_matrix = static_cast<const DeviceMatrix&>(*weights.value);
  const cuda::NgramLayer layer{&key_matrix.dense,
                               &value_matrix.dense,
                               weights.norm_key->floats(),
                               weights.norm_query->floats(),
                               weights.norm_conv->floats(),
                               weights.conv->floats(),
                               static_cast<int>(config_.streams),
                               static_cast<int>(hidden),
                               eps};
  if (!key_matrix.quantised && !value_matrix.quantised && cuda::ngram_few_takes(layer, shape, rows)) {
    cuda::ngram_few(queue_, layer, e, runs, rows, key, value, x);
    return;
  }
  Input embedded(*this, e, rows, config_.ple_dim);
  multiply({{*weights.key, embedded, key}, {*weights.value, embedded, value}});
  cuda::rms_norm(queue_, key, weights.norm_key->floats(), rows, config_.streams, hidden, eps, key);
  cuda::rms_norm(queue_, x, weights.norm_query->floats(), rows, config_.streams, hidden, eps, normed);
  cuda::ple_gate(queue_, key, normed, value, rows, config_.streams, hidden, gated);
  cuda::rms_norm(queue_, gated, weights.norm_conv->floats(), rows, config_.streams, hidden, eps, normed);
  cuda::conv_silu(queue_, runs, shape, normed, weights.conv->floats(), conv);
  cuda::add_sum(queue_, x, gated, conv, rows * wide);
}

bool DeviceBackend::hyper_few(const HyperWeights& weights, const float* x, std::int64_t rows, float* u, float* inject) {
  constexpr std::int64_t kMostRows = 8;  // read again for every four rows, from the cache
  const bool several = rows > kMostRows && rows <= cuda::kSeveralRows;
  const auto dense = [](const MatrixPtr& matrix) -> const cuda::DenseWeights* {
    const auto& device = static_cast<const DeviceMatrix&>(*matrix);
    return device.quantised ? nullptr : &device.dense;
  };
  const cuda::DenseWeights* down = dense(weights.down);
  const cuda::DenseWeights* up = dense(weights.up);
  const cuda::DenseWeights* inject_weights = inject == nullptr ? nullptr : dense(weights.inject);
  if ((rows > kMostRows && !several) || down == nullptr || up == nullptr ||
      (inject != nullptr && inject_weights == nullptr)) {
    return false;
  }
  const cuda::HyperShape shape{static_cast<int>(config_.streams), static_cast<int>(config_.hidden_size),
                               static_cast<int>(down->rows), static_cast<float>(config_.rms_norm_eps)};
  if (several) {
    if (!cuda::several_site_takes(shape, *down, *up, inject_weights)) return false;
    auto* n = scratch(0, rows, config_.wide_size());
    cuda::several_site(queue_, shape, weights.norm->floats(), *down, *up, inject_weights, x, rows, n,
                       scratch(1, rows, down->rows), u, inject);
    return true;
  }
  if (!cuda::hyper_site_takes(shape, *down, *up, inject_weights)) return false;
  auto* low = scratch(1, rows, down->rows);
  auto* inverse = scratch(2, rows, config_.wide_size());
  for (std::int64_t first = 0; first < rows; first += cuda::kHyperRows) {
    cuda::hyper_site(queue_, shape, weights.norm->floats(), *down, *up, inject_weights, x + first * config_.wide_size(),
                     std::min(cuda::kHyperRows, rows - first), low, inverse, u + first * config_.hidden_size,
                     inject == nullptr ? nullptr : inject + first * config_.streams);
  }
  return true;
}

bool DeviceBackend::multiply_both(const HyperWeights& weights, const float* n, std::int64_t rows, float* low,
                                  float* inject) {
  const auto& down = static_cast<const DeviceMatrix&>(*weights.down);
  const auto& few = static_cast<const DeviceMatrix&>(*weights.inject);
  if (down.quantised || few.quantised || few.dense.wide) return false;
  const std::array<cuda::DenseTileProduct, 2> products{{{&down.dense, low}, {&few.dense, inject}}};
  if (cuda::dense_tiles_take(down.dense, rows)) {
    cuda::dense_tiles(queue_, products, n, rows);
    return true;
  }
  if (!cuda::dense_long_takes(down.dense, rows)) return false;
  cuda::dense_long(queue_, products, n, rows);
  return true;
}

void DeviceBackend::hyper_read(const HyperWeights& weights, const float* x, std::int64_t rows, float* u,
                               float* inject) {
  if (hyper_few(weights, x, rows, u, inject)) return;
  const std::int64_t wide = config_.wide_size();
  const std::int64_t lowrank = weights.down->rows();
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  auto* n = scratch(0, rows, wide);
  auto* low = scratch(1, rows, lowrank);
  cuda::rms_norm(queue_, x, weights.norm->floats(), rows, config_.streams, config_.hidden_size, eps, n);
  Input normed(*this, n, rows, wide);
  if (inject == nullptr) {
    multiply({{*weights.down, normed, low}});
  } else if (!multiply_both(weights, n, rows, low, inject)) {
    multiply({{*weights.down, normed, low}, {*weights.inject, normed, inject}});
  }
  cuda::silu_divided(queue_, low, rows * lowrank, static_cast<float>(config_.streams), inject, rows * config_.streams);
  const auto& up = static_cast<const DeviceMatrix&>(*weights.up);
  if (!up.quantised && cuda::dense_gated_takes(up.dense, config_.streams, rows)) {
    cuda::dense_gated(queue_, up.dense, low, rows, n, u);
    return;
  }
  auto* gate = scratch(2, rows, wide);
  Input lowered(*this, low, rows, lowrank);
  multiply({{*weights.up, lowered, gate}});
  cuda::gated_mean(queue_, gate, n, rows, config_.streams, config_.hidden_size, u);
}

void DeviceBackend::hyper_write(const float* inject, const float* y, std::int64_t rows, float* x) {
  cuda::inject(queue_, x, inject, y, rows, config_.streams, config_.hidden_size);
}

cuda::DeltaShape DeviceBackend::delta_shape() const {
  return {static_cast<int>(config_.linear_key_heads), static_cast<int>(config_.linear_value_heads),
          static_cast<int>(config_.linear_key_dim), static_cast<int>(config_.linear_value_dim)};
}

void DeviceBackend::delta_net(const DeltaWeights& weights, const float* u, std::span<const DeltaSlot> slots,
                              std::int64_t rows, float* y) {
  delta_into(weights, u, slots, rows, {y, nullptr, nullptr, 0});
}

bool DeviceBackend::take_settled(std::span<const DeltaSlot> slots) {
  bool settled = true;
  for (const DeltaSlot& slot : slots) {
    settled = settled && !written_.contains(slot.state) && !written_.contains(slot.conv.columns);
  }
  for (const DeltaSlot& slot : slots) {
    written_.insert(slot.next_state);
    written_.insert(slot.conv.columns);
  }
  return settled;
}

void DeviceBackend::delta_into(const DeltaWeights& weights, const float* u, std::span<const DeltaSlot> slots,
                               std::int64_t rows, const cuda::Tail& tail) {
  const cuda::DeltaShape shape = delta_shape();
  const std::int64_t channels = config_.conv_channels();
  const std::int64_t values = config_.value_size();
  const std::int64_t heads = config_.linear_value_heads;
  auto* qkv = scratch(0, rows, channels);
  auto* z = scratch(1, rows, values);
  auto* a = scratch(2, rows, heads);
  auto* b = scratch(3, rows, heads);
  auto* conv = scratch(4, rows, channels);
  auto* decay = scratch(5, rows, heads);
  auto* beta = scratch(6, rows, heads);
  auto* units = scratch(7, rows, 2 * shape.key_size());
  auto* o = scratch(8, rows, values);
  Input input(*this, u, rows, config_.hidden_size);
  const std::initializer_list<Product> projections{
      {*weights.qkv, input, qkv}, {*weights.z, input, z}, {*weights.a, input, a}, {*weights.b, input, b}};
  if (!multiply_few(projections)) multiply(projections);
  std::vector<cuda::ConvRun> convs;
  std::vector<cuda::DeltaRun> runs;
  for (const DeltaSlot& slot : slots) {
    const auto first = static_cast<std::int32_t>(slot.run.first_row);
    const auto count = static_cast<std::int32_t>(slot.run.rows);
    convs.push_back({slot.conv.columns, slot.conv.captured, first, count});
    runs.push_back({slot.state, slot.next_state, slot.keys, slot.deltas, slot.decays, first, count});
  }
  const cuda::GateInput gates{a, b, weights.neg_a->floats(), weights.dt_bias->floats()};
  const auto kernel = static_cast<int>(config_.conv_kernel);
  const auto& out = static_cast<const DeviceMatrix&>(*weights.out);
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  Input output(*this, o, rows, values);
  const bool settled = take_settled(slots);
  if (out.quantised && out.affine.group == 64 && cuda::few_delta_takes(convs, shape, kernel)) {
    auto* readers = static_cast<std::uint32_t*>(
        readers_.bytes(*this, static_cast<std::size_t>(cuda::kFewDeltaRuns * shape.key_heads) * sizeof(std::uint32_t)));
    const cuda::FewDeltaInput few{qkv, z, gates, weights.conv->floats(), weights.norm->floats(), eps, readers, settled};
    cuda::few_delta(queue_, convs, runs, shape, few, output.to_fill(64));
    multiply_into(*weights.out, output, tail);
    return;
  }
  if (cuda::delta_prepare_takes(convs, shape, kernel)) {
    cuda::delta_prepare(queue_, convs, shape, qkv, weights.conv->floats(), gates, conv, units, decay, beta);
  } else if (cuda::delta_rows_takes(shape, kernel)) {
    cuda::delta_rows(queue_, convs, shape, qkv, weights.conv->floats(), gates, conv, units, decay, beta);
  } else {
    cuda::delta_gates(queue_, a, b, gates.neg_a, gates.dt_bias, rows, heads, decay, beta);
    cuda::conv_silu(queue_, convs, {channels, kernel, 1}, qkv, weights.conv->floats(), conv);
    cuda::delta_units(queue_, shape, conv, rows, units);
  }
  cuda::delta_rule(queue_, runs, shape, conv, units, decay, beta, o);
  if (out.quantised && shape.value_dim % out.affine.group == 0 && cuda::quantise_gated_norm_takes(shape.value_dim)) {
    cuda::quantise_gated_norm(queue_, o, z, weights.norm->floats(), shape.value_dim, eps,
                              output.to_fill(out.affine.group));
  } else {
    cuda::gated_norm(queue_, o, z, weights.norm->floats(), rows * heads, shape.value_dim, eps);
  }
  multiply_into(*weights.out, output, tail);
}

void DeviceBackend::commit_delta(const DeltaSlot& slot, std::int64_t keep) {
  written_.insert(slot.next_state);
  cuda::delta_replay(
      queue_,
      {slot.state, slot.next_state, slot.keys, slot.deltas, slot.decays, 0, static_cast<std::int32_t>(slot.run.rows)},
      delta_shape(), keep);
}

void DeviceBackend::commit_conv(const ConvSlot& slot, std::int64_t history, std::int64_t channels, std::int64_t keep) {
  written_.insert(slot.columns);
  cuda::commit_conv(queue_, slot.columns, slot.captured, history, channels, keep);
}

cuda::AttentionShape DeviceBackend::attention_shape() const {
  cuda::AttentionShape shape;
  shape.heads = static_cast<int>(config_.attention_heads);
  shape.kv_heads = static_cast<int>(config_.kv_heads);
  shape.dim = static_cast<int>(config_.head_dim);
  shape.index_heads = static_cast<int>(config_.indexer_heads);
  shape.index_dim = static_cast<int>(config_.indexer_dim);
  shape.ratio = static_cast<int>(config_.indexer_ratio);
  shape.budget = static_cast<int>(config_.indexer_budget / config_.indexer_ratio);
  shape.ring = static_cast<int>(raw_key_ring(config_.indexer_ratio));
  shape.half = static_cast<int>(config_.rotary_dim / 2);
  shape.eps = static_cast<float>(config_.rms_norm_eps);
  shape.type = state_ == StateType::F32 ? kernels::ElementType::F32 : kernels::ElementType::BF16;
  shape.keys_offset = static_cast<std::int64_t>(layout_.keys);
  shape.values_offset = static_cast<std::int64_t>(layout_.values);
  shape.index_offset = static_cast<std::int64_t>(layout_.index);
  shape.cos = cos_->floats();
  shape.sin = sin_->floats();
  return shape;
}

std::vector<cuda::AttentionRun> DeviceBackend::attention_runs(std::span<const AttentionSlot> slots) {
  // One list of 64-bit values: positions, then page addresses of all slots.
  static_assert(sizeof(std::byte*) == sizeof(std::int64_t));
  std::vector<std::size_t> starts;
  std::size_t size = slots.size();
  for (const AttentionSlot& slot : slots) {
    starts.push_back(size);
    size += static_cast<std::size_t>((slot.position + slot.run.rows + kernels::kPageTokens - 1) / kernels::kPageTokens);
  }
  starts.push_back(size);
  std::size_t room = 512;
  while (room < size) room *= 2;
  auto* device = static_cast<std::int64_t*>(tables_.bytes(*this, room * sizeof(std::int64_t)));
  // The layers of a step have the same list, of thousands of entries in long contexts.
  bool known = last_tables_at_ == device && last_tables_.size() >= size;
  for (std::size_t i = 0; known && i < slots.size(); ++i) {
    known =
        last_tables_[i] == slots[i].position && std::memcmp(last_tables_.data() + starts[i], slots[i].pages,
                                                            (starts[i + 1] - starts[i]) * sizeof(std::int64_t)) == 0;
  }
  if (!known) {
    last_tables_.assign(room, 0);  // whole rooms, so that steps repeat themselves
    for (std::size_t i = 0; i < slots.size(); ++i) {
      last_tables_[i] = slots[i].position;
      std::memcpy(last_tables_.data() + starts[i], slots[i].pages, (starts[i + 1] - starts[i]) * sizeof(std::int64_t));
    }
    send(device, last_tables_.data(), room * sizeof(std::int64_t));
    last_tables_at_ = device;
  }
  std::vector<cuda::AttentionRun> runs;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    runs.push_back({device + i, reinterpret_cast<std::byte* const*>(device + starts[i]), slots[i].raw_keys,
                    static_cast<std::int64_t>(slots[i].layer_offset), static_cast<std::int32_t>(slots[i].run.first_row),
                    static_cast<std::int32_t>(slots[i].run.rows)});
  }
  return runs;
}

void DeviceBackend::project_keys(const AttentionWeights& weights, Input& input, float* q_gate,
                                 cuda::AttentionInput& projected) {
  const std::int64_t rows = input.rows();
  auto* k = scratch(1, rows, config_.kv_heads * config_.head_dim);
  auto* v = scratch(2, rows, config_.kv_heads * config_.head_dim);
  auto* index_qk = scratch(3, rows, (config_.indexer_heads + 1) * config_.indexer_dim);
  const std::initializer_list<Product> keys{
      {*weights.k, input, k}, {*weights.v, input, v}, {*weights.index_qk, input, index_qk}};
  const std::initializer_list<Product> all{{*weights.q, input, q_gate},
                                           {*weights.k, input, k},
                                           {*weights.v, input, v},
                                           {*weights.index_qk, input, index_qk}};
  const std::initializer_list<Product>& wanted = q_gate == nullptr ? keys : all;
  if (!multiply_few(wanted)) multiply(wanted);
  projected = {q_gate, k, v, index_qk};
}

namespace {

cuda::AttentionWeightVectors norms(const AttentionWeights& weights) {
  return {weights.q_norm->floats(), weights.k_norm->floats(), weights.index_q_norm->floats(),
          weights.index_k_norm->floats()};
}

}  // namespace

void DeviceBackend::attention(const AttentionWeights& weights, const float* u, std::span<const AttentionSlot> slots,
                              std::int64_t rows, float* y) {
  attention_into(weights, u, slots, rows, {y, nullptr, nullptr, 0});
}

void DeviceBackend::attention_into(const AttentionWeights& weights, const float* u,
                                   std::span<const AttentionSlot> slots, std::int64_t rows, const cuda::Tail& tail) {
  const std::int64_t width = config_.attention_heads * config_.head_dim;
  const cuda::AttentionShape shape = attention_shape();
  auto* q_gate = scratch(0, rows, 2 * width);
  auto* q = scratch(4, rows, width);
  auto* out = scratch(5, rows, width);
  auto* index_q = scratch(6, rows, config_.indexer_heads * config_.indexer_dim);
  Input input(*this, u, rows, config_.hidden_size);
  cuda::AttentionInput projected;
  project_keys(weights, input, q_gate, projected);

  cuda::AttentionScratch piece;
  std::int64_t groups = 0;
  for (const AttentionSlot& slot : slots) groups = std::max(groups, (slot.position + slot.run.rows) / shape.ratio);
  piece.most_groups = shape.budget;
  while (piece.most_groups < groups) piece.most_groups *= 2;
  piece.rows = std::min(kAttentionPieceRows, std::max(rows, reserved_rows_));
  const auto of_piece = [&](std::size_t slot, std::int64_t per_row) {
    return scratch_.at(slot).bytes(*this, static_cast<std::size_t>(piece.rows * per_row) * 4);
  };
  piece.scores = static_cast<float*>(of_piece(7, piece.most_groups));
  piece.positions = static_cast<std::int32_t*>(of_piece(8, shape.width()));
  piece.counts = static_cast<std::int32_t*>(of_piece(9, 1));
  piece.partial = static_cast<float*>(of_piece(10, config_.attention_heads * shape.blocks() * (shape.dim + 2)));
  const std::vector<cuda::AttentionRun> runs = attention_runs(slots);
  cuda::attend(queue_, runs, shape, norms(weights), projected, q, index_q, piece, out);
  Input attended(*this, out, rows, width);
  multiply_into(*weights.o, attended, tail);
}

void DeviceBackend::attention_keys(const AttentionWeights& weights, const float* u,
                                   std::span<const AttentionSlot> slots, std::int64_t rows) {
  Input input(*this, u, rows, config_.hidden_size);
  cuda::AttentionInput projected;
  project_keys(weights, input, nullptr, projected);
  cuda::store_keys(queue_, attention_runs(slots), attention_shape(), norms(weights), projected, nullptr, nullptr);
}

// The pairs of row and rank are sorted by expert on the device, so that each chosen expert is read once.
void DeviceBackend::experts(const MoeWeights& weights, const float* u, std::int64_t rows, float* y) {
  experts_into(weights, u, rows, {y, nullptr, nullptr, 0});
}

void DeviceBackend::experts_into(const MoeWeights& weights, const float* u, std::int64_t rows, const cuda::Tail& tail) {
  if (experts_few(weights, u, rows, tail) || experts_several(weights, u, rows, tail)) return;
  const std::int64_t ranks = config_.experts_per_token;
  const std::int64_t pairs = rows * ranks;
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t shared_dim = config_.shared_expert_dim;
  const std::int64_t expert_dim = config_.expert_dim;
  auto* logits = scratch(0, rows, config_.experts);
  auto* rank_weights = scratch(1, rows, ranks);
  auto* shared_logit = scratch(2, rows, 1);
  auto* shared_gate = scratch(3, rows, shared_dim);
  auto* shared_up = scratch(4, rows, shared_dim);
  auto* shared = scratch(5, rows, hidden);
  auto* outputs = scratch(6, rows, ranks * hidden);
  auto* chosen = scratch<std::int32_t>(7, rows, ranks);
  auto* places = scratch<std::int32_t>(8, rows, 2 * ranks);
  auto* runs = static_cast<cuda::ExpertRun*>(
      scratch_.at(9).bytes(*this, static_cast<std::size_t>(config_.experts + 1) * sizeof(cuda::ExpertRun)));
  auto* gate = scratch(10, rows, ranks * expert_dim);
  auto* up = scratch(11, rows, ranks * expert_dim);
  const cuda::PairLists lists{places, places + pairs, runs, reinterpret_cast<std::int32_t*>(runs + config_.experts)};
  Input input(*this, u, rows, hidden);
  const auto& side_matrix = static_cast<const DeviceMatrix&>(*weights.shared_expert_gate);
  const cuda::SideProduct side{&side_matrix.dense, u, shared_logit};
  if (side_matrix.quantised) {
    multiply({{*weights.router, input, logits}, {*weights.shared_expert_gate, input, shared_logit}});
  } else {
    multiply({{*weights.router, input, logits}});
  }
  cuda::route(queue_, logits, rows, config_.experts, ranks, chosen, rank_weights, lists,
              side_matrix.quantised ? nullptr : &side);
  cuda::Selection into{lists.runs, lists.run_count, std::min(config_.experts, pairs), lists.rows_of, nullptr};
  into.single = rows == 1;
  into.pairs = pairs;
  multiply({{*weights.gate, input, gate, &into},
            {*weights.up, input, up, &into},
            {*weights.shared_gate, input, shared_gate},
            {*weights.shared_up, input, shared_up}});
  Input routed_inner(*this, gate, pairs, expert_dim);
  Input shared_inner(*this, shared_gate, rows, shared_dim, 1);
  const auto& down = static_cast<const DeviceMatrix&>(*weights.down);
  const auto& shared_down = static_cast<const DeviceMatrix&>(*weights.shared_down);
  std::array<cuda::GatedRows, 2> gated;
  std::size_t count = 0;
  if (down.quantised) {
    gated.at(count++) = {gate, up, &routed_inner.to_fill(down.affine.group)};
  } else {
    cuda::silu_product(queue_, gate, up, pairs * expert_dim, gate);
  }
  if (shared_down.quantised) {
    gated.at(count++) = {shared_gate, shared_up, &shared_inner.to_fill(shared_down.affine.group)};
  } else {
    cuda::silu_product(queue_, shared_gate, shared_up, rows * shared_dim, shared_gate);
  }
  if (count > 0) cuda::quantise_gated(queue_, std::span(gated).first(count));
  cuda::Selection back = into;
  back.in_rows = nullptr;
  back.out_rows = lists.order;
  multiply({{*weights.down, routed_inner, outputs, &back}, {*weights.shared_down, shared_inner, shared}});
  cuda::combine(queue_, outputs, rank_weights, shared, shared_logit, rows, ranks, hidden, tail);
}

void DeviceBackend::project(const Matrix& matrix, const float* u, std::int64_t rows, float* out) {
  Input input(*this, u, rows, matrix.cols());
  const std::initializer_list<Product> product{{matrix, input, out}};
  if (!multiply_few(product)) multiply(product);
}

void DeviceBackend::draft_input(const DraftWeights& weights, const Matrix& embedding,
                                std::span<const std::int32_t> tokens, const float* h, float* x) {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t wide = config_.wide_size();
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const std::int64_t groups = weights.norm_hidden_groups;
  auto* e = scratch(0, rows, hidden);
  auto* projected = scratch(1, rows, hidden);
  auto* normed = scratch(2, rows, wide);
  lookup(embedding, tokens, 1, e);
  cuda::rms_norm(queue_, e, weights.norm_embedding->floats(), rows, 1, hidden, eps, e);
  cuda::rms_norm(queue_, h, weights.norm_hidden->floats(), rows, groups, wide / groups, eps, normed);
  Input embedded(*this, e, rows, hidden);
  multiply({{*weights.fc_embedding, embedded, projected}});
  // The same matrix for every stream: the wide rows are streams * rows narrow ones.
  Input streams(*this, normed, rows * config_.streams, hidden);
  multiply({{*weights.fc_hidden, streams, x}});
  cuda::add_streams(queue_, x, projected, rows, config_.streams, hidden);
}

}  // namespace lockstep::backend
