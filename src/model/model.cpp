#include "model/model.hpp"

#include <algorithm>

#include "backend/ngram/ngram_store.hpp"
#include "base/progress.hpp"
#include "kernels/cpu/kernels.hpp"

namespace lockstep::model {
namespace {

/// Limits of fixed-size scratch in the kernels; far above every published geometry.
Status check_geometry(const artifact::ModelConfig& config) {
  const auto limit = [&](std::string_view what, std::int64_t value, std::int64_t most) -> Status {
    if (value <= most) return {};
    return fail(ErrorKind::Unsupported, "{}: {} is {}, more than the supported {}", config.file, what, value, most);
  };
  LOCKSTEP_TRY(limit("num_experts_per_tok", config.experts_per_token, 64));
  LOCKSTEP_TRY(limit("linear_key_head_dim", config.linear_key_dim, 512));
  LOCKSTEP_TRY(limit("indexer_head_dim", config.indexer_dim, 1024));
  LOCKSTEP_TRY(limit("linear_conv_kernel_dim", config.conv_kernel, 16));
  LOCKSTEP_TRY(limit("ple_conv_kernel_size", config.ple_conv_kernel, 16));
  LOCKSTEP_TRY(limit("number of PLE layers", static_cast<std::int64_t>(config.ple_layers.size()), 1));
  if (kernels::kPageTokens % config.indexer_ratio != 0) {
    return fail(ErrorKind::Unsupported, "{}: indexer_compress_ratio {} does not divide {}", config.file,
                config.indexer_ratio, kernels::kPageTokens);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Model>> Model::load(const artifact::Artifact& artifact,
                                           std::unique_ptr<backend::Backend> backend, const ModelOptions& options) {
  LOCKSTEP_TRY(check_geometry(artifact.config()));
  std::unique_ptr<Model> model(new Model());
  model->config_ = artifact.config();
  model->backend_ = std::move(backend);
  model->state_ = options.state;
  LOCKSTEP_TRY(model->backend_->configure(model->config_, options.state));
  {
    const std::uint64_t total = upload_bytes(artifact.view(), options.draft, *model->backend_);
    Progress progress("loading", total, ProgressUnit::Bytes);
    if (options.progress) options.progress(0, total);
    const auto uploaded = [&](std::uint64_t done) {
      progress.set(done);
      if (options.progress) options.progress(done, total);
      artifact.release_pages();  // what was copied need not be there twice
    };
    Result<Weights> weights = upload_weights(artifact, *model->backend_, options.draft, {uploaded, options.cancel});
    if (!weights && weights.error().kind == ErrorKind::Cancelled) return tl::unexpected(weights.error());
    LOCKSTEP_TRY(artifact.intact());  // first: it explains what else may have gone wrong
    if (!weights) return with_context(std::move(weights).error(), artifact.directory().string());
    model->weights_ = *std::move(weights);
  }
  if (model->has_draft() && !options.draft_tokens.empty()) {
    std::vector<std::byte> memory;
    const artifact::MatrixView head = artifact.readable(artifact.view().head, memory);
    model->weights_.draft->short_head = LOCKSTEP_TRY(upload_short_head(head, options.draft_tokens, *model->backend_));
  }
  const auto& layers = model->config_.layers;
  model->attention_layers_ = std::count(layers.begin(), layers.end(), artifact::LayerKind::Attention);
  model->linear_layers_ = static_cast<std::int64_t>(layers.size()) - model->attention_layers_;
  const std::size_t block = backend::page_layout(model->config_, options.state).bytes;
  model->pages_ = std::make_shared<PagePool>(
      *model->backend_, block * static_cast<std::size_t>(std::max<std::int64_t>(1, model->attention_layers_)));
  model->draft_pages_ = std::make_shared<PagePool>(*model->backend_, block);
  model->files_intact_ = artifact.watch();
  LOCKSTEP_TRY(model->status());
  return model;
}

Status Model::status() const {
  LOCKSTEP_TRY(backend_->status());
  if (const backend::NgramStore* store = backend_->ngram_store(); store != nullptr) LOCKSTEP_TRY(store->status());
  return files_intact_();
}

}  // namespace lockstep::model
