// What one request of an A/B run did, and the whole of a run (docs/ab.md has the fields).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "base/result.hpp"
#include "report/gate.hpp"
#include "report/plan.hpp"

namespace lockstep::report {

struct Digests {
  std::string request, prompt_ids, ids, text, reasoning;  ///< SHA-256 in hex
};

/// One seed in one window.
struct Sample {
  std::size_t window = 0;
  std::uint64_t seed = 0;
  std::string error;  ///< why there is no result; empty: there is one
  std::int64_t prompt_tokens = 0, prefill_tokens = 0, tokens = 0, steps = 0;
  std::string finish;
  double prefill_seconds = 0, prefill_rate = 0, ttft_seconds = 0, decode_seconds = 0, decode_rate = 0, wall_seconds = 0;
  std::optional<std::uint64_t> peak_bytes;  ///< highest resident memory of the process during the request
  std::vector<std::int64_t> drafted, accepted;
  std::vector<std::string> lanes;  ///< that ran
  Digests digests;
  std::vector<std::int32_t> ids;  ///< of the answer
  GateRecord gate;
};

/// Reads the answer to a chat request: its finish reason and the object `lockstep` (docs/server.md). `wall` is the
/// client's time. Errors: Invalid with the field that is missing or wrong.
Result<Sample> sample_of_response(const Json& response, double wall_seconds);

/// A lane as the program of a window had it.
struct LaneState {
  std::string name, verdict;
};

struct WindowRecord {
  std::vector<LaneState> lanes;
  std::string device;
  double start_seconds = 0;  ///< from the start of the process to "ready"
  std::string error;         ///< why the window could not run
};

/// The cell: what every window is asked.
struct Cell {
  std::string prompt_sha256;       ///< of the message
  std::int64_t prompt_tokens = 0;  ///< with the chat template around it
  std::int64_t max_tokens = 0;
  std::optional<double> temperature, top_p;
  std::optional<std::int64_t> top_k;
  std::string effort;
  bool no_think = false;
};

/// A run, whole or interrupted.
struct Run {
  std::vector<Arm> arms;
  std::vector<Window> windows;
  std::vector<std::uint64_t> seeds;
  std::size_t control = 0;
  std::vector<std::string> required;  ///< "ARM=LANE": lanes that must run though no other arm switches them off
  std::string mode;                   ///< "served" or "in-process"
  Cell cell;
  GateLimits limits;
  OrderedJson model, machine;
  OrderedJson environment = OrderedJson::object();  ///< the caller's LOCKSTEP_* variables
  std::string started, ended, version;
  std::string commit;                 ///< of the program; empty: not known
  std::vector<WindowRecord> records;  ///< of the windows that were begun
  std::vector<Sample> samples;        ///< in the order they were taken
  bool complete = false;
};

}  // namespace lockstep::report
