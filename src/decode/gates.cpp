#include "decode/gates.hpp"

#include <algorithm>
#include <chrono>
#include <map>

#include "base/sha256.hpp"
#include "decode/lanes/ar_pipeline.hpp"
#include "numerics/pcg64.hpp"

namespace lockstep::decode {
namespace {

using Clock = std::chrono::steady_clock;

/// How one run is made.
struct Setup {
  std::string isa{kernels::available_kernels().front()->name};
  std::size_t threads = 1;
  backend::StateType state = backend::StateType::BF16;
  std::int64_t chunk = 1;
  std::int64_t depth = 0;  ///< 0: plain
  bool capture = true;
  bool restore = false;        ///< save, restore and fork the sequence in the middle of the prompt
  bool pipelined = false;      ///< ar_pipeline
  bool warm = false;           ///< decode the request twice on this model and compare the second answer
  bool short_head = false;     ///< frspec
  backend::LaneOptions lanes;  ///< ple_cached_aux and qsa_pooled_rowsel
  backend::DeviceChoice device;

  [[nodiscard]] std::string text() const {
    const std::string where = device.cuda ? device.text() : fmt::format("isa {}, {} threads", isa, threads);
    return fmt::format(
        "{}, state {}, prompt chunks of {}, {}{}{}{}{}{}", where, state == backend::StateType::BF16 ? "bf16" : "f32",
        chunk, depth == 0 ? std::string("plain") : fmt::format("depth {}", depth),
        depth > 0 && !capture ? ", gdn_capture off" : (restore ? ", restored" : ""), pipelined ? ", ar_pipeline" : "",
        short_head ? ", frspec" : "", lanes.ple_aux_bytes > 0 ? ", ple_cached_aux" : "",
        lanes.pooled_rowsel ? ", qsa_pooled_rowsel" : "");
  }
};

using Parts = std::vector<std::pair<std::string_view, std::vector<std::byte>>>;

struct Outcome {
  std::vector<TokenId> ids;
  Finish finish = Finish::None;
  Parts state;
};

/// One comparison: a request, the run under test, and the state type of its reference.
struct Case {
  std::size_t request = 0;
  Setup setup;
};

struct Gate {
  std::string name;
  std::vector<Case> cases;
};

class Prover {
 public:
  Prover(const artifact::Artifact& artifact, const GateOptions& options) : artifact_(artifact), options_(options) {}

  Result<GateReport> run(const GateProgress& progress) {
    make_requests();
    LOCKSTEP_TRY(install());
    const std::vector<Gate> gates = plan();
    std::int64_t total = 0;
    for (const Gate& gate : gates) total += static_cast<std::int64_t>(gate.cases.size());
    GateReport report;
    for (const Gate& gate : gates) {
      report.gates.push_back({gate.name, 0, static_cast<std::int64_t>(gate.cases.size()), true, {}, 0});
    }
    // One case of every gate after the other, so that a short budget leaves no gate untried.
    std::int64_t done = 0;
    for (std::size_t round = 0; done < total; ++round) {
      for (std::size_t i = 0; i < gates.size(); ++i) {
        if (round >= gates[i].cases.size()) continue;
        if (std::chrono::duration<double>(Clock::now() - begin_).count() > options_.seconds) return finish(report);
        if (progress && !progress(gates[i].name, done, total)) return fail(ErrorKind::Cancelled, "interrupted");
        LOCKSTEP_TRY(try_case(gates[i].cases[round], report.gates[i]));
        ++done;
      }
    }
    return finish(report);
  }

 private:
  Result<GateReport> finish(GateReport& report) {
    report.digest = LOCKSTEP_TRY(digest());
    const model::Model* used = LOCKSTEP_TRY(model(all_lanes()));
    report.lanes = lane_report(lanes_, *used, ran_);
    return std::move(report);
  }

  /// Everything on that the user has not switched off.
  [[nodiscard]] Setup all_lanes() const {
    Setup setup;
    setup.device = options_.device;
    setup.lanes = options_.lanes.for_backend();
    return setup;
  }

  /// The verdicts of the lanes on this model.
  Status install() {
    const model::Model* used = LOCKSTEP_TRY(model(all_lanes()));
    lanes_ = options_.lanes;
    lanes_.install(*used);
    // Lanes that need mtp out of the way are tried without it.
    if (!lanes_.armed(LaneId::ArPipeline) && options_.lanes.armed(LaneId::ArPipeline)) {
      Lanes plain = options_.lanes;
      plain.switch_off(LaneId::Mtp, "this gate");
      plain.install(*used);
      plain_pipeline_ = plain.armed(LaneId::ArPipeline);
    } else {
      plain_pipeline_ = lanes_.armed(LaneId::ArPipeline);
    }
    return {};
  }

  Status try_case(const Case& test, GateResult& result) {
    if (!result.passed) return {};  // one difference of a gate is enough
    const auto begin = Clock::now();
    LOCKSTEP_TRY(compare(test, result));
    ++result.cases;
    result.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    return {};
  }

  /// Random prompts, greedy and sampled under both draw rules.
  void make_requests() {
    numerics::Pcg64 random(options_.seed);
    const artifact::ModelConfig& config = artifact_.config();
    for (std::size_t i = 0; i < options_.prompt_lengths.size(); ++i) {
      for (const double temperature : {0.0, 0.7, 1.0}) {
        DecodeRequest request;
        const std::int64_t length = std::min(options_.prompt_lengths[i], config.max_positions - 1);
        for (std::int64_t t = 0; t < length; ++t) {
          request.prompt.push_back(static_cast<TokenId>(random.next() % static_cast<std::uint64_t>(options_.vocab)));
        }
        request.sampler.temperature = temperature;
        request.sampler.top_k = 20;
        request.sampler.top_p = 0.95;
        request.sampler.seed = random.next();
        request.sampler.draw_rule = i % 2 == 0 ? DrawRule::Pcg64 : DrawRule::Race;
        request.max_tokens = options_.tokens;
        request.vocab = options_.vocab;
        requests_.push_back(std::move(request));
      }
    }
  }

  [[nodiscard]] std::vector<Gate> plan() const {
    const std::size_t threads = options_.threads == 0 ? physical_cores() : options_.threads;
    std::vector<Gate> gates;
    const auto gate = [&](std::string name, const std::vector<Setup>& setups) {
      Gate made{std::move(name), {}};
      for (std::size_t request = 0; request < requests_.size(); ++request) {
        for (const Setup& setup : setups) made.cases.push_back({request, setup});
      }
      gates.push_back(std::move(made));
    };
    Setup fast;
    fast.threads = threads;
    fast.chunk = kPrefillChunk;
    fast.device = options_.device;
    fast.capture = lanes_.armed(LaneId::GdnCapture);
    const auto with = [&](auto change) {
      Setup setup = fast;
      change(setup);
      return setup;
    };
    if (options_.device.cuda) {
      gate("device " + options_.device.text(), {fast, with([](Setup& s) { s.chunk = 1; })});
    } else {
      std::vector<Setup> sets;
      for (const kernels::Kernels* table : kernels::available_kernels()) {
        sets.push_back(with([&](Setup& s) { s.isa = std::string(table->name); }));
      }
      gate("instruction sets", sets);
      gate("thread counts", {with([](Setup& s) { s.threads = 1; }), with([](Setup& s) { s.threads = 3; })});
    }
    gate("prompt chunkings", {with([](Setup& s) { s.chunk = 3; }), with([](Setup& s) { s.chunk = 17; })});
    gate("save, restore and fork", {with([](Setup& s) { s.restore = true; })});
    gate("state type f32", {with([](Setup& s) { s.state = backend::StateType::F32; })});
    if (lanes_.armed(LaneId::Mtp)) {
      std::vector<Setup> depths;
      for (std::int64_t depth = 1; depth <= kMaxDepth; ++depth) {
        depths.push_back(with([&](Setup& s) { s.depth = depth; }));
      }
      gate("lane mtp", depths);
      if (lanes_.armed(LaneId::GdnCapture)) {
        gate("lane gdn_capture, on and off", {with([](Setup& s) { s.depth = 3; }), with([](Setup& s) {
                                                s.depth = 3;
                                                s.capture = false;
                                              })});
      }
      gate("speculative, state type f32", {with([](Setup& s) {
             s.depth = 3;
             s.state = backend::StateType::F32;
           })});
    }
    if (plain_pipeline_) gate("lane ar_pipeline", {with([](Setup& s) { s.pipelined = true; })});
    if (lanes_.armed(LaneId::PleCachedAux)) {
      // Fifty entries or so are fewer than a prompt has rows, so that entries make room for others.
      const std::uint64_t small = 50 * static_cast<std::uint64_t>(artifact_.config().wide_size()) * sizeof(float);
      const auto kept = [&](std::uint64_t bytes) {
        return with([bytes](Setup& s) {
          s.lanes.ple_aux_bytes = bytes;
          s.warm = true;
        });
      };
      gate("lane ple_cached_aux", {kept(backend::kPleAuxBytes), kept(small)});
    }
    if (lanes_.armed(LaneId::QsaPooledRowsel)) {
      gate("lane qsa_pooled_rowsel", {with([](Setup& s) { s.lanes.pooled_rowsel = true; }), with([](Setup& s) {
                                        s.lanes.pooled_rowsel = true;
                                        s.chunk = 5;
                                      })});
    }
    if (lanes_.armed(LaneId::Frspec)) {
      gate("lane frspec", {with([](Setup& s) {
             s.depth = 3;
             s.short_head = true;
           })});
    }
    gate("all armed lanes", {with([&](Setup& s) {
           s.lanes = lanes_.for_backend();
           s.depth = lanes_.armed(LaneId::Mtp) ? 3 : 0;
           s.short_head = lanes_.armed(LaneId::Frspec);
           s.pipelined = lanes_.armed(LaneId::ArPipeline);
         })});
    return gates;
  }

  Result<model::Model*> model(const Setup& setup) {
    const std::string key = fmt::format("{} {} {} {} {} {}", setup.device.text(), setup.isa, setup.threads,
                                        setup.state == backend::StateType::BF16 ? 16 : 32, setup.lanes.ple_aux_bytes,
                                        setup.lanes.pooled_rowsel);
    if (key == loaded_key_) return loaded_.get();
    backend::CpuOptions cpu;
    cpu.isa = setup.isa;
    cpu.threads = setup.threads;
    cpu.lanes = setup.lanes;
    loaded_.reset();
    std::unique_ptr<backend::Backend> backend = LOCKSTEP_TRY(backend::create_backend(setup.device, cpu));
    model::ModelOptions model_options;
    model_options.state = setup.state;
    if (options_.lanes.armed(LaneId::Frspec)) model_options.draft_tokens = options_.draft_tokens;
    loaded_ = LOCKSTEP_TRY(model::Model::load(artifact_, std::move(backend), model_options));
    loaded_key_ = key;
    return loaded_.get();
  }

  Result<Outcome> decode(const DecodeRequest& request, const Setup& setup) {
    if (setup.warm) LOCKSTEP_TRY(decode_once(request, setup));
    return decode_once(request, setup);
  }

  Result<Outcome> decode_once(const DecodeRequest& request, const Setup& setup) {
    model::Model* used = LOCKSTEP_TRY(model(setup));
    std::unique_ptr<Decoder> decoder;
    if (setup.depth == 0) {
      decoder = LOCKSTEP_TRY(make_plain_decoder(*used, setup.chunk));
    } else {
      SpeculativeOptions speculative;
      speculative.depth = setup.depth;
      speculative.capture = setup.capture;
      speculative.short_head = setup.short_head;
      speculative.prefill_chunk = setup.chunk;
      decoder = LOCKSTEP_TRY(make_speculative_decoder(*used, speculative));
    }
    DecodeRequest asked = request;
    asked.round_trip_state = setup.restore;
    LOCKSTEP_TRY(decoder->start(asked, {}));
    Outcome outcome;
    const std::unique_ptr<Driver> driver =
        setup.pipelined ? LOCKSTEP_TRY(make_pipelined_driver()) : make_plain_driver();
    const TokenSink sink = [&](std::span<const Choice> tokens) -> Result<bool> {
      for (const Choice& token : tokens) outcome.ids.push_back(token.id);
      return true;
    };
    LOCKSTEP_TRY(driver->run(*decoder, sink, [] {}));
    add_up(decoder->stats());
    outcome.finish = decoder->finish();
    outcome.state = decoder->sequence()->save_parts(false);
    return outcome;
  }

  /// What ran in all cases together.
  void add_up(const DecodeStats& stats) {
    for (std::size_t i = 0; i < ran_.drafted.size(); ++i) {
      ran_.drafted[i] += stats.drafted[i];
      ran_.accepted[i] += stats.accepted[i];
    }
    ran_.captured_steps += stats.captured_steps;
    ran_.recomputed_tokens += stats.recomputed_tokens;
    ran_.steps_ahead += stats.steps_ahead;
    ran_.short_head_rows += stats.short_head_rows;
    ran_.backend = ran_.backend + stats.backend;
  }

  Result<const Outcome*> reference(std::size_t request, backend::StateType state) {
    const auto key = std::make_pair(request, state);
    const auto found = references_.find(key);
    if (found != references_.end()) return &found->second;
    Setup plain;
    plain.state = state;
    Outcome outcome = LOCKSTEP_TRY(decode(requests_[request], plain));
    return &references_.emplace(key, std::move(outcome)).first->second;
  }

  Status compare(const Case& test, GateResult& result) {
    const Outcome* expected = LOCKSTEP_TRY(reference(test.request, test.setup.state));
    const Outcome outcome = LOCKSTEP_TRY(decode(requests_[test.request], test.setup));
    const std::string difference = first_difference(*expected, outcome);
    if (difference.empty()) return {};
    result.passed = false;
    result.difference = fmt::format("request {} ({}): {}", test.request, test.setup.text(), difference);
    return {};
  }

  static std::string first_difference(const Outcome& expected, const Outcome& outcome) {
    const auto [a, b] = std::mismatch(expected.ids.begin(), expected.ids.end(), outcome.ids.begin(), outcome.ids.end());
    if (a != expected.ids.end() || b != outcome.ids.end()) {
      return fmt::format("token {} differs", a - expected.ids.begin());
    }
    if (expected.finish != outcome.finish) return "the reason of the end differs";
    for (std::size_t i = 0; i < expected.state.size(); ++i) {
      if (expected.state[i].second != outcome.state.at(i).second) {
        return fmt::format("all tokens are equal, but the state differs in: {}", expected.state[i].first);
      }
    }
    return {};
  }

  Result<std::string> digest() {
    Sha256 hash;
    for (const auto& [key, outcome] : references_) {
      if (key.second != backend::StateType::BF16) continue;
      hash.update(std::as_bytes(std::span(outcome.ids)));
    }
    return hash.hex();
  }

  const artifact::Artifact& artifact_;
  const GateOptions& options_;
  Clock::time_point begin_ = Clock::now();
  std::vector<DecodeRequest> requests_;
  std::map<std::pair<std::size_t, backend::StateType>, Outcome> references_;
  std::unique_ptr<model::Model> loaded_;
  std::string loaded_key_;
  Lanes lanes_;                  ///< with their verdicts on this model
  bool plain_pipeline_ = false;  ///< ar_pipeline is armed when mtp is not
  DecodeStats ran_;
};

}  // namespace

bool GateReport::complete() const {
  return std::all_of(gates.begin(), gates.end(), [](const GateResult& gate) { return gate.cases == gate.planned; });
}

bool GateReport::passed() const {
  return std::all_of(gates.begin(), gates.end(), [](const GateResult& gate) { return gate.passed; });
}

Result<GateReport> run_gates(const artifact::Artifact& artifact, const GateOptions& options,
                             const GateProgress& progress) {
  return Prover(artifact, options).run(progress);
}

}  // namespace lockstep::decode
