// What clients may do with HTTP's finer points: targets, bytes that nobody asked for, bodies of many at once.
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "server/fixture.hpp"

namespace lockstep::test {
namespace {

const std::string kAnswer = "I think.\n</think>\n\nbank has 2 senses.";

/// The head of a request whose body is still to come.
std::string head_of(std::string_view path, std::size_t body) {
  return fmt::format("POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", path, body);
}

TEST(Wire, AClientIsSeenLeavingBehindBytesThatItSentAhead) {
  const std::string request = request_text("POST", "/v1/chat/completions", chat_body().dump());
  for (const std::string& ahead : {std::string("\r\n"), request_text("GET", "/health"), std::string(20'000, 'x')}) {
    SCOPED_TRACE(ahead.substr(0, 20));
    TestServer server(kAnswer);
    server.engine().hold(true);
    Connection leaving(server.port());
    leaving.send(request + ahead);
    while (server.server().service().stats()["engine"]["queued"] != 1) std::this_thread::yield();
    leaving.close();
    EXPECT_TRUE(server.engine().wait_idle(20));
    EXPECT_EQ(server.engine().cancelled(), 1U);
  }
}

TEST(Wire, RequestsThatComeDuringAResponseAreAnsweredInOrder) {
  TestServer server(kAnswer);
  server.engine().hold(true);
  Connection connection(server.port());
  connection.send(request_text("POST", "/v1/chat/completions", chat_body().dump()));
  while (server.server().service().stats()["engine"]["queued"] != 1) std::this_thread::yield();
  connection.send(request_text("GET", "/health") + "GET /v1/mod");
  server.engine().hold(false);
  EXPECT_EQ(connection.receive().json()["object"], "chat.completion");
  EXPECT_EQ(connection.receive().json()["status"], "ok");
  connection.send("els HTTP/1.1\r\nhost: localhost\r\n\r\n");
  EXPECT_EQ(connection.receive().json()["object"], "list");
}

TEST(Wire, BytesAfterTheLastResponseDoNoHarm) {
  TestServer server(kAnswer);
  const std::string last = request_text("GET", "/health", "", {{"connection", "close"}});
  for (int i = 0; i < 50; ++i) {
    Connection connection(server.port());
    connection.send(last);
    EXPECT_EQ(connection.receive().status, 200);
    connection.send(std::string(8192, 'x'));
  }
  EXPECT_EQ(ask(server.port(), "GET", "/health").status, 200);
}

TEST(Wire, ConnectionsThatBothSidesHaveClosedTakeNoPlace) {
  server::ServerOptions options = quick_options();
  options.http.connections = 64;
  TestServer server(kAnswer, options);
  for (int i = 0; i < 500; ++i) {
    ASSERT_EQ(ask(server.port(), "GET", "/health", "", {{"connection", "close"}}).status, 200) << i;
  }
}

TEST(Wire, LargeBodiesTogetherAreBoundedAndSmallOnesComeThrough) {
  server::ServerOptions options = quick_options();
  options.service.limits.body_bytes = 300'000;
  options.http.all_bodies_bytes = 400'000;
  TestServer server(kAnswer, options);
  const std::string large = chat_body({{"user", std::string(250'000, 'x')}}).dump();
  EXPECT_EQ(ask(server.port(), "POST", "/v1/chat/completions", large).status, 200);
  auto slow = std::make_unique<Connection>(server.port());
  slow->send(head_of("/v1/chat/completions", large.size() + 1) + large);
  Reply reply;
  do reply = ask(server.port(), "POST", "/v1/messages", large);
  while (reply.status != 503);
  EXPECT_EQ(reply.headers["retry-after"], "1");
  EXPECT_EQ(reply.json()["error"]["type"], "overloaded_error");
  EXPECT_NE(reply.body.find("400000 bytes"), std::string::npos) << reply.body;
  EXPECT_EQ(server.post("/v1/chat/completions", chat_body()).status, 200);
  slow.reset();
  do reply = ask(server.port(), "POST", "/v1/chat/completions", large);
  while (reply.status == 503);
  EXPECT_EQ(reply.status, 200);
}

TEST(Wire, ARunningRequestGivesTheMemoryOfItsBodyBack) {
  server::ServerOptions options = quick_options();
  options.service.limits.body_bytes = 300'000;
  options.http.all_bodies_bytes = 300'000;
  TestServer server(kAnswer, options, true);
  const std::string large = chat_body({{"user", std::string(250'000, 'x')}, {"stream", true}}).dump();
  Connection first(server.port());
  first.send(request_text("POST", "/v1/chat/completions", large));
  ASSERT_TRUE(first.receive_until("reasoning_content"));
  Connection second(server.port());
  second.send(request_text("POST", "/v1/chat/completions", large));
  EXPECT_TRUE(second.receive_until(" 200 OK"));
}

TEST(Wire, ErrorsOfHttpHaveTheShapeOfTheirRouteAndACode) {
  server::ServerOptions options = quick_options();
  options.service.limits.body_bytes = 4096;
  options.http.connections = 1;
  TestServer server(kAnswer, options);
  Connection connection(server.port());
  connection.send(head_of("/v1/messages", 5000));
  const OrderedJson anthropic = connection.receive().json();
  EXPECT_EQ(anthropic["type"], "error");
  EXPECT_EQ(anthropic["error"]["type"], "request_too_large");
  Reply turned_away = Connection(server.port()).receive();
  EXPECT_EQ(turned_away.status, 503);
  EXPECT_EQ(turned_away.headers["retry-after"], "1");
  EXPECT_EQ(turned_away.json()["error"]["code"], "too_many_connections");
  connection.close();
  Reply reply;
  do reply = ask(server.port(), "POST", "/tokenize", std::string(5000, ' '));
  while (reply.status == 503);
  EXPECT_EQ(reply.json()["error"]["code"], "body_too_large");
}

TEST(Wire, TargetsMayBeWholeAddressesAndHaveEscapes) {
  server::ServerOptions options = quick_options();
  options.service.model_id = "some/model name";
  TestServer server(kAnswer, options);
  const std::pair<const char*, int> cases[] = {{"http://localhost/health", 200},
                                               {"http://127.0.0.1:80/health?x=1", 200},
                                               {"http://evil.example/health", 403},
                                               {"http:///health", 200},
                                               {"http://localhost", 404},
                                               {"/v1/models/some%2Fmodel%20name", 200},
                                               {"/v1/models/some/model%20name", 200},
                                               {"/v1/models/some%2fmodel%2", 404},
                                               {"/v1/models/%", 404},
                                               {"/v1/models/%zz", 404},
                                               {"/%68ealth", 404}};
  for (const auto& [target, status] : cases) EXPECT_EQ(ask(server.port(), "GET", target).status, status) << target;
}

TEST(Wire, AResponseWithoutContentHasNoLength) {
  server::ServerOptions options = quick_options();
  options.origins = {"https://app.example"};
  TestServer server(kAnswer, options);
  Connection connection(server.port());
  connection.send(request_text("OPTIONS", "/v1/chat/completions", "", {{"origin", "https://app.example"}}));
  const Reply reply = connection.receive();
  EXPECT_EQ(reply.status, 204);
  EXPECT_FALSE(reply.headers.contains("content-length"));
  connection.send(request_text("GET", "/health"));
  EXPECT_EQ(connection.receive().status, 200);
}

}  // namespace
}  // namespace lockstep::test
