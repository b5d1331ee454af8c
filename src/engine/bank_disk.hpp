// The disk tier of the prefix bank: one checksummed file per state, written by a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/bank_file.hpp"
#include "engine/options.hpp"
#include "engine/statistics.hpp"

namespace lockstep::engine {

/// A file that open() or the writer has put into the index.
struct BankEntry {
  std::filesystem::path path;
  std::vector<decode::TokenId> tokens;
  bool logits = false;
  std::uint64_t bytes = 0;
};

/// Used by one thread, the model thread; the writer thread works behind it.
class BankDisk {
 public:
  /// Makes the directory if need be, takes it for this process alone, removes what an interrupted write left behind and
  /// damaged states, and lists the states of this identity; those of other models stay where they are. Errors: Io;
  /// Invalid when another process uses the directory or the identity is empty.
  static Result<std::unique_ptr<BankDisk>> open(const BankOptions& options, std::string identity);

  BankDisk(const BankDisk&) = delete;
  BankDisk& operator=(const BankDisk&) = delete;
  /// Writes what waits, then ends.
  ~BankDisk();

  /// Calls visit(entry) for every state, newest use first. The entry is valid until the next call of any function.
  template <class Visit>
  void for_each(Visit visit) {
    const std::lock_guard lock(mutex_);
    for (const BankEntry& entry : entries_) visit(entry);
  }
  [[nodiscard]] bool contains(std::span<const decode::TokenId> tokens) const;
  /// Whether write() would take a file of about this size now; counts a skipped one if not.
  [[nodiscard]] bool wants(std::uint64_t bytes);
  /// Hands a state to the writer. Older states are removed for it when the directory is full.
  void write(std::vector<decode::TokenId> tokens, std::vector<std::byte> state, std::vector<std::byte> hidden,
             std::vector<std::byte> logits);

  /// A file's bytes, to be parsed while the object lives.
  struct Loaded {
    std::string bytes;
    BankFile file;
  };
  /// Reads and checks the state of exactly these tokens, and marks it as used. A file that fails is removed. Errors:
  /// NotFound, Io, Invalid.
  Result<std::unique_ptr<Loaded>> load(std::span<const decode::TokenId> tokens);
  /// A loaded state turned out to be unusable: it is removed.
  void reject(std::span<const decode::TokenId> tokens, const std::string& why);
  /// Waits until nothing is being written.
  void flush();

  /// Adds its part to `statistics`.
  void report(BankStatistics& statistics) const;

 private:
  struct Job {
    BankEntry entry;
    std::vector<std::byte> state, hidden, logits;
  };

  BankDisk(const BankOptions& options, std::string identity) : options_(options), identity_(std::move(identity)) {}
  Status scan();
  void run();
  void remove(std::list<BankEntry>::iterator entry);
  void make_room(std::uint64_t bytes);
  std::list<BankEntry>::iterator find(std::span<const decode::TokenId> tokens);
  [[nodiscard]] std::string file_name(std::span<const decode::TokenId> tokens) const;

  BankOptions options_;
  std::string identity_;
  std::shared_ptr<BankLock> lock_;

  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::list<BankEntry> entries_;  ///< newest use first
  std::deque<Job> jobs_;
  std::uint64_t disk_bytes_ = 0;
  double budget_ = 0;  ///< bytes that may be written now
  std::int64_t budget_time_ = 0;
  std::uint64_t written_ = 0, skipped_ = 0, removed_ = 0, damaged_ = 0, failed_ = 0;
  std::string last_error_;
  bool writing_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace lockstep::engine
