// Whole-model speed on a CUDA device with synthetic weights: decoding, verify steps, parallel streams, prefill, and one
// comparison of logits with the processor.
//   cuda_decode [GEOMETRY] [LAYERS] [NGRAM ROWS A HEAD] [PROMPT CHUNK] [no-comparison]   (mid, its layers and rows,
//   2048)
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "artifact/synth.hpp"
#include "artifact/synth_geometry.hpp"
#include "backend/cpu/cpu_backend.hpp"
#include "backend/cuda/cuda_backend.hpp"
#include "model/runner.hpp"

namespace {

using namespace lockstep;
using Clock = std::chrono::steady_clock;

template <class T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "cuda_decode: {}\n", result.error().message);
  std::exit(1);
}
void must(const Status& status) {
  if (status) return;
  fmt::print(stderr, "cuda_decode: {}\n", status.error().message);
  std::exit(1);
}
double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Bench {
 public:
  Bench(const model::Model& model, std::int64_t chunk)
      : model_(model), chunk_(chunk), runner_(must(model::Runner::create(model, chunk))) {}

  std::vector<std::int32_t> tokens(std::int64_t n) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(n));
    for (std::int32_t& token : out) {
      state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
      token = static_cast<std::int32_t>((state_ >> 33) % static_cast<std::uint64_t>(model_.config().vocab_size));
    }
    return out;
  }
  void prefill(model::Sequence& sequence, std::int64_t n) {
    const auto ids = tokens(n);
    const auto begin = Clock::now();
    for (std::int64_t at = 0; at < n; at += chunk_) {
      const auto count = static_cast<std::size_t>(std::min(chunk_, n - at));
      const model::Segment segment{&sequence, std::span(ids).subspan(static_cast<std::size_t>(at), count),
                                   at + chunk_ >= n ? model::LogitsWanted::Last : model::LogitsWanted::None, false};
      must(runner_.forward({&segment, 1}));
    }
    const double seconds = since(begin);
    line(fmt::format("prefill {} tokens", n), seconds, static_cast<double>(n));
  }
  /// `width` rows of each of the sequences a step.
  void steps(const std::string& name, std::span<model::Sequence> sequences, std::int64_t width, int count) {
    double total = 0;
    for (int step = -2; step < count; ++step) {
      const auto ids = tokens(width * std::ssize(sequences));
      std::vector<model::Segment> segments;
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        segments.push_back(
            {&sequences[i],
             std::span(ids).subspan(i * static_cast<std::size_t>(width), static_cast<std::size_t>(width)),
             model::LogitsWanted::All, width > 1});
      }
      const auto begin = Clock::now();
      must(runner_.forward(segments));
      if (step >= 0) total += since(begin);
      if (width > 1) {
        for (model::Sequence& sequence : sequences) sequence.commit(width, width);
      }
    }
    line(name, total / count, static_cast<double>(width * std::ssize(sequences)));
  }
  /// Two tokens at once, the others one by one: both kinds of kernels.
  std::vector<float> logits(std::span<const std::int32_t> ids) {
    auto sequence = must(model::Sequence::create(model_));
    std::vector<float> all;
    for (std::size_t at = 0; at < ids.size(); at += at == 0 ? 2 : 1) {
      const model::Segment segment{&sequence, ids.subspan(at, at == 0 ? 2 : 1), model::LogitsWanted::All, false};
      must(runner_.forward({&segment, 1}));
      all.insert(all.end(), runner_.logits().begin(), runner_.logits().end());
    }
    return all;
  }

 private:
  static void line(const std::string& name, double seconds, double tokens) {
    fmt::print("{:<34} {:>10.3f} ms {:>10.1f} tokens/s\n", name, seconds * 1e3, tokens / seconds);
    std::fflush(stdout);
  }

  const model::Model& model_;
  std::int64_t chunk_;
  model::Runner runner_;
  std::uint64_t state_ = 1;
};

}  // namespace

int main(int count, char** arguments) {
  artifact::SynthModel synth;
  synth.config = must(artifact::synth_geometry(count > 1 ? arguments[1] : "mid"));
  synth.recipe = must(artifact::find_recipe("bare"));
  OrderedJson& text = synth.config.contains("text_config") ? synth.config["text_config"] : synth.config;
  if (count > 2) {
    const auto layers = static_cast<std::size_t>(std::atoi(arguments[2]));
    text["num_hidden_layers"] = layers;
    if (text.contains("layer_types")) {
      text["layer_types"] =
          OrderedJson(text["layer_types"].begin(), text["layer_types"].begin() + static_cast<long>(layers));
    }
  }
  if (count > 3) text["ngram_vocab_size_base"] = std::atoi(arguments[3]);
  artifact::Artifact artifact = must(artifact::make_synthetic_on_demand(synth));  // the device makes them, or we do
  auto begin = Clock::now();
  artifact.make_ready();
  fmt::print("n-gram table made in {:.1f} s\n", since(begin));
  std::fflush(stdout);
  begin = Clock::now();
  model::ModelOptions options;
  options.draft = false;
  const auto device = must(model::Model::load(artifact, must(backend::create_cuda_backend({})), options));
  fmt::print("on {} in {:.1f} s\n", device->backend().describe(), since(begin));
  std::fflush(stdout);
  const std::int64_t chunk = count > 4 ? std::max(64, std::atoi(arguments[4])) : 2048;
  Bench bench(*device, chunk);
  std::vector<model::Sequence> one;
  one.push_back(must(model::Sequence::create(*device)));
  bench.prefill(one.front(), 2048);
  bench.steps("decode at 2K", one, 1, 60);
  bench.steps("verify of 4 rows at 2K", one, 4, 30);
  std::vector<model::Sequence> many;
  for (int i = 0; i < 16; ++i) many.push_back(must(one.front().fork()));
  bench.steps("16 streams at 2K", many, 1, 20);
  bench.prefill(one.front(), 14336);
  bench.steps("decode at 16K", one, 1, 60);
  fmt::print("{}\n", device->backend().describe());
  if (count > 5) return 0;
  // Equality with the processor on the same weights.
  begin = Clock::now();
  const auto ids = bench.tokens(5);
  const auto host = must(model::Model::load(artifact, must(backend::CpuBackend::create({})), options));
  const auto expected = Bench(*host, 64).logits(ids);
  const auto got = bench.logits(ids);
  const bool same =
      expected.size() == got.size() && std::memcmp(expected.data(), got.data(), got.size() * sizeof(float)) == 0;
  fmt::print("logits of 5 tokens {} the processor's ({:.1f} s)\n", same ? "equal" : "DIFFER from", since(begin));
  return same ? 0 : 1;
}
