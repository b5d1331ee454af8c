#include "model/weights.hpp"

#include <algorithm>
#include <utility>

#include "artifact/finite.hpp"
#include "numerics/canon_math.hpp"

namespace lockstep::model {
namespace {

using backend::Backend;

/// Hands the pieces of an artifact to a backend. Matrices are looked at once on the way.
class Uploader {
 public:
  Uploader(const artifact::Artifact& artifact, Backend& backend, const UploadWatch& watch)
      : artifact_(artifact), backend_(backend), watch_(watch) {}

  Result<backend::MatrixPtr> matrix(const artifact::MatrixView& view) {
    return upload(view, [this](const artifact::MatrixView& full) { return backend_.upload(full); });
  }
  /// A matrix of which only single rows are read.
  Result<backend::MatrixPtr> rows(const artifact::MatrixView& view) {
    return upload(view, [this](const artifact::MatrixView& full) { return backend_.upload_rows(full); });
  }
  Result<backend::BufferPtr> vector(const artifact::Vector& values) {
    return backend_.upload(std::span<const float>(values));
  }
  Status table(const artifact::NgramTableView& view) {
    const std::uint64_t copied = backend_.ngram_copy_bytes(view);
    LOCKSTEP_TRY(
        backend_.set_ngram_table(view, {[this](std::uint64_t done) { watch_.uploaded(done_ + done); }, watch_.cancel}));
    done_ += copied;
    return {};
  }
  /// So many bytes of matrices more have been handed over.
  void done(std::uint64_t bytes) { watch_.uploaded(done_ += bytes); }

  /// Data of matrices that the backend reads where they are, as far as the artifact does not own it.
  [[nodiscard]] std::deque<std::vector<std::byte>> take_kept() { return std::move(kept_); }

 private:
  template <class Upload>
  Result<backend::MatrixPtr> upload(const artifact::MatrixView& view, Upload send) {
    LOCKSTEP_TRY(check_cancel());
    if (view.synth && !view.has_data() && backend_.makes_synthetic()) return send(view);
    std::vector<std::byte> memory;
    const artifact::MatrixView full = artifact_.readable(view, memory);
    LOCKSTEP_TRY(check_cancel());  // the making of a matrix ends early too, without one
    LOCKSTEP_TRY(in_file(artifact::check_scales(full), view.name + ".scales"));
    LOCKSTEP_TRY(in_file(artifact::check_biases(full), view.name + ".biases"));
    backend::MatrixPtr matrix = LOCKSTEP_TRY(send(full));
    if (matrix->reads_view() && !memory.empty()) kept_.push_back(std::move(memory));
    return matrix;
  }

  [[nodiscard]] Status check_cancel() const {
    if (watch_.cancel != nullptr && watch_.cancel->load()) return fail(ErrorKind::Cancelled, "interrupted");
    return {};
  }
  /// The outcome of looking at a tensor, with the file that it is in.
  [[nodiscard]] Status in_file(Status status, const std::string& tensor) const {
    if (status) return status;
    return with_context(std::move(status).error(), artifact_.file_of(tensor));
  }

  const artifact::Artifact& artifact_;
  Backend& backend_;
  const UploadWatch& watch_;
  std::uint64_t done_ = 0;
  std::deque<std::vector<std::byte>> kept_;
};

Result<backend::HyperWeights> upload_site(const artifact::HyperConnectionView& view, Uploader& to) {
  backend::HyperWeights site;
  site.norm = LOCKSTEP_TRY(to.vector(view.norm));
  site.down = LOCKSTEP_TRY(to.matrix(view.down));
  site.up = LOCKSTEP_TRY(to.matrix(view.up));
  if (view.inject) site.inject = LOCKSTEP_TRY(to.matrix(*view.inject));
  return site;
}

Result<backend::DeltaWeights> upload_linear(const artifact::GatedDeltaNetView& view, Uploader& to) {
  backend::DeltaWeights w;
  w.qkv = LOCKSTEP_TRY(to.matrix(view.qkv));
  w.z = LOCKSTEP_TRY(to.matrix(view.z));
  w.b = LOCKSTEP_TRY(to.matrix(view.b));
  w.a = LOCKSTEP_TRY(to.matrix(view.a));
  w.out = LOCKSTEP_TRY(to.matrix(view.out));
  w.conv = LOCKSTEP_TRY(to.vector(view.conv));
  std::vector<float> neg_a(view.a_log.size());
  std::transform(view.a_log.begin(), view.a_log.end(), neg_a.begin(), [](float a) { return -numerics::canon_exp(a); });
  w.neg_a = LOCKSTEP_TRY(to.vector(neg_a));
  w.dt_bias = LOCKSTEP_TRY(to.vector(view.dt_bias));
  w.norm = LOCKSTEP_TRY(to.vector(view.norm));
  return w;
}

Result<backend::AttentionWeights> upload_attention(const artifact::AttentionView& view, Uploader& to) {
  backend::AttentionWeights w;
  w.q = LOCKSTEP_TRY(to.matrix(view.q));
  w.k = LOCKSTEP_TRY(to.matrix(view.k));
  w.v = LOCKSTEP_TRY(to.matrix(view.v));
  w.o = LOCKSTEP_TRY(to.matrix(view.o));
  w.index_qk = LOCKSTEP_TRY(to.matrix(view.index_qk));
  w.q_norm = LOCKSTEP_TRY(to.vector(view.q_norm));
  w.k_norm = LOCKSTEP_TRY(to.vector(view.k_norm));
  w.index_q_norm = LOCKSTEP_TRY(to.vector(view.index_q_norm));
  w.index_k_norm = LOCKSTEP_TRY(to.vector(view.index_k_norm));
  return w;
}

Result<backend::MoeWeights> upload_moe(const artifact::MoeView& view, Uploader& to) {
  backend::MoeWeights w;
  w.router = LOCKSTEP_TRY(to.matrix(view.router));
  w.gate = LOCKSTEP_TRY(to.matrix(view.gate));
  w.up = LOCKSTEP_TRY(to.matrix(view.up));
  w.down = LOCKSTEP_TRY(to.matrix(view.down));
  w.shared_gate = LOCKSTEP_TRY(to.matrix(view.shared_gate));
  w.shared_up = LOCKSTEP_TRY(to.matrix(view.shared_up));
  w.shared_down = LOCKSTEP_TRY(to.matrix(view.shared_down));
  w.shared_expert_gate = LOCKSTEP_TRY(to.matrix(view.shared_expert_gate));
  return w;
}

Result<backend::PleWeights> upload_ple(const artifact::PleView& view, Uploader& to) {
  backend::PleWeights w;
  w.key = LOCKSTEP_TRY(to.matrix(view.key));
  w.value = LOCKSTEP_TRY(to.matrix(view.value));
  w.norm_key = LOCKSTEP_TRY(to.vector(view.norm_key));
  w.norm_query = LOCKSTEP_TRY(to.vector(view.norm_query));
  w.norm_conv = LOCKSTEP_TRY(to.vector(view.norm_conv));
  w.conv = LOCKSTEP_TRY(to.vector(view.conv));
  LOCKSTEP_TRY(to.table(view.table));
  return w;
}

Result<LayerWeights> upload_layer(const artifact::LayerView& view, Uploader& to) {
  LayerWeights layer;
  layer.kind = view.kind;
  if (view.ple) layer.ple = LOCKSTEP_TRY(upload_ple(*view.ple, to));
  layer.attention_site = LOCKSTEP_TRY(upload_site(view.attention_site, to));
  layer.mlp_site = LOCKSTEP_TRY(upload_site(view.mlp_site, to));
  if (view.linear) layer.linear = LOCKSTEP_TRY(upload_linear(*view.linear, to));
  if (view.attention) layer.attention = LOCKSTEP_TRY(upload_attention(*view.attention, to));
  layer.moe = LOCKSTEP_TRY(upload_moe(view.moe, to));
  return layer;
}

Result<DraftHead> upload_draft(const artifact::DraftView& view, Uploader& to) {
  DraftHead draft;
  draft.input.norm_embedding = LOCKSTEP_TRY(to.vector(view.norm_embedding));
  draft.input.norm_hidden = LOCKSTEP_TRY(to.vector(view.norm_hidden));
  draft.input.norm_hidden_groups = view.norm_hidden_groups;
  draft.input.fc_embedding = LOCKSTEP_TRY(to.matrix(view.fc_embedding));
  draft.input.fc_hidden = LOCKSTEP_TRY(to.matrix(view.fc_hidden));
  draft.layer = LOCKSTEP_TRY(upload_layer(view.layer, to));
  draft.mixer = LOCKSTEP_TRY(upload_site(view.mixer, to));
  return draft;
}

std::uint64_t bytes(const artifact::MatrixView& view) {
  const std::size_t row = view.quantised ? view.code_row_bytes() + 2 * view.scale_row_bytes()
                                         : static_cast<std::size_t>(view.cols) * artifact::dtype_size(view.dtype);
  return static_cast<std::uint64_t>(view.count) * static_cast<std::uint64_t>(view.rows) * row;
}

std::uint64_t bytes(const artifact::HyperConnectionView& view) {
  return bytes(view.down) + bytes(view.up) + (view.inject ? bytes(*view.inject) : 0);
}

std::uint64_t bytes(const artifact::LayerView& view) {
  std::uint64_t total = bytes(view.attention_site) + bytes(view.mlp_site);
  const auto add = [&](std::initializer_list<const artifact::MatrixView*> matrices) {
    for (const artifact::MatrixView* matrix : matrices) total += bytes(*matrix);
  };
  if (view.ple) add({&view.ple->key, &view.ple->value});
  if (view.linear) add({&view.linear->qkv, &view.linear->z, &view.linear->b, &view.linear->a, &view.linear->out});
  if (view.attention) {
    const artifact::AttentionView& a = *view.attention;
    add({&a.q, &a.k, &a.v, &a.o, &a.index_qk});
  }
  const artifact::MoeView& m = view.moe;
  add({&m.router, &m.gate, &m.up, &m.down, &m.shared_gate, &m.shared_up, &m.shared_down, &m.shared_expert_gate});
  return total;
}

std::uint64_t bytes(const artifact::DraftView& view) {
  return bytes(view.fc_embedding) + bytes(view.fc_hidden) + bytes(view.layer) + bytes(view.mixer);
}

}  // namespace

Result<Weights> upload_weights(const artifact::Artifact& artifact, backend::Backend& backend, bool draft,
                               const UploadWatch& watch) {
  const artifact::ModelView& view = artifact.view();
  Uploader to(artifact, backend, watch);
  Weights weights;
  weights.embedding = LOCKSTEP_TRY(to.rows(view.embedding));
  weights.head = LOCKSTEP_TRY(to.matrix(view.head));
  to.done(bytes(view.embedding) + bytes(view.head));
  for (const artifact::LayerView& layer : view.layers) {
    if (layer.ple) weights.ngram = layer.ple->hash;
    weights.layers.push_back(LOCKSTEP_TRY(upload_layer(layer, to)));
    to.done(bytes(layer));
  }
  weights.mixer = LOCKSTEP_TRY(upload_site(view.mixer, to));
  if (view.draft && draft) weights.draft = LOCKSTEP_TRY(upload_draft(*view.draft, to));
  weights.kept = to.take_kept();
  watch.uploaded(upload_bytes(view, draft, backend));
  return weights;
}

std::uint64_t upload_bytes(const artifact::ModelView& view, bool draft, const backend::Backend& backend) {
  std::uint64_t total = bytes(view.embedding) + bytes(view.head) + bytes(view.mixer);
  for (const artifact::LayerView& layer : view.layers) {
    total += bytes(layer);
    if (layer.ple) total += backend.ngram_copy_bytes(layer.ple->table);
  }
  if (view.draft && draft) total += bytes(*view.draft);
  return total;
}

}  // namespace lockstep::model
