#include "server/http/http_server.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <thread>
#include <vector>

#include "base/file.hpp"
#include "server/http/session.hpp"

namespace lockstep::server {
namespace {

Status load_certificate(asio::ssl::context& tls, const HttpOptions& options) {
  for (const std::string& file : {options.tls_certificate, options.tls_key}) {
    LOCKSTEP_TRY(file_present(file));  // no link that leads nowhere
  }
  ErrorCode failed;
  tls.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                      asio::ssl::context::no_tlsv1_1 | asio::ssl::context::no_compression,
                  failed);
  if (!failed) tls.use_certificate_chain_file(options.tls_certificate, failed);
  if (failed) {
    return fail(ErrorKind::Invalid, "{}: not a usable certificate (PEM): {}", options.tls_certificate,
                failed.message());
  }
  tls.use_private_key_file(options.tls_key, asio::ssl::context::pem, failed);
  if (failed)
    return fail(ErrorKind::Invalid, "{}: not a usable private key (PEM): {}", options.tls_key, failed.message());
  if (::SSL_CTX_check_private_key(tls.native_handle()) != 1) {
    return fail(ErrorKind::Invalid, "{} is not the key of the certificate {}", options.tls_key,
                options.tls_certificate);
  }
  return {};
}

bool is_loopback(const asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).is_loopback();
  }
  return address.is_loopback();
}

class BeastServer final : public HttpServer {
 public:
  BeastServer(const HttpOptions& options, HttpHandler& handler)
      : shared_(std::make_shared<HttpShared>(options, handler)),
        acceptor_(asio::make_strand(shared_->context)),
        retry_(acceptor_.get_executor()) {}
  ~BeastServer() override { BeastServer::stop(); }

  Status listen() {
    const HttpOptions& options = shared_->options;
    if (!options.tls_certificate.empty()) {
      shared_->tls.emplace(asio::ssl::context::tls_server);
      LOCKSTEP_TRY(load_certificate(*shared_->tls, options));
    }
    ErrorCode failed;
    Tcp::resolver resolver(shared_->context);
    const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                        Tcp::resolver::passive | Tcp::resolver::numeric_service, failed);
    if (failed || found.empty()) {
      return fail(ErrorKind::Io, "--host {}: no such address: {}", options.host, failed.message());
    }
    const Tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), failed);
    if (!failed) acceptor_.set_option(Tcp::acceptor::reuse_address(true), failed);
    if (!failed) acceptor_.bind(endpoint, failed);
    if (!failed) acceptor_.listen(asio::socket_base::max_listen_connections, failed);
    if (failed) {
      return fail(ErrorKind::Io, "cannot listen on {} port {}: {}", options.host, options.port, failed.message());
    }
    port_ = acceptor_.local_endpoint(failed).port();
    loopback_ = is_loopback(endpoint.address());
    asio::post(acceptor_.get_executor(), [this] { accept(); });
    for (int i = 0; i < options.threads; ++i) threads_.emplace_back([shared = shared_] { run(*shared); });
    return {};
  }

  [[nodiscard]] std::uint16_t port() const override { return port_; }
  [[nodiscard]] std::size_t connections() const override { return shared_->connections.load(); }
  [[nodiscard]] bool loopback() const override { return loopback_; }

  void drain() override {
    shared_->draining.store(true);
    for (const auto& session : all_sessions()) session->close_soon();
  }

  bool wait_idle(double seconds) override {
    std::unique_lock lock(shared_->mutex);
    return shared_->changed.wait_for(lock, std::chrono::duration<double>(seconds),
                                     [this] { return shared_->active == 0; });
  }

  void stop() override {
    if (threads_.empty()) return;
    asio::post(acceptor_.get_executor(), [this] {
      stopping_ = true;
      ErrorCode ignored;
      acceptor_.close(ignored);
      retry_.cancel();
      for (const auto& session : all_sessions()) session->close_now();
    });
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    shared_->stopped.store(true);
  }

 private:
  static void run(HttpShared& shared) {
    for (;;) {
      try {
        shared.context.run();
        return;
      } catch (const std::exception&) {
        // A handler ran out of memory; its connection ends with its last reference, the others go on.
      }
    }
  }

  [[nodiscard]] std::vector<std::shared_ptr<Session>> all_sessions() {
    std::vector<std::shared_ptr<Session>> out;
    const std::lock_guard lock(shared_->mutex);
    for (const auto& [key, session] : shared_->sessions) {
      if (auto alive = session.lock()) out.push_back(std::move(alive));
    }
    return out;
  }

  void accept() {
    acceptor_.async_accept(asio::make_strand(shared_->context), [this](const ErrorCode& error, Tcp::socket socket) {
      if (stopping_) return;
      if (error) return accept_later();
      ErrorCode ignored;
      socket.set_option(Tcp::no_delay(true), ignored);
      const auto session = std::make_shared<Session>(std::move(socket), shared_);
      if (shared_->connections.load() > shared_->options.connections) {
        session->turn_away();
      } else {
        session->start();
      }
      accept();
    });
  }

  /// Out of descriptors, for example: some will be closed.
  void accept_later() {
    retry_.expires_after(std::chrono::milliseconds(50));
    retry_.async_wait([this](const ErrorCode&) {
      if (!stopping_) accept();
    });
  }

  std::shared_ptr<HttpShared> shared_;
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(shared_->context);
  Tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  std::vector<std::thread> threads_;
  std::uint16_t port_ = 0;
  bool loopback_ = false;
  bool stopping_ = false;  ///< on the acceptor's sequence
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpOptions& options, HttpHandler& handler) {
  auto server = std::make_unique<BeastServer>(options, handler);
  LOCKSTEP_TRY(server->listen());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace lockstep::server
