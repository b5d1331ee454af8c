// TLS: a certificate made for the test, and a client that checks it.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <thread>

#include "server/fixture.hpp"
#include "support/scratch.hpp"

namespace lockstep::test {
namespace {

/// Writes a self-signed certificate and its key.
void write_certificate(const std::string& certificate, const std::string& key) {
  EVP_PKEY* pair = ::EVP_EC_gen("P-256");
  X509* x509 = ::X509_new();
  ::X509_set_version(x509, 2);
  ::ASN1_INTEGER_set(::X509_get_serialNumber(x509), 1);
  ::X509_gmtime_adj(::X509_getm_notBefore(x509), -60);
  ::X509_gmtime_adj(::X509_getm_notAfter(x509), 3600);
  ::X509_set_pubkey(x509, pair);
  X509_NAME* name = ::X509_get_subject_name(x509);
  const auto* text = reinterpret_cast<const unsigned char*>("localhost");
  ::X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, text, -1, -1, 0);
  ::X509_set_issuer_name(x509, name);
  ::X509_sign(x509, pair, ::EVP_sha256());
  std::FILE* file = std::fopen(certificate.c_str(), "w");
  ::PEM_write_X509(file, x509);
  std::fclose(file);
  file = std::fopen(key.c_str(), "w");
  ::PEM_write_PrivateKey(file, pair, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  ::X509_free(x509);
  ::EVP_PKEY_free(pair);
}

class TlsConnection {
 public:
  TlsConnection(std::uint16_t port, const std::string& certificate, int newest = TLS1_3_VERSION) {
    context_ = ::SSL_CTX_new(::TLS_client_method());
    ::SSL_CTX_load_verify_locations(context_, certificate.c_str(), nullptr);
    ::SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
    ::SSL_CTX_set_max_proto_version(context_, newest);
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    ssl_ = ::SSL_new(context_);
    ::SSL_set_fd(ssl_, socket_);
    connected_ = ::SSL_connect(ssl_) == 1;
  }
  TlsConnection(const TlsConnection&) = delete;
  TlsConnection& operator=(const TlsConnection&) = delete;
  ~TlsConnection() {
    ::SSL_free(ssl_);
    ::SSL_CTX_free(context_);
    ::close(socket_);
  }
  [[nodiscard]] bool connected() const { return connected_; }
  /// Whether the server has said that nothing more comes, which a connection that is cut cannot.
  bool ended_well() {
    char byte = 0;
    const int n = ::SSL_read(ssl_, &byte, 1);
    return n <= 0 && ::SSL_get_error(ssl_, n) == SSL_ERROR_ZERO_RETURN;
  }
  void send(const std::string& text) { ::SSL_write(ssl_, text.data(), static_cast<int>(text.size())); }
  /// Everything up to this text, or to the end.
  std::string receive_until(const std::string& text) {
    std::string out;
    std::array<char, 4096> bytes{};
    while (out.find(text) == std::string::npos) {
      const int n = ::SSL_read(ssl_, bytes.data(), static_cast<int>(bytes.size()));
      if (n <= 0) break;
      out.append(bytes.data(), static_cast<std::size_t>(n));
    }
    return out;
  }

 private:
  SSL_CTX* context_ = nullptr;
  SSL* ssl_ = nullptr;
  int socket_ = -1;
  bool connected_ = false;
};

TEST(Tls, AnswersStreamsAndNoticesLeavingClients) {
  const ScratchDirectory scratch;
  const std::string certificate = (scratch / "cert.pem").string();
  const std::string key = (scratch / "key.pem").string();
  write_certificate(certificate, key);
  server::ServerOptions options = quick_options();
  options.http.tls_certificate = certificate;
  options.http.tls_key = key;
  TestServer server("I think.\n</think>\n\nbank has 2 senses.", options, true);
  const std::string stream =
      request_text("POST", "/v1/chat/completions", chat_body({{"stream", true}, {"max_tokens", 50}}).dump());
  {
    TlsConnection client(server.port(), certificate);
    ASSERT_TRUE(client.connected());
    for (int i = 0; i < 2; ++i) {
      client.send(stream);
      EXPECT_NE(client.receive_until("data: [DONE]").find("data: [DONE]"), std::string::npos);
    }
  }
  {
    TlsConnection leaving(server.port(), certificate);
    leaving.send(request_text("POST", "/v1/chat/completions", chat_body({{"stream", true}}).dump()));
    leaving.receive_until("reasoning_content");
  }
  EXPECT_TRUE(server.engine().wait_idle(20));
  EXPECT_GE(server.engine().cancelled(), 1U);
  // Old protocol versions and plain HTTP get nothing, and disturb nothing.
  EXPECT_FALSE(TlsConnection(server.port(), certificate, TLS1_1_VERSION).connected());
  EXPECT_EQ(ask(server.port(), "GET", "/health").status, 0);
  TlsConnection last(server.port(), certificate);
  last.send(request_text("GET", "/health"));
  EXPECT_TRUE(last.receive_until("\"ok\"").starts_with("HTTP/1.1 200"));
}

TEST(Tls, RequestsSentAheadAreAnsweredAndTheEndIsSaid) {
  const ScratchDirectory scratch;
  const std::string certificate = (scratch / "cert.pem").string();
  write_certificate(certificate, (scratch / "key.pem").string());
  server::ServerOptions options = quick_options();
  options.http.tls_certificate = certificate;
  options.http.tls_key = (scratch / "key.pem").string();
  TestServer server("I think.\n</think>\n\nbank has 2 senses.", options);
  for (const bool during : {false, true}) {
    TlsConnection client(server.port(), certificate);
    ASSERT_TRUE(client.connected());
    server.engine().hold(during);
    client.send(request_text("POST", "/v1/chat/completions", chat_body().dump()));
    while (during && server.server().service().stats()["engine"]["queued"] != 1) std::this_thread::yield();
    client.send(request_text("GET", "/health"));
    client.send(request_text("GET", "/v1/models", "", {{"connection", "close"}}));
    server.engine().hold(false);
    EXPECT_NE(client.receive_until("\"ok\"").find("bank has 2 senses."), std::string::npos);
    EXPECT_NE(client.receive_until("\"last_id\":\"demo\"}\n").find("last_id"), std::string::npos);
    EXPECT_TRUE(client.ended_well());
  }
}

TEST(Tls, UnusableFilesAreErrors) {
  const ScratchDirectory scratch;
  const std::string certificate = (scratch / "cert.pem").string();
  const std::string key = (scratch / "key.pem").string();
  write_certificate(certificate, key);
  write_certificate((scratch / "other.pem").string(), (scratch / "other-key.pem").string());
  const auto start = [](const std::string& cert, const std::string& private_key) {
    server::ServerOptions options = quick_options();
    options.http.tls_certificate = cert;
    options.http.tls_key = private_key;
    const auto none = [](server::LoadProgress&) -> Result<std::shared_ptr<const server::ModelContext>> {
      return fail(ErrorKind::NotFound, "none");
    };
    return server::Server::start(options, none, [](const std::string&) {}).has_value();
  };
  EXPECT_TRUE(start(certificate, key));
  EXPECT_FALSE(start(certificate, (scratch / "other-key.pem").string()));
  EXPECT_FALSE(start(key, key));
  EXPECT_FALSE(start((scratch / "missing.pem").string(), key));
}

}  // namespace
}  // namespace lockstep::test
