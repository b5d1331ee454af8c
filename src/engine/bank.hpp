// The prefix bank: states of sequences by their exact tokens, in memory and on disk (docs/engine.md "Prefix bank").
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "decode/generation.hpp"
#include "engine/bank_disk.hpp"
#include "engine/options.hpp"
#include "engine/sink.hpp"
#include "engine/statistics.hpp"

namespace lockstep::engine {

/// Used by the model thread alone. What it holds in memory never exceeds limit().
class Bank {
 public:
  /// `drafts`: states carry what the draft layer has not seen. Errors: those of BankDisk::open().
  static Result<Bank> create(const model::Model& model, const BankOptions& options, bool drafts,
                             const std::string& identity);

  struct Found {
    std::optional<decode::Checkpoint> prefix;  ///< of the prompt; all of it only with logits
    std::int64_t common = 0;                   ///< longest beginning that the prompt shares with any state
    Miss miss = Miss::Empty;
    bool from_disk = false;
  };
  /// The longest known prefix, as a fork of the kept state. A state that cannot be forked or read counts as unknown.
  Found find(std::span<const decode::TokenId> prompt);

  /// Whether a state of these tokens would be new. A known one counts as used.
  [[nodiscard]] bool wants(std::span<const decode::TokenId> tokens, bool logits);
  /// Keeps a state, in memory and, when `durable`, on disk. Others make room for it, least recently used first; one
  /// that is larger than the whole bank is dropped.
  void put(decode::Checkpoint state, bool durable);
  /// From now on at most `bytes` are held in memory; least recently used states are dropped.
  void limit(std::uint64_t bytes);

  [[nodiscard]] std::uint64_t memory_bytes() const { return memory_bytes_; }
  /// Waits for the disk tier's writes.
  void flush();
  void report(BankStatistics& statistics) const;

 private:
  struct Entry {
    decode::Checkpoint state;
    std::uint64_t own_bytes = 0;
  };
  using Entries = std::list<Entry>;  ///< newest use first

  Bank(const model::Model& model, const BankOptions& options, bool drafts)
      : model_(&model), options_(options), drafts_(drafts), limit_(options.memory_bytes) {}
  void charge(Entry& entry);
  void shrink();
  void drop(Entries::iterator entry);
  void remember_evicted(std::span<const decode::TokenId> tokens);
  [[nodiscard]] bool evicted_beyond(std::span<const decode::TokenId> prompt, std::size_t length) const;
  [[nodiscard]] Result<decode::Checkpoint> load(std::span<const decode::TokenId> tokens);
  void write(const decode::Checkpoint& state);

  const model::Model* model_;
  BankOptions options_;
  bool drafts_;
  Entries entries_;
  std::unordered_map<const model::Page*, std::int64_t> page_uses_;
  std::uint64_t memory_bytes_ = 0, limit_;
  std::deque<std::pair<std::size_t, std::uint64_t>> evicted_;  ///< lengths and hashes of dropped states
  std::unique_ptr<BankDisk> disk_;
  std::uint64_t lookups_ = 0, hits_ = 0, disk_hits_ = 0, tokens_reused_ = 0, stored_ = 0, evictions_ = 0;
};

}  // namespace lockstep::engine
