// A server around a FakeEngine with the demo model's tokenizer and chat template.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/client.hpp"
#include "server/fake_engine.hpp"
#include "server/server.hpp"

namespace lockstep::test {

inline const std::string kDemo = LOCKSTEP_SOURCE_DIR "/models/demo";

inline const text::Tokenizer& demo_tokenizer() {
  static const text::Tokenizer tokenizer = *text::Tokenizer::open(kDemo);
  return tokenizer;
}

/// Options of a server on a free port.
inline server::ServerOptions quick_options() {
  server::ServerOptions options;
  options.http.port = 0;
  options.http.threads = 2;
  options.service.model_id = "demo";
  return options;
}

class TestServer {
 public:
  explicit TestServer(
      std::string answer, server::ServerOptions options = quick_options(), bool endless = false,
      const server::Announce& announce = [](const std::string&) {}) {
    const auto loader = [=, this](server::LoadProgress&) -> Result<std::shared_ptr<const server::ModelContext>> {
      auto engine = std::make_unique<FakeEngine>(demo_tokenizer(), answer, endless);
      engine_ = engine.get();
      return std::make_shared<const server::ModelContext>(
          server::ModelContext{.owner = nullptr,
                               .tokenizer = *text::Tokenizer::open(kDemo),
                               .chat_template = *text::ChatTemplate::open(kDemo),
                               .defaults = *decode::read_generation_config(kDemo, 6144, {}),
                               .vocab = 6144,
                               .identity = {{"id", "demo"}},
                               .fingerprint = "lockstep-test",
                               .device = "fake",
                               .lanes = {{"mtp", "armed"}, {"ple_cached_aux", "armed", true}},
                               .engine = std::move(engine)});
    };
    auto started = server::Server::start(std::move(options), loader, announce);
    if (!started) throw std::runtime_error(started.error().message);
    server_ = *std::move(started);
    if (const Status loaded = server_->wait_loaded(); !loaded) throw std::runtime_error(loaded.error().message);
  }

  [[nodiscard]] std::uint16_t port() const { return server_->port(); }
  [[nodiscard]] FakeEngine& engine() { return *engine_; }
  [[nodiscard]] server::Server& server() { return *server_; }
  void stop() { server_.reset(); }

  Reply post(std::string_view path, const OrderedJson& body, const Pairs& headers = {}) const {
    return ask(port(), "POST", path, body.dump(), headers);
  }

 private:
  FakeEngine* engine_ = nullptr;
  std::unique_ptr<server::Server> server_;
};

/// A chat request; `more` is merged into it.
inline OrderedJson chat_body(const OrderedJson& more = OrderedJson::object()) {
  OrderedJson body = {{"model", "demo"}};
  body["messages"] = OrderedJson::array({{{"role", "user"}, {"content", "What does bank mean?"}}});
  body.update(more);
  return body;
}

}  // namespace lockstep::test
