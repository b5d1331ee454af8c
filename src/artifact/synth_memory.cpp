// Synthetic models in memory.
#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>

#include "artifact/synth.hpp"
#include "artifact/synth_matrix.hpp"
#include "artifact/synth_view.hpp"
#include "base/memory.hpp"
#include "base/progress.hpp"
#include "base/sha256.hpp"

namespace lockstep::artifact {
namespace {

/// What a rule is asked about a module: its routed experts are known by name.
MatrixPart part_of(const MatrixView& view) {
  MatrixPart part;
  part.module = view.name;
  part.family = view.name.find(".switch_mlp.") != std::string::npos ? Family::Experts : Family::Embedding;
  part.draft = view.name.starts_with("mtp.");
  part.matrix = &view;
  return part;
}

/// Makes matrices: shapes with the precision of a rule, and the weights of such a shape.
class Maker {
 public:
  Maker(PrecisionRule rule, std::uint64_t seed, std::size_t threads, const std::atomic<bool>* cancel = nullptr)
      : rule_(std::move(rule)), seed_(seed), cancel_(cancel), pool_(threads) {}

  Result<MatrixView> shape(const std::string& module, std::int64_t count, std::int64_t rows, std::int64_t cols) {
    MatrixView view = LOCKSTEP_TRY(matrix_shape(module, count, rows, cols));
    if (const std::optional<Precision> precision = rule_(part_of(view))) {
      view.quantised = true;
      view.bits = precision->bits;
      view.group = precision->group;
      view.matrix_stride = static_cast<std::size_t>(rows) * view.code_row_bytes();
    }
    const SynthMatrix matrix = matrix_of(view);
    for (const SynthMatrix::Plane& plane : matrix.planes()) bytes_ += plane.bytes;
    view.synth = matrix.source();
    return view;
  }

  /// The shape itself, without weights, once the work is called off.
  MatrixView fill(const MatrixView& shape, std::vector<std::byte>& memory) {
    const SynthMatrix matrix = matrix_of(shape);
    std::vector<std::size_t> starts;
    std::size_t bytes = 0;
    for (const SynthMatrix::Plane& plane : matrix.planes()) {
      starts.push_back(bytes);
      bytes += (static_cast<std::size_t>(plane.bytes) + kAlign - 1) / kAlign * kAlign;
    }
    take(bytes + kAlign, memory);  // kernels may load a whole vector at the end of the last row
    for (std::size_t i = 0; i < starts.size() && !called_off(); ++i) {
      const auto size = static_cast<std::size_t>(matrix.planes()[i].bytes);
      for (std::size_t at = 0; at < size && !called_off(); at += kPiece) {
        matrix.fill(i, at, std::span(memory).subspan(starts[i] + at, std::min(kPiece, size - at)), pool_);
      }
    }
    MatrixView view = shape;
    if (called_off()) return view;
    if (!view.quantised) {
      view.data = memory.data();
      return view;
    }
    view.codes = memory.data();
    view.scales = memory.data() + starts[1];
    view.biases = memory.data() + starts[2];
    return view;
  }

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }  ///< of all shapes so far

 private:
  static constexpr std::size_t kAlign = 64;
  static constexpr std::size_t kPiece = std::size_t{64}
                                        << 20;  ///< between looks at the flag: an n-gram table has 30 GB

  [[nodiscard]] bool called_off() const { return cancel_ != nullptr && cancel_->load(); }
  /// The system gives memory page by page, which takes seconds for the largest matrix.
  void take(std::size_t bytes, std::vector<std::byte>& memory) const {
    memory.reserve(bytes);
    while (memory.size() < bytes && !called_off()) memory.resize(std::min(bytes, memory.size() + kPiece));
  }

  [[nodiscard]] SynthMatrix matrix_of(const MatrixView& view) const {
    std::optional<Precision> precision;
    if (view.quantised) precision = Precision{view.bits, view.group};
    return {view.name, view.count * view.rows, view.cols, precision, seed_};
  }

  PrecisionRule rule_;
  std::uint64_t seed_, bytes_ = 0;
  const std::atomic<bool>* cancel_;
  ThreadPool pool_;
};

Result<ModelView> shapes_of(const ModelConfig& config, std::uint64_t seed, Maker& maker) {
  return synth_view(config, seed,
                    [&](const std::string& module, std::int64_t count, std::int64_t rows, std::int64_t cols) {
                      return maker.shape(module, count, rows, cols);
                    });
}

Result<ModelConfig> config_of(const SynthModel& model) {
  const std::string text = model.config.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  const Json json = LOCKSTEP_TRY(parse_json(text, "geometry"));
  return parse_config(json);
}

std::string name_of(std::uint64_t seed) {
  return fmt::format("synthetic model, seed {}", seed);
}

/// Everything that decides the bytes: the artifact's identity is that of its name.
std::string name_of(const SynthModel& model) {
  const std::string text = model.config.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  return fmt::format("synthetic model {}, recipe {}, seed {}", sha256_hex(text).substr(0, 16), model.recipe.name,
                     model.seed);
}

}  // namespace

PrecisionRule recipe_rule(const Recipe& recipe) {
  return [recipe](const MatrixPart& part) {
    return part.module == "ngram" ? fit_group(recipe.ngram, part.matrix->cols) : precision_of(recipe, part);
  };
}

Result<Artifact> make_synthetic(const ModelConfig& config, const PrecisionRule& rule, std::uint64_t seed,
                                std::size_t threads) {
  Maker maker(rule, seed, threads);
  ModelView view = LOCKSTEP_TRY(shapes_of(config, seed, maker));
  const std::uint64_t free = available_memory();
  if (maker.bytes() > free) {
    return fail(ErrorKind::Limit,
                "the synthetic model takes {} of memory, {} are available: write it to a file instead",
                format_bytes(static_cast<double>(maker.bytes())), format_bytes(static_cast<double>(free)));
  }
  const auto memory = std::make_shared<std::deque<std::vector<std::byte>>>();
  const auto make = [&](const std::string& module, std::int64_t count, std::int64_t rows,
                        std::int64_t cols) -> Result<MatrixView> {
    const MatrixView shape = LOCKSTEP_TRY(maker.shape(module, count, rows, cols));
    return maker.fill(shape, memory->emplace_back());
  };
  view = LOCKSTEP_TRY(synth_view(config, seed, make));
  return Artifact::from_memory(std::move(view), memory, name_of(seed));
}

Result<Artifact> make_synthetic(const SynthModel& model, std::size_t threads) {
  const ModelConfig config = LOCKSTEP_TRY(config_of(model));
  return make_synthetic(config, recipe_rule(model.recipe), model.seed, threads);
}

Result<Artifact> make_synthetic_on_demand(const SynthModel& model, std::size_t threads,
                                          const std::atomic<bool>* cancel) {
  const ModelConfig config = LOCKSTEP_TRY(config_of(model));
  const auto maker = std::make_shared<Maker>(recipe_rule(model.recipe), model.seed, threads, cancel);
  ModelView shapes = LOCKSTEP_TRY(shapes_of(config, model.seed, *maker));
  const auto fill = [maker](const MatrixView& shape, std::vector<std::byte>& memory) {
    return maker->fill(shape, memory);
  };
  return Artifact::on_demand(std::move(shapes), fill, name_of(model));
}

}  // namespace lockstep::artifact
