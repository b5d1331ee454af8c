#include "decode/gates.hpp"

#include <algorithm>
#include <chrono>
#include <map>

#include "base/sha256.hpp"
#include "decode/file_gates.hpp"
#include "decode/gate_run.hpp"
#include "numerics/pcg64.hpp"

namespace lockstep::decode {
namespace {

using Clock = std::chrono::steady_clock;

/// One comparison: a request, and the run under test.
struct Case {
  std::size_t request = 0;
  GateSetup setup;
};

struct Gate {
  std::string name;
  std::optional<LaneId> lane;
  std::vector<Case> cases;
};

void add_up(DecodeStats& sum, const DecodeStats& stats) {
  for (std::size_t i = 0; i < sum.drafted.size(); ++i) {
    sum.drafted[i] += stats.drafted[i];
    sum.accepted[i] += stats.accepted[i];
  }
  sum.captured_steps += stats.captured_steps;
  sum.recomputed_tokens += stats.recomputed_tokens;
  sum.steps_ahead += stats.steps_ahead;
  sum.launched_steps += stats.launched_steps;
  sum.prepared_steps += stats.prepared_steps;
  sum.foreseen_tokens += stats.foreseen_tokens;
  sum.short_head_rows += stats.short_head_rows;
  sum.backend = sum.backend + stats.backend;
}

class Prover {
 public:
  Prover(const artifact::Artifact& artifact, const GateOptions& options)
      : artifact_(artifact),
        options_(options),
        threads_(options.threads == 0 ? physical_cores() : options.threads),
        runner_(artifact, options) {}

  Result<GateReport> run(const GateProgress& progress) {
    GateReport report;
    LOCKSTEP_TRY(begin_files(report));
    LOCKSTEP_TRY(install());
    make_requests();
    const std::vector<Gate> gates = plan();
    const std::size_t first = report.gates.size();
    std::int64_t total = 0;
    for (const Gate& gate : gates) {
      const auto cases = static_cast<std::int64_t>(gate.cases.size());
      report.gates.push_back({gate.name, 0, cases, true, {}, 0, gate.lane, 0});
      total += cases;
    }
    // One case of every gate after the other, so that a short budget leaves no gate untried.
    std::int64_t done = 0;
    for (std::size_t round = 0; done < total; ++round) {
      for (std::size_t i = 0; i < gates.size(); ++i) {
        if (round >= gates[i].cases.size()) continue;
        if (std::chrono::duration<double>(Clock::now() - begin_).count() > options_.seconds) return finish(report);
        if (progress && !progress(gates[i].name, done, total)) return fail(ErrorKind::Cancelled, "interrupted");
        LOCKSTEP_TRY(try_case(gates[i].cases[round], report.gates[first + i]));
        ++done;
      }
    }
    return finish(report);
  }

 private:
  /// Counts one case of a gate that looks at files.
  static void file_case(GateResult& gate, std::string difference, Clock::time_point begin) {
    ++gate.cases;
    gate.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    if (difference.empty() || !gate.passed) return;
    gate.passed = false;
    gate.difference = std::move(difference);
  }

  /// The gates of files come first; identity and hashes are looked at again when all others are done. A model in memory
  /// has no files.
  Status begin_files(GateReport& report) {
    if (artifact_.inventory().empty()) return {};
    const auto gate = [&](std::string name, std::int64_t planned) -> GateResult& {
      return report.gates.emplace_back(GateResult{std::move(name), 0, planned, true, {}, 0, std::nullopt, 0});
    };
    auto begin = Clock::now();
    file_case(gate("identity", 2), identity_difference(artifact_), begin);
    begin = Clock::now();
    file_case(gate("tensor inventory", 1), inventory_difference(artifact_), begin);
    if (!options_.hash) return {};
    begin = Clock::now();
    report.files = LOCKSTEP_TRY(hashes());
    file_case(gate("file hashes", 2), "", begin);
    return {};
  }

  Result<std::vector<artifact::FileHash>> hashes() const {
    return artifact::hash_files(
        artifact_, [this](std::uint64_t) { return options_.cancel == nullptr || !options_.cancel->load(); });
  }

  Status end_files(GateReport& report) {
    for (GateResult& gate : report.gates) {
      const auto begin = Clock::now();
      if (gate.name == "identity") file_case(gate, identity_difference(artifact_), begin);
      if (gate.name != "file hashes") continue;
      const auto again = LOCKSTEP_TRY(hashes());
      file_case(gate, hash_difference(report.files, again), begin);
    }
    return {};
  }

  Result<GateReport> finish(GateReport& report) {
    LOCKSTEP_TRY(end_files(report));
    Sha256 hash;
    for (const auto& [key, outcome] : references_) {
      if (key.second != backend::StateType::BF16) continue;
      hash.update(std::as_bytes(std::span(outcome.ids)));
      report.answers.push_back({requests_[key.first], outcome.ids});
    }
    report.digest = hash.hex();
    report.requests = requests_.size();
    report.instruction_sets.assign(runner_.instruction_sets().begin(), runner_.instruction_sets().end());
    report.thread_counts.assign(runner_.thread_counts().begin(), runner_.thread_counts().end());
    const model::Model* used = LOCKSTEP_TRY(runner_.model(all_lanes()));
    report.lanes = lane_report(lanes_, *used, ran_);
    return std::move(report);
  }

  /// Everything on that the user has not switched off.
  [[nodiscard]] GateSetup all_lanes() const {
    GateSetup setup;
    setup.device = options_.device;
    setup.lanes = options_.lanes.for_backend();
    return setup;
  }

  /// The verdicts of the lanes on this model. A lane that needs mtp out of the way is tried without it.
  Status install() {
    const model::Model* used = LOCKSTEP_TRY(runner_.model(all_lanes()));
    lanes_ = options_.lanes;
    lanes_.install(*used);
    together_ = lanes_;
    if (lanes_.armed(LaneId::ArPipeline) || !options_.lanes.armed(LaneId::ArPipeline)) return {};
    Lanes plain = options_.lanes;
    plain.switch_off(LaneId::Mtp, "this gate");
    plain.install(*used);
    if (plain.armed(LaneId::ArPipeline)) lanes_.arm(LaneId::ArPipeline, "tried with mtp off");
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
    for (std::size_t i = 0; i < options_.prompt_lengths.size(); ++i) {
      for (const double temperature : {0.0, 0.7, 1.0}) {
        add_request(options_.prompt_lengths[i], temperature, i % 2 == 0 ? DrawRule::Pcg64 : DrawRule::Race);
      }
    }
    const artifact::ModelConfig& config = artifact_.config();
    const bool selects = lanes_.armed(LaneId::QsaPooledRowsel) || options_.device.cuda;
    const std::int64_t length = config.indexer_budget + 4 * config.indexer_ratio + 1;
    if (selects && length < config.max_positions) {
      long_request_ = requests_.size();
      add_request(length, 0.7, DrawRule::Pcg64);
    }
  }

  void add_request(std::int64_t length, double temperature, DrawRule rule) {
    DecodeRequest request;
    length = std::min(length, artifact_.config().max_positions - 1);
    for (std::int64_t t = 0; t < length; ++t) {
      request.prompt.push_back(static_cast<TokenId>(random_.next() % static_cast<std::uint64_t>(options_.vocab)));
    }
    request.sampler.temperature = temperature;
    request.sampler.top_k = 20;
    request.sampler.top_p = 0.95;
    request.sampler.seed = random_.next();
    request.sampler.draw_rule = rule;
    request.max_tokens = options_.tokens;
    request.vocab = options_.vocab;
    requests_.push_back(std::move(request));
  }

  /// The fast path without lanes.
  [[nodiscard]] GateSetup fast() const {
    GateSetup setup;
    setup.threads = threads_;
    setup.chunk = kPrefillChunk;
    setup.device = options_.device;
    setup.capture = lanes_.armed(LaneId::GdnCapture);
    return setup;
  }

  template <class Change>
  [[nodiscard]] GateSetup with(Change change) const {
    GateSetup setup = fast();
    change(setup);
    return setup;
  }

  /// All requests with all setups; `selects`: the long one too, and first.
  [[nodiscard]] Gate gate(std::string name, const std::vector<GateSetup>& setups, bool selects = false,
                          std::optional<LaneId> lane = std::nullopt) const {
    Gate made{std::move(name), lane, {}};
    const auto add = [&](std::size_t request) {
      for (const GateSetup& setup : setups) made.cases.push_back({request, setup});
    };
    if (selects && long_request_) add(*long_request_);
    for (std::size_t request = 0; request < requests_.size(); ++request) {
      if (request != long_request_) add(request);
    }
    return made;
  }

  void plan_device(std::vector<Gate>& gates) const {
    if (options_.device.cuda) {
      gates.push_back(
          gate("device " + options_.device.text(), {fast(), with([](GateSetup& s) { s.chunk = 1; })}, true));
      return;
    }
    std::vector<GateSetup> sets;
    for (const kernels::Kernels* table : kernels::available_kernels()) {
      sets.push_back(with([&](GateSetup& s) { s.isa = std::string(table->name); }));
    }
    gates.push_back(gate("instruction sets", sets));
    gates.push_back(
        gate("thread counts", {with([](GateSetup& s) { s.threads = 1; }), with([](GateSetup& s) { s.threads = 3; })}));
  }

  void plan_speculation(std::vector<Gate>& gates) const {
    if (!lanes_.armed(LaneId::Mtp)) return;
    const auto lane = [&](LaneId id, const std::vector<GateSetup>& setups) {
      const std::string name(known_lanes()[static_cast<std::size_t>(id)].name);
      gates.push_back(gate("lane " + name, setups, false, id));
    };
    std::vector<GateSetup> depths;
    for (std::int64_t depth = 1; depth <= kMaxDepth; ++depth) {
      depths.push_back(with([&](GateSetup& s) { s.depth = depth; }));
    }
    lane(LaneId::Mtp, depths);
    const auto depth = [&](auto change) {
      return with([&](GateSetup& s) {
        s.depth = 3;
        change(s);
      });
    };
    if (lanes_.armed(LaneId::GdnCapture)) {
      lane(LaneId::GdnCapture, {depth([](GateSetup&) {}), depth([](GateSetup& s) { s.capture = false; })});
    }
    if (lanes_.armed(LaneId::Frspec)) lane(LaneId::Frspec, {depth([](GateSetup& s) { s.short_head = true; })});
    gates.push_back(
        gate("speculative, state type f32", {depth([](GateSetup& s) { s.state = backend::StateType::F32; })}));
  }

  [[nodiscard]] bool has_table_file() const {
    return !artifact_.inventory().empty() && !artifact_.config().ple_layers.empty();
  }

  /// Places of the n-gram table that no other gate has; a device chooses its own memory where the table fits.
  void plan_table(std::vector<Gate>& gates) const {
    if (artifact_.config().ple_layers.empty()) return;
    const auto in = [&](backend::NgramMode place) { return with([place](GateSetup& s) { s.table = place; }); };
    if (has_table_file()) gates.push_back(gate("streamed n-gram table", {in(backend::NgramMode::Streamed)}));
    if (options_.device.cuda) gates.push_back(gate("page-locked n-gram table", {in(backend::NgramMode::Pinned)}));
  }

  /// The two lanes whose route is the n-gram table are also tried on a streamed one.
  void plan_lanes(std::vector<Gate>& gates) const {
    const auto also_streamed = [&](std::vector<GateSetup> setups) {
      if (!has_table_file()) return setups;
      setups.push_back(setups.front());
      setups.back().table = backend::NgramMode::Streamed;
      return setups;
    };
    if (lanes_.armed(LaneId::ArPipeline)) {
      const GateSetup pipelined = with([](GateSetup& s) { s.pipelined = true; });
      gates.push_back(gate("lane ar_pipeline", also_streamed({pipelined}), false, LaneId::ArPipeline));
    }
    if (lanes_.armed(LaneId::PleCachedAux)) {
      // Fifty entries or so are fewer than a prompt has rows, so that entries make room for others.
      const std::uint64_t small = 50 * static_cast<std::uint64_t>(artifact_.config().wide_size()) * sizeof(float);
      const auto kept = [&](std::uint64_t bytes) {
        return with([bytes](GateSetup& s) {
          s.lanes.ple_aux_bytes = bytes;
          s.warm = true;
        });
      };
      gates.push_back(gate("lane ple_cached_aux", also_streamed({kept(backend::kPleAuxBytes), kept(small)}), false,
                           LaneId::PleCachedAux));
    }
    if (lanes_.armed(LaneId::QsaPooledRowsel)) {
      const auto selecting = [&](std::int64_t chunk) {
        return with([chunk](GateSetup& s) {
          s.lanes.pooled_rowsel = true;
          s.chunk = chunk;
        });
      };
      gates.push_back(
          gate("lane qsa_pooled_rowsel", {selecting(kPrefillChunk), selecting(5)}, true, LaneId::QsaPooledRowsel));
    }
    gates.push_back(gate("all armed lanes", {with([&](GateSetup& s) {
                           s.lanes = together_.for_backend();
                           s.depth = together_.armed(LaneId::Mtp) ? 3 : 0;
                           s.short_head = together_.armed(LaneId::Frspec);
                           s.pipelined = together_.armed(LaneId::ArPipeline);
                         })},
                         true));
  }

  /// Before every step the state is saved, restored and forked; with drafts too, whose cache is part of it.
  [[nodiscard]] Gate restored() const {
    std::vector<GateSetup> setups{with([](GateSetup& s) { s.restore = true; })};
    if (lanes_.armed(LaneId::Mtp)) {
      setups.push_back(setups.front());
      setups.back().depth = 3;
    }
    return gate("save, restore and fork", setups);
  }

  [[nodiscard]] std::vector<Gate> plan() const {
    std::vector<Gate> gates;
    plan_device(gates);
    plan_table(gates);
    gates.push_back(
        gate("prompt chunkings", {with([](GateSetup& s) { s.chunk = 3; }), with([](GateSetup& s) { s.chunk = 17; })}));
    gates.push_back(restored());
    gates.push_back(gate("state type f32", {with([](GateSetup& s) { s.state = backend::StateType::F32; })}));
    plan_speculation(gates);
    plan_lanes(gates);
    return gates;
  }

  [[nodiscard]] GateSetup plain(std::size_t request, backend::StateType state) const {
    GateSetup setup;
    setup.state = state;
    if (static_cast<std::int64_t>(requests_[request].prompt.size()) > kStepwise) {
      setup.chunk = 64;
      setup.threads = threads_;
    }
    return setup;
  }

  Result<const GateOutcome*> reference(std::size_t request, backend::StateType state) {
    const auto key = std::make_pair(request, state);
    const auto found = references_.find(key);
    if (found != references_.end()) return &found->second;
    GateOutcome outcome = LOCKSTEP_TRY(runner_.run(requests_[request], plain(request, state), nullptr));
    return &references_.emplace(key, std::move(outcome)).first->second;
  }

  Status compare(const Case& test, GateResult& result) {
    const GateOutcome* expected = LOCKSTEP_TRY(reference(test.request, test.setup.state));
    const GateOutcome outcome = LOCKSTEP_TRY(runner_.run(requests_[test.request], test.setup, nullptr));
    DecodeStats ran = outcome.stats;
    if (!test.setup.capture) ran.recomputed_tokens = 0;  // gdn_capture is off for comparison: not what it let through
    add_up(ran_, ran);
    if (result.lane) {
      const LaneInfo& lane = known_lanes()[static_cast<std::size_t>(*result.lane)];
      const model::Model* used = LOCKSTEP_TRY(runner_.model(test.setup));
      result.engaged += lane.ran(*used, outcome.stats).engaged;
    }
    const std::string difference = first_difference(*expected, outcome);
    if (difference.empty()) return {};
    result.passed = false;
    const std::string where = LOCKSTEP_TRY(locate(test));
    result.difference = fmt::format("request {} ({}): {}; {}", test.request, test.setup.text(), difference, where);
    return {};
  }

  /// Both runs again, looking at the state before every step.
  Result<std::string> locate(const Case& test) {
    StateTrace expected, outcome;
    const DecodeRequest& request = requests_[test.request];
    LOCKSTEP_TRY(runner_.run(request, plain(test.request, test.setup.state), &expected));
    LOCKSTEP_TRY(runner_.run(request, test.setup, &outcome));
    const auto found = first_state_difference(expected, outcome, static_cast<std::int64_t>(request.prompt.size()));
    if (!found) return std::string("run once more, no state before a step differed");
    return fmt::format("the state differs first before step {}, in: {}", found->step, found->part);
  }

  const artifact::Artifact& artifact_;
  const GateOptions& options_;
  std::size_t threads_;
  Clock::time_point begin_ = Clock::now();
  numerics::Pcg64 random_{options_.seed};
  GateRunner runner_;
  std::vector<DecodeRequest> requests_;
  std::optional<std::size_t> long_request_;  ///< whose context is longer than the index budget
  std::map<std::pair<std::size_t, backend::StateType>, GateOutcome> references_;
  Lanes lanes_;     ///< with their verdicts on this model, each one for itself
  Lanes together_;  ///< the verdicts when all are installed
  DecodeStats ran_;
};

}  // namespace

bool GateReport::complete() const {
  return std::all_of(gates.begin(), gates.end(),
                     [](const GateResult& gate) { return gate.cases == gate.planned && !gate.idle(); });
}

bool GateReport::passed() const {
  return std::all_of(gates.begin(), gates.end(), [](const GateResult& gate) { return gate.passed; });
}

Result<GateReport> run_gates(const artifact::Artifact& artifact, const GateOptions& options,
                             const GateProgress& progress) {
  return Prover(artifact, options).run(progress);
}

}  // namespace lockstep::decode
