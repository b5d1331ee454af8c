// Whole-model speed on a CUDA device with synthetic weights: decoding, verify steps, parallel streams, prefill, and one
// comparison of logits with the processor.
//   cuda_decode [GEOMETRY] [LAYERS] [NGRAM ROWS A HEAD] [PROMPT CHUNK] [no-comparison]   (mid, its layers and rows,
//   2048)
//   cuda_decode GEOMETRY LAYERS ROWS CHUNK tables [PLACE..]   decoding with the n-gram table in each of these places
//   (device, pinned, resident, streamed), in turns
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "artifact/synth.hpp"
#include "artifact/synth_geometry.hpp"
#include "backend/cpu/cpu_backend.hpp"
#include "backend/cuda/cuda_backend.hpp"
#include "backend/ngram/ngram_store.hpp"
#include "model/runner.hpp"
#include "support/forwarding_backend.hpp"

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
  /// Seconds of one step of one token; its logits are in logits_of_step().
  double step(model::Sequence& sequence) {
    const auto ids = tokens(1);
    const model::Segment segment{&sequence, ids, model::LogitsWanted::All, false};
    const auto begin = Clock::now();
    must(runner_.forward({&segment, 1}));
    return since(begin);
  }
  [[nodiscard]] std::span<const float> logits_of_step() const { return runner_.logits(); }
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

/// A device whose table is also in a file, so that it can be streamed.
class WithFile final : public test::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  WithFile(const WithFile&) = delete;
  WithFile& operator=(const WithFile&) = delete;
  ~WithFile() override {
    inner_.reset();
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  Status set_ngram_table(const artifact::NgramTableView& table, const backend::CopyWatch& watch) override {
    view_ = table;
    const artifact::MatrixView& matrix = *table.table;
    const auto rows = static_cast<std::size_t>(table.rows);
    const std::size_t codes = rows * matrix.code_row_bytes();
    const std::size_t scales = rows * matrix.scale_row_bytes();
    std::ofstream file(path_, std::ios::binary);
    const auto write = [&](const std::byte* data, std::size_t bytes) {
      file.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(bytes));
    };
    write(matrix.codes, codes);
    write(matrix.scales, scales);
    write(matrix.biases, scales);
    file.close();
    view_.files = {{path_.string(), 0, codes, codes + scales}};
    return inner_->set_ngram_table(view_, watch);
  }
  void delta_block(const backend::HyperWeights& site, const backend::DeltaWeights& weights,
                   std::span<const backend::DeltaSlot> slots, const backend::BlockRows& rows, float* x) override {
    inner_->delta_block(site, weights, slots, rows, x);
  }
  void attention_block(const backend::HyperWeights& site, const backend::AttentionWeights& weights,
                       std::span<const backend::AttentionSlot> slots, const backend::BlockRows& rows,
                       float* x) override {
    inner_->attention_block(site, weights, slots, rows, x);
  }
  void experts_block(const backend::HyperWeights& site, const backend::MoeWeights& weights,
                     const backend::BlockRows& rows, float* x) override {
    inner_->experts_block(site, weights, rows, x);
  }

 private:
  std::filesystem::path path_ = std::filesystem::temp_directory_path() / fmt::format("lockstep-table-{}", ::getpid());
  artifact::NgramTableView view_;
};

/// One place of the table, with all that decoding needs.
struct Place {
  std::unique_ptr<model::Model> model;
  Bench bench;
  model::Sequence sequence;
  std::vector<double> seconds{};
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Steps with the table in each place, a few at a time in turns, forwards and backwards. 1 when logits differ.
int compare_places(const artifact::Artifact& artifact, std::int64_t chunk, std::vector<backend::NgramMode> modes) {
  using backend::NgramMode;
  if (modes.empty()) modes = {NgramMode::Device, NgramMode::Pinned, NgramMode::Resident, NgramMode::Streamed};
  std::vector<Place> places;
  model::ModelOptions options;
  options.draft = false;
  for (const NgramMode mode : modes) {
    backend::CudaOptions cuda;
    cuda.ngram.mode = mode;
    std::unique_ptr<backend::Backend> made = must(backend::create_cuda_backend(cuda));
    if (mode == NgramMode::Streamed) made = std::make_unique<WithFile>(std::move(made));
    const auto begin = Clock::now();
    auto loaded = must(model::Model::load(artifact, std::move(made), options));
    fmt::print("loaded in {:.1f} s: {}\n", since(begin), loaded->backend().ngram_store()->describe());
    Bench bench(*loaded, chunk);
    auto sequence = must(model::Sequence::create(*loaded));
    bench.prefill(sequence, 512);
    places.push_back({std::move(loaded), std::move(bench), std::move(sequence)});
  }
  constexpr int kRounds = 24, kSteps = 10, kWarm = 6;
  for (int i = 0; i < kWarm; ++i) {
    std::vector<float> first;
    for (Place& place : places) {
      place.bench.step(place.sequence);
      const std::span<const float> got = place.bench.logits_of_step();
      if (first.empty()) first.assign(got.begin(), got.end());
      if (std::memcmp(first.data(), got.data(), got.size_bytes()) != 0) {
        fmt::print("logits DIFFER: {}\n", place.model->backend().ngram_store()->describe());
        return 1;
      }
    }
  }
  fmt::print("logits of {} steps equal in every place\n", kWarm);
  std::vector<std::uint64_t> waits;
  for (const Place& place : places) waits.push_back(place.model->backend().waits());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < places.size(); ++i) {
      Place& place = places[round % 2 == 0 ? i : places.size() - 1 - i];
      for (int step = 0; step < kSteps; ++step) place.seconds.push_back(place.bench.step(place.sequence));
    }
  }
  const double base = median(places.front().seconds);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Place& place = places[i];
    const double time = median(place.seconds);
    fmt::print("{:<10} {:>8.1f} us a step, {:>+7.1f} us, {:.2f} waits a step; {}\n",
               backend::ngram_mode_name(place.model->backend().ngram_store()->mode()), time * 1e6, (time - base) * 1e6,
               static_cast<double>(place.model->backend().waits() - waits[i]) / (kRounds * kSteps),
               backend::ngram_report(*place.model->backend().ngram_store()));
  }
  return 0;
}

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
  if (count > 5 && std::string_view(arguments[5]) == "tables") {
    std::vector<backend::NgramMode> modes;
    for (int i = 6; i < count; ++i) {
      if (const auto mode = backend::find_ngram_mode(arguments[i])) modes.push_back(*mode);
    }
    return compare_places(artifact, std::max(64, std::atoi(arguments[4])), std::move(modes));
  }
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
