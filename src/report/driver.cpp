#include "report/driver.hpp"

namespace lockstep::report {
namespace {

bool ends_the_run(const Error& error) {
  return error.kind == ErrorKind::Usage || error.kind == ErrorKind::Cancelled;
}

/// Every seed once; after a failure the window is over.
Status sample_window(Run& run, std::size_t window, Session& session, const DriverHooks& hooks) {
  for (const std::uint64_t seed : run.seeds) {
    const GateRecord gate = hooks.gate();
    Result<Sample> asked = session.ask(seed);
    if (!asked && ends_the_run(asked.error())) return tl::unexpected(asked.error());
    Sample sample;
    if (asked) {
      sample = *std::move(asked);
    } else {
      sample.error = asked.error().message;
    }
    sample.window = window;
    sample.seed = seed;
    sample.gate = gate;
    run.samples.push_back(std::move(sample));
    hooks.progress(run);
    if (!run.samples.back().error.empty()) return {};
  }
  return {};
}

}  // namespace

Status drive(Run& run, const DriverHooks& hooks) {
  for (std::size_t w = 0; w < run.windows.size(); ++w) {
    const Arm& arm = run.arms[run.windows[w].arm];
    Result<std::unique_ptr<Session>> session = hooks.open(arm);
    if (!session) {
      if (session.error().kind == ErrorKind::Usage) return with_context(session.error(), "arm " + arm.name);
      if (ends_the_run(session.error())) return tl::unexpected(session.error());
      WindowRecord record;
      record.error = session.error().message;
      run.records.push_back(std::move(record));
      continue;
    }
    run.records.push_back((*session)->record());
    LOCKSTEP_TRY(sample_window(run, w, **session, hooks));
  }
  run.complete = true;
  return {};
}

}  // namespace lockstep::report
