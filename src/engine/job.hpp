// A choice on its way through the engine, and the request that it shares with the other choices.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.hpp"
#include "decode/generation.hpp"
#include "engine/request.hpp"
#include "engine/sink.hpp"

namespace lockstep::engine {

using Clock = std::chrono::steady_clock;

[[nodiscard]] inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// What the choices of one request share. The first of them to run is the leader: it runs the prompt, and the others
/// start from a copy of its state.
struct Group {
  enum class Prompt : std::uint8_t { Waiting, Running, Done };

  Ticket ticket = 0;
  std::shared_ptr<Sink> sink;
  std::int32_t priority = 0;
  std::uint64_t seed = 0;
  bool bypass_bank = false, prompt_logprobs = false;
  std::vector<std::int64_t> boundaries;
  Clock::time_point submitted;

  Prompt prompt = Prompt::Waiting;
  std::optional<decode::Checkpoint> state;  ///< after the prompt, while choices wait for it
  std::int64_t waiting = 0;                 ///< choices in the queue
  std::uint64_t kept_bytes = 0;             ///< of the memory plan, for `state`
  bool reserved = false;                    ///< they are counted
  std::size_t prompt_tokens_told = 0;       ///< by on_prompt_token()
  std::optional<Start> start;               ///< told by on_start()
};

struct Job {
  std::shared_ptr<Group> group;
  std::int64_t choice = 0;
  std::uint64_t order = 0;        ///< of arrival
  decode::DecodeRequest request;  ///< moved to the generation when it starts
  std::uint64_t bytes = 0;        ///< of the memory plan
  std::unique_ptr<decode::Generation> generation;
  bool admitted = false, leader = false, ended = false;
  bool enough = false;                 ///< the sink wants no more tokens
  bool paused = false;                 ///< left out of the last step because its sink was full
  std::vector<std::int64_t> captures;  ///< prompt lengths at which states are kept, ascending
  std::int64_t cached = 0, delivered = 0;
  std::int64_t prompt_told = 0;  ///< by on_prefill()
  Clock::time_point started, prompt_end, first_token;
  std::uint64_t ple_hits = 0, ple_misses = 0;
  backend::LaneCounters lanes_before;  ///< of the backend, when it started

  [[nodiscard]] bool prompt_has_run() const { return prompt_end != Clock::time_point(); }
  [[nodiscard]] bool has_first_token() const { return first_token != Clock::time_point(); }
};

}  // namespace lockstep::engine
