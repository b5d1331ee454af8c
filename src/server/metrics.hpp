// Numbers for Prometheus: what the server counts itself, and the engine's statistics at the time of a scrape.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/statistics.hpp"
#include "server/faults.hpp"

namespace lockstep::server {

class Metrics {
 public:
  Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;
  ~Metrics();

  // From any thread.
  void http_response(std::string_view route, int status, double seconds);
  void first_token(double seconds);
  void token_gap(double seconds);

  /// The exposition text. `statistics` is null while there is no engine.
  [[nodiscard]] std::string text(const engine::Statistics* statistics, std::size_t connections,
                                 const std::vector<DiskFault>& faults) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::server
