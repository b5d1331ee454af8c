// What all requests of a server share.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "server/access_log.hpp"
#include "server/faults.hpp"
#include "server/metrics.hpp"
#include "server/model_context.hpp"
#include "server/workers.hpp"

namespace lockstep::server {

class Generation;

struct ServiceOptions {
  std::string model_id = "lockstep";  ///< the served name
  RequestLimits limits;               ///< with limits.strict, the model of a request must be the served one
  double keep_alive_seconds = 5;      ///< between comments of a stream while nothing else is sent
};

/// Where loading stands. Written by the loading thread, but for `cancel`.
struct LoadProgress {
  std::atomic<const char*> phase{"starting"};  ///< points to static text
  std::atomic<int> step{0}, steps{1};
  std::atomic<std::uint64_t> bytes{0}, total_bytes{0};  ///< of the weights; 0 before they are known
  std::atomic<bool> cancel{false};                      ///< the loader is to end, with Cancelled
};

class Service {
 public:
  explicit Service(ServiceOptions options) : options_(std::move(options)) {}

  [[nodiscard]] const ServiceOptions& options() const { return options_; }
  [[nodiscard]] Metrics& metrics() { return metrics_; }
  [[nodiscard]] LoadProgress& progress() { return progress_; }
  [[nodiscard]] Workers& workers() { return workers_; }

  void set_model(std::shared_ptr<const ModelContext> model);
  /// Null until the model is loaded.
  [[nodiscard]] std::shared_ptr<const ModelContext> model() const;
  /// New requests are refused from now on.
  void drain();
  [[nodiscard]] bool draining() const { return draining_.load(); }

  /// Running requests by the id of their response, for DELETE.
  void add(const std::string& id, const std::shared_ptr<Generation>& generation);
  void remove(const std::string& id);
  /// Null when there is none.
  [[nodiscard]] std::shared_ptr<Generation> find(const std::string& id) const;

  /// Counts the lanes that ran for a choice.
  void count_lanes(const std::vector<std::string>& lanes);

  /// Whose errors count among the faults. Before the first request; may be null.
  void set_log(std::shared_ptr<const AccessLog> log) { log_ = std::move(log); }
  /// Disk errors so far, by part.
  [[nodiscard]] std::vector<DiskFault> disk_faults() const;

  /// The body of GET /health, and whether the server takes requests.
  [[nodiscard]] std::pair<OrderedJson, bool> health() const;
  /// The body of GET /stats.
  [[nodiscard]] OrderedJson stats() const;

 private:
  const ServiceOptions options_;
  Metrics metrics_;
  LoadProgress progress_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::atomic<bool> draining_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<const ModelContext> model_;
  std::map<std::string, std::weak_ptr<Generation>> generations_;
  std::map<std::string, std::uint64_t> lane_counts_;
  std::shared_ptr<const AccessLog> log_;
  Workers workers_;  // last: its threads use the others
};

}  // namespace lockstep::server
