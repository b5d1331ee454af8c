// What the engine has done since it was created, and what it holds now.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "decode/decoder.hpp"

namespace lockstep::engine {

struct BankStatistics {
  std::int64_t states = 0;         ///< in memory
  std::uint64_t memory_bytes = 0;  ///< shared pages counted once
  std::int64_t files = 0;          ///< on disk
  std::uint64_t disk_bytes = 0;
  std::uint64_t lookups = 0, hits = 0, disk_hits = 0;
  std::uint64_t tokens_reused = 0;
  std::uint64_t stored = 0, evicted = 0, files_written = 0, files_skipped = 0, files_removed = 0, files_damaged = 0;
  std::uint64_t files_failed = 0;  ///< could not be written
  std::string last_disk_error;     ///< empty when there was none
};

struct Statistics {
  std::int64_t queued = 0, running = 0;  ///< choices now; running ones are prefilling, decoding or paused
  std::int64_t prefilling = 0, decoding = 0, paused = 0;
  bool draining = false;
  std::string poisoned;  ///< the first error after which the model must be loaded again; empty: none

  std::uint64_t accepted = 0, refused = 0, finished = 0, failed = 0, cancelled = 0;  ///< choices
  std::uint64_t steps = 0;                                                           ///< forward passes
  std::uint64_t step_rows = 0;                                                       ///< rows of all forward passes
  std::uint64_t mixed_steps = 0;                 ///< those with rows of more than one choice
  std::uint64_t prompt_tokens = 0;               ///< run through the model
  std::uint64_t cached_tokens = 0;               ///< of prompts, taken from the bank
  std::uint64_t tokens = 0;                      ///< emitted
  std::uint64_t recomputed_tokens = 0;           ///< see decode::DecodeStats
  std::uint64_t device_rows = 0, host_rows = 0;  ///< the same, of choices that have ended
  std::array<std::uint64_t, decode::kMaxDepth> drafted{}, accepted_drafts{};  ///< by depth
  std::uint64_t ple_hits = 0, ple_misses = 0;  ///< rows of the n-gram table; see backend::NgramCounters
  double busy_seconds = 0;                     ///< time inside steps
  double longest_step_seconds = 0;

  std::uint64_t memory_plan_bytes = 0;  ///< what the plan allows
  std::uint64_t reserved_bytes = 0;     ///< promised to running choices
  std::string device;                   ///< Backend::describe()
  BankStatistics bank;
};

}  // namespace lockstep::engine
