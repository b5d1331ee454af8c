// The gates of `lockstep verify`: the project's equalities, tried on the user's own model and machine.
//
// Two gates look at the files. All others compare runs with one reference per request: plain decoding with one thread,
// all lanes off and the prompt fed token by token, on the machine's fastest kernels; the gate of instruction sets tries
// all others. Each armed lane has a gate of its own, in which it is the only one on (but for gdn_capture, which serves
// mtp and frspec where it is armed). Compared are the emitted ids, the reason of the end, and every part of the final
// state. Where runs differ, both are made again and their states compared step by step.
//
// One more request has a prompt just longer than the index budget of attention, so that groups of positions are
// selected; it is tried where that selection is. On large models it is too long to be fed token by token to one
// thread: beyond kStepwise tokens the reference takes it in chunks, on all threads.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "artifact/artifact.hpp"
#include "artifact/identity.hpp"
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
  std::size_t threads = 0;       ///< of the fast path; 0: physical cores. The gate of thread counts also tries others
  std::int64_t vocab = 0;        ///< usable vocabulary
  bool hash = false;             ///< also hash every file, before and after
  backend::DeviceChoice device;  ///< what is tried; the reference always runs on the processor
  Lanes lanes;                   ///< those that are armed are tried
  std::vector<std::int32_t> draft_tokens;     ///< of the short draft head; empty: frspec declines
  const std::atomic<bool>* cancel = nullptr;  ///< ends hashing with Cancelled; cases ask GateProgress
  /// Tests put a faulty backend around every one that is made.
  std::function<std::unique_ptr<backend::Backend>(std::unique_ptr<backend::Backend>)> wrap;
};

/// The longest prompt that the reference takes token by token, on one thread.
inline constexpr std::int64_t kStepwise = 512;

struct GateResult {
  std::string name;
  std::int64_t cases = 0, planned = 0;  ///< fewer cases than planned when the time ran out
  bool passed = true;
  std::string difference;  ///< the first: case, token, step and state part
  double seconds = 0;
  std::optional<LaneId> lane;  ///< whose gate it is
  std::uint64_t engaged = 0;   ///< how often that lane took effect in it

  /// The gate of a lane that never took effect: it has shown nothing.
  [[nodiscard]] bool idle() const { return lane && engaged == 0; }
};

/// A request and the reference's answer.
struct GateAnswer {
  DecodeRequest request;
  std::vector<TokenId> ids;
};

struct GateReport {
  std::vector<GateResult> gates;
  /// What ran in all cases together. The verdict is that on this model; ar_pipeline, which has a gate of its own
  /// without mtp, is armed there.
  std::vector<LaneReport> lanes;
  std::string digest;               ///< SHA-256 over the ids of `answers`, in order
  std::vector<GateAnswer> answers;  ///< of the requests that were tried with bf16 state
  std::size_t requests = 0;         ///< how many there are to try
  std::vector<std::string> instruction_sets;
  std::vector<std::size_t> thread_counts;
  std::vector<artifact::FileHash> files;  ///< with GateOptions::hash

  [[nodiscard]] bool passed() const;
  /// Whether every planned case ran and every installed lane took effect somewhere.
  [[nodiscard]] bool complete() const;
};

/// Called before every case with the gate's name and how many cases of all are done; false ends the run with Cancelled.
using GateProgress = std::function<bool(const std::string& gate, std::int64_t done, std::int64_t total)>;

/// Runs all gates. Errors are failures to run at all; differences are in the report.
Result<GateReport> run_gates(const artifact::Artifact& artifact, const GateOptions& options,
                             const GateProgress& progress);

}  // namespace lockstep::decode
