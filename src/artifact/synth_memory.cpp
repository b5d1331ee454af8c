// Synthetic models in memory.
#include <algorithm>
#include <memory>

#include "artifact/synth.hpp"
#include "artifact/synth_matrix.hpp"
#include "artifact/synth_view.hpp"
#include "base/memory.hpp"
#include "base/progress.hpp"

namespace lockstep::artifact {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{16} << 20;

using Memory = std::vector<std::unique_ptr<std::byte[]>>;

/// What a rule is asked about a module: its routed experts are known by name.
MatrixPart part_of(const MatrixView& view) {
  MatrixPart part;
  part.module = view.name;
  part.family = view.name.find(".switch_mlp.") != std::string::npos ? Family::Experts : Family::Embedding;
  part.draft = view.name.starts_with("mtp.");
  part.matrix = &view;
  return part;
}

/// Makes matrices, first only to add up their bytes, then with their weights.
class Maker {
 public:
  Maker(const PrecisionRule& rule, std::uint64_t seed, std::size_t threads, const std::atomic<bool>* cancel)
      : rule_(rule), seed_(seed), pool_(threads), cancel_(cancel) {}

  Result<MatrixView> measure(const std::string& module, std::int64_t count, std::int64_t rows, std::int64_t cols) {
    MatrixView view = LOCKSTEP_TRY(matrix_shape(module, count, rows, cols));
    const SynthMatrix matrix(module, count * rows, cols, rule_(part_of(view)), seed_);
    for (const SynthMatrix::Plane& plane : matrix.planes()) bytes_ += plane.bytes;
    return view;
  }

  Result<MatrixView> make(const std::string& module, std::int64_t count, std::int64_t rows, std::int64_t cols) {
    MatrixView view = LOCKSTEP_TRY(matrix_shape(module, count, rows, cols));
    const std::optional<Precision> precision = rule_(part_of(view));
    const SynthMatrix matrix(module, count * rows, cols, precision, seed_);
    if (!precision) {
      view.data = LOCKSTEP_TRY(fill(matrix, 0));
      return view;
    }
    view.quantised = true;
    view.bits = precision->bits;
    view.group = precision->group;
    view.codes = LOCKSTEP_TRY(fill(matrix, 0));
    view.scales = LOCKSTEP_TRY(fill(matrix, 1));
    view.biases = LOCKSTEP_TRY(fill(matrix, 2));
    view.matrix_stride = static_cast<std::size_t>(rows) * view.code_row_bytes();
    return view;
  }

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::shared_ptr<const void> memory() const { return memory_; }

 private:
  Result<const std::byte*> fill(const SynthMatrix& matrix, std::size_t plane) {
    const auto bytes = static_cast<std::size_t>(matrix.planes()[plane].bytes);
    memory_->push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
    for (std::size_t at = 0; at < bytes; at += kBlockBytes) {
      if (cancel_ != nullptr && cancel_->load()) return fail(ErrorKind::Cancelled, "interrupted");
      matrix.fill(plane, at, {memory_->back().get() + at, std::min(kBlockBytes, bytes - at)}, pool_);
    }
    return memory_->back().get();
  }

  const PrecisionRule& rule_;
  std::uint64_t seed_, bytes_ = 0;
  ThreadPool pool_;
  const std::atomic<bool>* cancel_;
  std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
};

}  // namespace

PrecisionRule recipe_rule(const Recipe& recipe) {
  return [recipe](const MatrixPart& part) {
    return part.module == "ngram" ? fit_group(recipe.ngram, part.matrix->cols) : precision_of(recipe, part);
  };
}

Result<Artifact> make_synthetic(const ModelConfig& config, const PrecisionRule& rule, std::uint64_t seed,
                                std::size_t threads, const std::atomic<bool>* cancel) {
  Maker maker(rule, seed, threads, cancel);
  const auto bound = [&](auto member) -> MatrixMaker {
    return [&maker, member](const std::string& module, std::int64_t count, std::int64_t rows, std::int64_t cols) {
      return (maker.*member)(module, count, rows, cols);
    };
  };
  LOCKSTEP_TRY(synth_view(config, seed, bound(&Maker::measure)));
  const std::uint64_t free = available_memory();
  if (maker.bytes() > free) {
    return fail(ErrorKind::Limit,
                "the synthetic model takes {} of memory, {} are available: write it to a file instead",
                format_bytes(static_cast<double>(maker.bytes())), format_bytes(static_cast<double>(free)));
  }
  ModelView view = LOCKSTEP_TRY(synth_view(config, seed, bound(&Maker::make)));
  return Artifact::from_memory(std::move(view), maker.memory(), fmt::format("synthetic model, seed {}", seed));
}

Result<Artifact> make_synthetic(const SynthModel& model, std::size_t threads, const std::atomic<bool>* cancel) {
  const std::string text = model.config.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  const Json json = LOCKSTEP_TRY(parse_json(text, "geometry"));
  const ModelConfig config = LOCKSTEP_TRY(parse_config(json));
  return make_synthetic(config, recipe_rule(model.recipe), model.seed, threads, cancel);
}

}  // namespace lockstep::artifact
