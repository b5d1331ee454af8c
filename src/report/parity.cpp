#include "report/parity.hpp"

#include <algorithm>
#include <map>

namespace lockstep::report {
namespace {

bool is_off(const LaneState& lane) {
  return lane.verdict.starts_with("off");
}

const LaneState* find_lane(const WindowRecord& record, const std::string& name) {
  const auto found = std::ranges::find(record.lanes, name, &LaneState::name);
  return found == record.lanes.end() ? nullptr : &*found;
}

bool is_armed(const LaneState& lane) {
  return lane.verdict == "armed";
}

/// In how many windows a lane is what; windows that did not start have no lanes.
struct LaneCount {
  std::size_t armed = 0, off = 0, declined = 0;
};

/// Of the windows of the arm, or with `other` of all other arms.
LaneCount count_lane(const Run& run, const std::string& lane, std::size_t arm, bool other) {
  LaneCount count;
  for (std::size_t w = 0; w < run.records.size(); ++w) {
    if ((run.windows[w].arm != arm) != other) continue;
    const LaneState* state = find_lane(run.records[w], lane);
    if (state == nullptr) continue;
    ++(is_armed(*state) ? count.armed : is_off(*state) ? count.off : count.declined);
  }
  return count;
}

bool is_under_test(const Run& run, const std::string& lane, std::size_t arm) {
  const LaneCount own = count_lane(run, lane, arm, false), others = count_lane(run, lane, arm, true);
  if (own.off > 0) return false;
  return others.off > 0 || (own.armed > 0 && others.declined > 0);
}

std::string first_difference(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  const auto [in_a, in_b] = std::ranges::mismatch(a, b);
  const auto at = in_a - a.begin();
  const auto text = [](const std::vector<std::int32_t>& ids, auto place) {
    return place == ids.end() ? std::string("nothing") : std::to_string(*place);
  };
  return fmt::format("token {} of the answer is {}, not {}", at, text(b, in_b), text(a, in_a));
}

void check_windows(const Run& run, std::vector<std::string>& out) {
  for (std::size_t w = 0; w < run.records.size(); ++w) {
    if (!run.records[w].error.empty()) {
      out.push_back(fmt::format("window {}: {}", run.windows[w].label, run.records[w].error));
    }
  }
  for (const Sample& sample : run.samples) {
    const std::string where = fmt::format("window {}, seed {}", run.windows[sample.window].label, sample.seed);
    if (!sample.error.empty()) {
      out.push_back(fmt::format("{}: {}", where, sample.error));
    } else if (sample.prefill_tokens != sample.prompt_tokens) {
      out.push_back(fmt::format("{}: not cold: {} of {} prompt tokens went through the model", where,
                                sample.prefill_tokens, sample.prompt_tokens));
    }
  }
}

void check_parity(const Run& run, std::vector<std::string>& out) {
  std::map<std::uint64_t, const Sample*> references;
  for (const Sample& sample : run.samples) {
    if (!sample.error.empty()) continue;
    const auto [reference, is_first] = references.emplace(sample.seed, &sample);
    if (is_first) continue;
    const std::string found = difference(*reference->second, sample);
    if (found.empty()) continue;
    out.push_back(fmt::format("seed {}: window {} differs from {}: {}", sample.seed, run.windows[sample.window].label,
                              run.windows[reference->second->window].label, found));
  }
}

void check_lanes(const Run& run, std::vector<std::string>& out) {
  std::vector<std::vector<std::string>> tested;
  for (std::size_t arm = 0; arm < run.arms.size(); ++arm) tested.push_back(lanes_under_test(run, arm));
  for (std::size_t w = 0; w < run.records.size(); ++w) {
    if (!run.records[w].error.empty()) continue;
    for (const std::string& lane : tested[run.windows[w].arm]) {
      const LaneState* state = find_lane(run.records[w], lane);
      if (state == nullptr || !is_armed(*state)) {
        out.push_back(fmt::format("window {}: lane {} is {}", run.windows[w].label, lane,
                                  state == nullptr ? "unknown" : state->verdict));
      }
    }
  }
  for (const Sample& sample : run.samples) {
    if (!sample.error.empty()) continue;
    const Window& window = run.windows[sample.window];
    for (const std::string& lane : tested[window.arm]) {
      if (std::ranges::find(sample.lanes, lane) != sample.lanes.end()) continue;
      out.push_back(fmt::format("window {}, seed {}: lane {} did not run", window.label, sample.seed, lane));
    }
    for (const std::string& lane : sample.lanes) {
      const LaneState* state = find_lane(run.records[sample.window], lane);
      if (state == nullptr || !is_off(*state)) continue;
      out.push_back(fmt::format("window {}, seed {}: lane {} ran although it is {}", window.label, sample.seed, lane,
                                state->verdict));
    }
  }
}

}  // namespace

std::string difference(const Sample& reference, const Sample& other) {
  if (other.digests.request != reference.digests.request) return "the request's body is another one";
  if (other.digests.prompt_ids != reference.digests.prompt_ids || other.prompt_tokens != reference.prompt_tokens) {
    return "the prompt's tokens are others";
  }
  if (other.ids != reference.ids) return first_difference(reference.ids, other.ids);
  if (other.digests.ids != reference.digests.ids || other.tokens != reference.tokens)
    return "the answer's ids or count";
  if (other.digests.reasoning != reference.digests.reasoning) return "the reasoning";
  if (other.digests.text != reference.digests.text) return "the text";
  if (other.finish != reference.finish) return fmt::format("it ends by {}, not {}", other.finish, reference.finish);
  return {};
}

std::vector<SeedParity> seed_parity(const Run& run) {
  std::vector<SeedParity> out;
  for (const std::uint64_t seed : run.seeds) {
    SeedParity& parity = out.emplace_back();
    parity.seed = seed;
    for (const Sample& sample : run.samples) {
      if (sample.seed != seed || !sample.error.empty()) continue;
      ++parity.answers;
      if (parity.first == nullptr) parity.first = &sample;
      if (!parity.difference.empty()) continue;
      const std::string found = difference(*parity.first, sample);
      if (!found.empty()) parity.difference = fmt::format("window {}: {}", run.windows[sample.window].label, found);
    }
  }
  return out;
}

std::vector<std::string> lanes_under_test(const Run& run, std::size_t arm) {
  std::vector<std::string> out;
  const auto record = std::ranges::find_if(run.records, [](const WindowRecord& r) { return !r.lanes.empty(); });
  if (record != run.records.end()) {
    for (const LaneState& lane : record->lanes) {
      if (is_under_test(run, lane.name, arm)) out.push_back(lane.name);
    }
  }
  const std::string prefix = run.arms[arm].name + "=";
  for (const std::string& required : run.required) {
    if (!required.starts_with(prefix)) continue;
    const std::string lane = required.substr(prefix.size());
    if (std::ranges::find(out, lane) == out.end()) out.push_back(lane);
  }
  return out;
}

std::vector<std::string> failures(const Run& run) {
  std::vector<std::string> out;
  check_windows(run, out);
  check_parity(run, out);
  check_lanes(run, out);
  if (!run.complete) out.emplace_back("the run is incomplete");
  return out;
}

}  // namespace lockstep::report
