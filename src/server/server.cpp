#include "server/server.hpp"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>

#include "base/temporary_files.hpp"

namespace lockstep::server {
namespace {

std::atomic<int> signals{0};

void on_signal(int number) {
  if (signals.fetch_add(1) == 0) return;
  // The second one ends the process at once; what it writes (the bank's files, the access log) is whole at any time.
  remove_temporary_files();
  ::_exit(128 + number);
}
static_assert(std::atomic<int>::is_always_lock_free, "the handler may only touch lock-free atomics");

/// Signals that the caller ignores (nohup, a shell's trap '') stay ignored.
void handle_signals(bool on) {
  if (on) signals.store(0);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action = {};
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = on ? on_signal : SIG_DFL;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(signal, &action, nullptr);
  }
}

std::string url(const HttpOptions& options, std::uint16_t port) {
  const bool ipv6 = options.host.find(':') != std::string::npos;
  return fmt::format("{}://{}:{}", options.tls_certificate.empty() ? "http" : "https",
                     ipv6 ? "[" + options.host + "]" : options.host, port);
}

}  // namespace

struct Server::State {
  State(ServerOptions given, std::shared_ptr<AccessLog> log)
      : options(std::move(given)),
        service(options.service),
        router(service, {options.keys, options.origins, std::move(log), options.http.host, options.hosts}) {}
  ~State() {
    if (loader.joinable()) loader.join();
    // First what is not yet submitted, then the engine, so that every request gets its end, then the connections.
    service.workers().stop();
    if (const auto model = service.model()) model->engine->stop();
    if (http) http->stop();
  }

  ServerOptions options;
  Service service;
  Router router;
  std::unique_ptr<HttpServer> http;
  std::thread loader;
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Status> loaded;
  Announce announce;
  FaultReporter reporter;
};

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::start(ServerOptions options, Loader loader, Announce announce) {
  std::shared_ptr<AccessLog> log;
  if (!options.access_log.empty()) log = LOCKSTEP_TRY(AccessLog::open(options.access_log));
  options.http.body_bytes = options.service.limits.body_bytes;
  auto state = std::make_unique<State>(std::move(options), log);
  state->service.set_log(log);
  state->announce = announce;
  state->http = LOCKSTEP_TRY(HttpServer::start(state->options.http, state->router));
  state->router.set_server(state->http.get());
  announce(fmt::format("listening on {}", url(state->options.http, state->http->port())));
  if (!state->http->loopback() && !state->options.keys.required()) {
    announce("there are no API keys: whoever reaches this address may use the server; see --api-key-file");
  }
  state->loader = std::thread([state = state.get(), loader = std::move(loader), announce = std::move(announce)] {
    Result<std::shared_ptr<const ModelContext>> model = loader(state->service.progress());
    if (model) {
      state->service.set_model(*model);
      if (!state->service.draining())
        announce(fmt::format("ready: {} on {}", state->options.service.model_id, (*model)->device));
    }
    const std::lock_guard lock(state->mutex);
    state->loaded = model ? Status{} : Status(tl::unexpected(model.error()));
    state->changed.notify_all();
  });
  return std::unique_ptr<Server>(new Server(std::move(state)));
}

std::uint16_t Server::port() const {
  return state_->http->port();
}

Service& Server::service() {
  return state_->service;
}

Status Server::wait_loaded() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->loaded.has_value(); });
  return *state_->loaded;
}

bool Server::load_ended() const {
  const std::lock_guard lock(state_->mutex);
  return state_->loaded.has_value();
}

void Server::report_faults() {
  for (const std::string& line :
       state_->reporter.look(state_->service.disk_faults(), std::chrono::steady_clock::now())) {
    state_->announce(line);
  }
}

void Server::drain() {
  state_->service.progress().cancel.store(true);
  state_->service.drain();
  state_->http->drain();
  // Requests end when they have their tokens; only then can a client that reads nothing be the one to wait for.
  const auto model = state_->service.model();
  while (model && !model->engine->wait_idle(1)) {
  }
  state_->http->wait_idle(state_->options.http.stall_seconds);
}

Status serve(ServerOptions options, Loader loader, const Announce& announce) {
  handle_signals(true);
  Result<std::unique_ptr<Server>> server = Server::start(std::move(options), std::move(loader), announce);
  if (!server) return tl::unexpected(server.error());
  for (unsigned turn = 0; signals.load() == 0; ++turn) {
    if ((*server)->load_ended()) LOCKSTEP_TRY((*server)->wait_loaded());
    if (turn % 50 == 0) (*server)->report_faults();
    ::usleep(20'000);
  }
  announce((*server)->service().model() ? "draining: finishing what is under way; a second signal ends at once"
                                        : "ending before the model is loaded; a second signal ends at once");
  (*server)->drain();
  (*server)->report_faults();
  server->reset();
  handle_signals(false);
  return {};
}

}  // namespace lockstep::server
