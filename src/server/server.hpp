// `lockstep serve` without the command line: listening, loading beside it, ending well.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "server/http/http_server.hpp"
#include "server/router.hpp"
#include "server/service.hpp"

namespace lockstep::server {

struct ServerOptions {
  HttpOptions http;
  ServiceOptions service;
  ApiKeys keys;
  std::vector<std::string> origins, hosts;  ///< see RouterOptions
  std::string access_log;                   ///< file, "-" for standard error, empty for none
};

/// Loads the model, in a thread of its own while the server already answers /health.
using Loader = std::function<Result<std::shared_ptr<const ModelContext>>(LoadProgress&)>;
/// A line for the person who started the server.
using Announce = std::function<void(const std::string&)>;

class Server {
 public:
  /// Listens and begins to load. Errors: those of HttpServer::start() and AccessLog::open().
  static Result<std::unique_ptr<Server>> start(ServerOptions options, Loader loader, Announce announce);

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  /// Ends everything at once.
  ~Server();

  [[nodiscard]] std::uint16_t port() const;
  [[nodiscard]] Service& service();
  /// Waits for the end of loading and returns its outcome.
  Status wait_loaded();
  /// False while the model is loading.
  [[nodiscard]] bool load_ended() const;
  /// Takes no more requests, finishes those it has, and returns when all responses are sent, or when a client has not
  /// taken its response for the time that HttpOptions::stall_seconds gives.
  void drain();
  /// Announces disk errors that are new, at most one line a minute for each part. From one thread.
  void report_faults();

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Runs until SIGINT, SIGTERM or SIGHUP, then drains, or while the model is loaded ends loading; a second signal ends
/// the process at once with exit code 128 + its number. `announce` gets the address, and when the model is ready.
/// Errors: as Server::start(), and those of the loader.
Status serve(ServerOptions options, Loader loader, const Announce& announce);

}  // namespace lockstep::server
