#include "decode/gate_run.hpp"

#include <algorithm>

#include "artifact/model_walk.hpp"
#include "base/sha256.hpp"
#include "decode/lanes/ar_pipeline.hpp"

namespace lockstep::decode {
namespace {

/// Of the streamed table: fewer rows than a prompt has, so that rows make room for others.
constexpr std::uint64_t kStreamedCache = std::uint64_t{128} << 10;

Result<std::unique_ptr<Decoder>> make_decoder(const model::Model& model, const GateSetup& setup) {
  if (setup.depth == 0) return make_plain_decoder(model, setup.chunk);
  SpeculativeOptions speculative;
  speculative.depth = setup.depth;
  speculative.capture = setup.capture;
  speculative.short_head = setup.short_head;
  speculative.prefill_chunk = setup.chunk;
  return make_speculative_decoder(model, speculative);
}

void note_state(const model::Sequence& sequence, StateTrace& trace) {
  auto& digests = trace[sequence.length()];
  digests.clear();
  for (const auto& [name, bytes] : sequence.save_parts(false)) {
    Sha256 hash;
    hash.update(std::span<const std::byte>(bytes));
    digests.emplace_back(name, hash.hex());
  }
}

}  // namespace

std::string GateSetup::text() const {
  const std::string where = device.cuda ? device.text() : fmt::format("isa {}, {} threads", isa, threads);
  return fmt::format(
      "{}, state {}, prompt chunks of {}, {}{}{}{}{}{}{}{}", where, state == backend::StateType::BF16 ? "bf16" : "f32",
      chunk, depth == 0 ? std::string("plain") : fmt::format("depth {}", depth),
      depth > 0 && !capture ? ", gdn_capture off" : "", restore ? ", restored" : "", pipelined ? ", ar_pipeline" : "",
      short_head ? ", frspec" : "",
      table == backend::NgramMode::Auto ? "" : fmt::format(", {} table", backend::ngram_mode_name(table)),
      lanes.ple_aux_bytes > 0 ? ", ple_cached_aux" : "", lanes.pooled_rowsel ? ", qsa_pooled_rowsel" : "");
}

std::string first_difference(const GateOutcome& expected, const GateOutcome& outcome) {
  const auto [a, b] = std::mismatch(expected.ids.begin(), expected.ids.end(), outcome.ids.begin(), outcome.ids.end());
  const auto id = [](auto at, auto end) { return at == end ? std::string("the end") : std::to_string(*at); };
  if (a != expected.ids.end() || b != outcome.ids.end()) {
    return fmt::format("token {} differs: {} instead of {}", a - expected.ids.begin(), id(b, outcome.ids.end()),
                       id(a, expected.ids.end()));
  }
  if (expected.finish != outcome.finish) return "the reason of the end differs";
  if (expected.state.size() != outcome.state.size()) return "all tokens are equal, but the state has other parts";
  for (std::size_t i = 0; i < expected.state.size(); ++i) {
    if (expected.state[i].second != outcome.state[i].second) {
      return fmt::format("all tokens are equal, but the final state differs in: {}", expected.state[i].first);
    }
  }
  return {};
}

std::optional<StateDifference> first_state_difference(const StateTrace& expected, const StateTrace& outcome,
                                                      std::int64_t prompt) {
  for (const auto& [length, parts] : expected) {
    const auto other = outcome.find(length);
    if (other == outcome.end()) continue;
    for (std::size_t i = 0; i < std::min(parts.size(), other->second.size()); ++i) {
      if (parts[i] != other->second[i]) return StateDifference{length - prompt, parts[i].first};
    }
  }
  return std::nullopt;
}

Result<model::Model*> GateRunner::model(const GateSetup& setup) {
  const std::string key = fmt::format("{} {} {} {} {} {} {}", setup.device.text(), setup.isa, setup.threads,
                                      setup.state == backend::StateType::BF16 ? 16 : 32, setup.lanes.ple_aux_bytes,
                                      setup.lanes.pooled_rowsel, backend::ngram_mode_name(setup.table));
  if (key == loaded_key_) return loaded_.get();
  backend::CpuOptions cpu;
  cpu.isa = setup.isa;
  cpu.threads = setup.threads;
  cpu.lanes = setup.lanes;
  if (setup.device.cuda) {  // the automatic place of the table leaves room for the other weights
    for (const artifact::TensorRecord& tensor : artifact_.inventory()) cpu.ngram.other_bytes += tensor.bytes;
    for (const artifact::LayerView& layer : artifact_.view().layers) {
      if (layer.ple) cpu.ngram.other_bytes -= artifact::table_bytes(layer.ple->table);
    }
  }
  cpu.ngram.mode = setup.table;
  if (setup.table == backend::NgramMode::Streamed) cpu.ngram.cache_bytes = kStreamedCache;
  loaded_key_.clear();
  loaded_.reset();
  std::unique_ptr<backend::Backend> backend = LOCKSTEP_TRY(backend::create_backend(setup.device, cpu));
  if (options_.wrap) backend = options_.wrap(std::move(backend));
  model::ModelOptions model_options;
  model_options.state = setup.state;
  if (options_.lanes.armed(LaneId::Frspec)) model_options.draft_tokens = options_.draft_tokens;
  loaded_ = LOCKSTEP_TRY(model::Model::load(artifact_, std::move(backend), model_options));
  loaded_key_ = key;
  return loaded_.get();
}

Result<GateOutcome> GateRunner::run(const DecodeRequest& request, const GateSetup& setup, StateTrace* trace) {
  if (setup.warm) LOCKSTEP_TRY(run_once(request, setup, nullptr));
  return run_once(request, setup, trace);
}

Result<GateOutcome> GateRunner::run_once(const DecodeRequest& request, const GateSetup& setup, StateTrace* trace) {
  model::Model* used = LOCKSTEP_TRY(model(setup));
  if (!setup.device.cuda) {
    instruction_sets_.insert(setup.isa);
    thread_counts_.insert(setup.threads);
  }
  const std::unique_ptr<Decoder> decoder = LOCKSTEP_TRY(make_decoder(*used, setup));
  DecodeRequest asked = request;
  asked.round_trip_state = setup.restore;
  LOCKSTEP_TRY(decoder->start(asked, {}));
  GateOutcome outcome;
  const std::unique_ptr<Driver> driver = setup.pipelined ? LOCKSTEP_TRY(make_pipelined_driver()) : make_plain_driver();
  const TokenSink sink = [&](std::span<const Choice> tokens) -> Result<bool> {
    for (const Choice& token : tokens) outcome.ids.push_back(token.id);
    return true;
  };
  LOCKSTEP_TRY(driver->run(*decoder, sink, [&] {
    if (trace != nullptr) note_state(*decoder->sequence(), *trace);
  }));
  if (trace != nullptr) note_state(*decoder->sequence(), *trace);
  outcome.finish = decoder->finish();
  outcome.stats = decoder->stats();
  outcome.state = decoder->sequence()->save_parts(false);
  return outcome;
}

}  // namespace lockstep::decode
