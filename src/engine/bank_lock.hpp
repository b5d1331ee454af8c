// The directory of the bank's disk tier, taken for one process.
#pragma once

#include <filesystem>
#include <memory>

#include "base/result.hpp"

namespace lockstep::engine {

/// Holds the directory as long as it lives.
class BankLock {
 public:
  /// Makes the directory if need be, for its owner alone: states tell what was said. Errors: Io; Invalid when another
  /// process uses it.
  static Result<std::shared_ptr<BankLock>> take(const std::filesystem::path& directory);

  BankLock(const BankLock&) = delete;
  BankLock& operator=(const BankLock&) = delete;
  ~BankLock();

 private:
  explicit BankLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace lockstep::engine
