// Runs the windows of an A/B run one after the other.
#pragma once

#include <functional>
#include <memory>

#include "report/sample.hpp"

namespace lockstep::report {

/// A window under way: a model that was loaded for it and for nothing else.
class Session {
 public:
  Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  virtual ~Session() = default;
  [[nodiscard]] virtual const WindowRecord& record() const = 0;
  virtual Result<Sample> ask(std::uint64_t seed) = 0;
};

struct DriverHooks {
  std::function<Result<std::unique_ptr<Session>>(const Arm&)> open;
  std::function<GateRecord()> gate;
  std::function<void(const Run&)> progress;  ///< after every sample
};

/// Fills in records and samples of `run`. A window that cannot be opened and a request that fails are entered with
/// their error, and the run goes on with the next window. An interrupt (Cancelled) leaves a run that is not complete.
/// Errors: Usage and Cancelled, from a hook.
Status drive(Run& run, const DriverHooks& hooks);

}  // namespace lockstep::report
