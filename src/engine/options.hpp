// How an engine is set up.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "decode/decoder.hpp"
#include "engine/bank_lock.hpp"

namespace lockstep::engine {

/// States of prompts and answers that later requests may continue from (docs/engine.md "Prefix bank").
struct BankOptions {
  bool enabled = true;
  std::uint64_t memory_bytes = 0;     ///< of states kept in memory; 0: a quarter of the memory plan
  std::int64_t interval = 1024;       ///< tokens between states inside a prompt; 0: message boundaries only
  std::int64_t boundaries = 4;        ///< newest message boundaries of a prompt at which states are kept
  std::filesystem::path directory{};  ///< of the disk tier; empty: none
  std::shared_ptr<BankLock> lock{};   ///< of this directory, when it has been taken already
  std::uint64_t disk_bytes = std::uint64_t{8} << 30;             ///< most bytes of files in the directory
  std::uint64_t write_bytes_per_hour = std::uint64_t{32} << 30;  ///< write budget, to spare the disk
};

struct Options {
  std::int64_t parallel = 4;         ///< choices in a step, 1..256
  std::int64_t queue = 64;           ///< choices that wait at most; more are refused
  std::int64_t prefill_chunk = 256;  ///< prompt rows of a step while nothing is decoding
  std::int64_t mixed_chunk = 64;     ///< prompt rows of a step beside running answers: bounds what they wait
  std::int64_t depth = 3;            ///< drafts a cycle, 0..decode::kMaxDepth; 0 decodes plainly
  bool capture = true;               ///< the lane gdn_capture
  bool short_head = false;           ///< the lane frspec; needs a model with a short head
  bool ahead = false;                ///< the lane ar_pipeline, for a choice that decodes alone
  /// With more than this many choices decoding, at most `busy_depth` drafts a cycle are made. Changes no byte.
  std::int64_t busy_above = 256, busy_depth = 0;
  std::int64_t default_max_tokens = 16384;  ///< where a request names none, and context and memory plan hold as much
  /// Memory for states of running requests and of the bank together; 0: half of what is available when the engine is
  /// created.
  std::uint64_t memory_bytes = 0;
  std::int64_t vocab = 0;  ///< usable vocabulary: ids from here on are never emitted; 0: all of the model's
  /// What the states belong to: weights, layout and anything else that changes a state's bytes (model_identity()).
  /// Needed with a disk tier.
  std::string identity{};
  BankOptions bank{};
};

}  // namespace lockstep::engine
