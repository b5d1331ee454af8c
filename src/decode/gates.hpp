// The gates of `lockstep verify`: the project's equalities, tried on the user's own model and machine.
//
// Every gate compares runs with one reference per request: plain decoding with one thread, all lanes off and the prompt
// fed token by token, on the machine's fastest kernels; the gate of instruction sets tries all others. Each armed lane
// has a gate of its own, in which it is the only one on. Compared are the emitted ids,
// the reason of the end, and every part of the final state.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "artifact/artifact.hpp"
#include "backend/device.hpp"
#include "base/result.hpp"
#include "decode/decoder.hpp"
#include "decode/lanes.hpp"

namespace lockstep::decode {

struct GateOptions {
  double seconds = 60;       ///< time budget: no new case starts after it
  std::int64_t tokens = 32;  ///< emitted per request
  std::uint64_t seed = 1;    ///< of the random prompts
  std::vector<std::int64_t> prompt_lengths{1, 3, 40, 150};
  std::size_t threads = 0;                 ///< most threads tried; 0: physical cores
  std::int64_t vocab = 0;                  ///< usable vocabulary
  backend::DeviceChoice device;            ///< what is tried; the reference always runs on the processor
  Lanes lanes;                             ///< those that are armed are tried
  std::vector<std::int32_t> draft_tokens;  ///< of the short draft head; empty: frspec declines
};

struct GateResult {
  std::string name;
  std::int64_t cases = 0, planned = 0;  ///< fewer cases than planned when the time ran out
  bool passed = true;
  std::string difference;  ///< the first: case, token or state part
  double seconds = 0;
};

struct GateReport {
  std::vector<GateResult> gates;
  std::vector<LaneReport> lanes;  ///< verdict on this model, and what ran in all cases together
  std::string digest;             ///< SHA-256 over the reference's ids of all requests, in order
  [[nodiscard]] bool passed() const;
  /// Whether every planned case ran.
  [[nodiscard]] bool complete() const;
};

/// Called before every case with the gate's name and how many cases of all are done; false ends the run with Cancelled.
using GateProgress = std::function<bool(const std::string& gate, std::int64_t done, std::int64_t total)>;

/// Runs all gates. Errors are failures to run at all; differences are in the report.
Result<GateReport> run_gates(const artifact::Artifact& artifact, const GateOptions& options,
                             const GateProgress& progress);

}  // namespace lockstep::decode
