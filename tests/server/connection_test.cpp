// Connections over real sockets, with an engine that is made up: limits, slow and leaving clients, drain.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <thread>

#include "server/fixture.hpp"
#include "support/scratch.hpp"

namespace lockstep::test {
namespace {

const std::string kAnswer = "I think.\n</think>\n\nbank has 2 senses.";

std::string content_of(const Reply& reply) {
  return reply.json()["choices"][0]["message"]["content"];
}

TEST(Http, KeepsConnectionsAndTakesPipelinedRequests) {
  TestServer server(kAnswer);
  Connection connection(server.port());
  const std::string one = request_text("POST", "/v1/chat/completions", chat_body().dump());
  const std::string health = request_text("GET", "/health");
  connection.send(one + health + one);
  EXPECT_EQ(content_of(connection.receive()), "bank has 2 senses.");
  EXPECT_EQ(connection.receive().json()["status"], "ok");
  EXPECT_EQ(content_of(connection.receive()), "bank has 2 senses.");
  connection.send(health);
  EXPECT_EQ(connection.receive().status, 200);
  connection.send("GET /health HTTP/1.0\r\n\r\n");
  const Reply old = connection.receive();
  EXPECT_EQ(old.headers.at("connection"), "close");
  EXPECT_EQ(connection.receive_some(), "");
}

TEST(Http, BodiesInChunksAndAfterContinue) {
  TestServer server(kAnswer);
  const std::string body = chat_body().dump();
  std::string chunked =
      "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ntransfer-encoding: "
      "chunked\r\n\r\n";
  for (const char c : body) chunked += fmt::format("1\r\n{}\r\n", c);
  Connection connection(server.port());
  connection.send(chunked + "0\r\n\r\n");
  EXPECT_EQ(content_of(connection.receive()), "bank has 2 senses.");
}

TEST(Http, EmptyLinesBeforeARequestAreNoneOfIt) {
  TestServer server(kAnswer);
  Connection connection(server.port());
  const std::string one = request_text("POST", "/v1/chat/completions", chat_body().dump());
  const std::string health = request_text("GET", "/health");
  connection.send("\r\n" + one + "\r\n");
  EXPECT_EQ(content_of(connection.receive()), "bank has 2 senses.");
  connection.send("\r\n\r\n\r");
  connection.send("\n" + health);
  EXPECT_EQ(connection.receive().status, 200);
  connection.send(one + "\r\n" + health + "\r\n");
  EXPECT_EQ(content_of(connection.receive()), "bank has 2 senses.");
  EXPECT_EQ(connection.receive().status, 200);
  connection.send("\r\rGET");
  EXPECT_EQ(connection.receive().status, 400);
  EXPECT_EQ(connection.receive_some(), "");
}

TEST(Http, ExpectationsThatCannotBeMetAreRefused) {
  TestServer server(kAnswer);
  const auto expecting = [](const char* what, const char* version) {
    return fmt::format("GET /health HTTP/{}\r\nhost: localhost\r\nexpect: {}\r\n\r\n", version, what);
  };
  Connection connection(server.port());
  connection.send(expecting("foo", "1.1"));
  const Reply refused = connection.receive();
  EXPECT_EQ(refused.status, 417);
  EXPECT_EQ(refused.json()["error"]["code"], "expectation_failed");
  Connection old(server.port());
  old.send(expecting("foo", "1.0"));
  EXPECT_EQ(old.receive().status, 200);
}

TEST(Http, LimitsOfHttp) {
  server::ServerOptions options = quick_options();
  options.service.limits.body_bytes = 4096;
  options.service.limits.messages = 4;
  options.http.header_bytes = 2048;
  TestServer server(kAnswer, options);
  EXPECT_EQ(ask(server.port(), "GET", "/health", "", {{"x", std::string(4096, 'x')}}).status, 431);
  EXPECT_EQ(server.post("/v1/chat/completions", chat_body({{"user", std::string(5000, 'x')}})).status, 413);
  std::string chunked = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2000\r\n";
  Connection big(server.port());
  big.send(chunked + std::string(8192, ' ') + "\r\n0\r\n\r\n");
  EXPECT_EQ(big.receive().status, 413);
  const struct {
    std::string text;
    int status;
  } cases[] = {
      {"NONSENSE\r\n\r\n", 400},
      {"GET /health HTTP/9.9\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\nhost: localhost\r\nHost: localhost\r\n\r\n", 400},
      {"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
       400},
      {"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n", 400},
      {"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400},
      {"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n",
       501},
      {"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2;" + std::string(400'000, 'x'),
       431},
      {"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\na: " +
           std::string(400'000, 'x'),
       431},
      {"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n[]", 400},
  };
  for (const auto& wrong : cases) {
    SCOPED_TRACE(wrong.text.substr(0, 100));
    Connection connection(server.port());
    connection.send(wrong.text);
    EXPECT_EQ(connection.receive().status, wrong.status);
  }
  OrderedJson many = chat_body();
  for (int i = 0; i < 5; ++i) many["messages"].push_back(many["messages"][0]);
  EXPECT_EQ(server.post("/v1/chat/completions", many).json()["error"]["param"], "messages");
  EXPECT_EQ(ask(server.port(), "GET", "/health").status, 200);
}

TEST(Http, SlowClientsAreCutOff) {
  server::ServerOptions options = quick_options();
  options.http.header_seconds = 0.2;
  options.http.body_seconds = 0.2;
  options.http.idle_seconds = 0.2;
  TestServer server(kAnswer, options);
  Connection header(server.port());
  header.send("GET /health HTTP/1.1\r\nx: ");
  EXPECT_EQ(header.receive().status, 408);
  Connection body(server.port());
  body.send("POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{");
  EXPECT_EQ(body.receive().status, 408);
  Connection idle(server.port());
  idle.send(request_text("GET", "/health"));
  EXPECT_EQ(idle.receive().status, 200);
  EXPECT_EQ(idle.receive_some(), "");
  Connection silent(server.port());
  EXPECT_EQ(silent.receive_some(), "");
}

TEST(Http, TooManyConnections) {
  server::ServerOptions options = quick_options();
  options.http.connections = 2;
  TestServer server(kAnswer, options);
  Connection first(server.port());
  Connection second(server.port());
  first.send(request_text("GET", "/health"));
  second.send(request_text("GET", "/health"));
  EXPECT_EQ(first.receive().status, 200);
  EXPECT_EQ(second.receive().status, 200);
  EXPECT_EQ(Connection(server.port()).receive().status, 503);
  first.send(request_text("GET", "/health"));
  EXPECT_EQ(first.receive().status, 200);
}

TEST(Http, ALeavingClientCancelsItsRequestOnly) {
  TestServer server(kAnswer, quick_options(), true);
  {
    Connection leaving(server.port());
    leaving.send(request_text("POST", "/v1/chat/completions", chat_body({{"stream", true}}).dump()));
    ASSERT_TRUE(leaving.receive_until("reasoning_content"));
    // A second one waits in the queue, and leaves as well.
    Connection queued(server.port());
    queued.send(request_text("POST", "/v1/chat/completions", chat_body().dump()));
  }
  EXPECT_TRUE(server.engine().wait_idle(20));
  EXPECT_GE(server.engine().cancelled(), 1U);
  const Reply next = server.post("/v1/chat/completions", chat_body({{"max_tokens", 5}}));
  EXPECT_EQ(next.json()["choices"][0]["finish_reason"], "length");
}

TEST(Http, AClientThatGotAllIsNotLoggedAsGone) {
  const ScratchDirectory scratch;
  server::ServerOptions options = quick_options();
  options.access_log = (scratch / "log").string();
  TestServer server(kAnswer, options, true);
  for (int i = 0; i < 30; ++i) EXPECT_EQ(ask(server.port(), "GET", "/health").status, 200);
  // More than the system buffers, so that the end of the client's half comes in the middle of it.
  Connection half(server.port());
  half.send(request_text("POST", "/v1/chat/completions",
                         chat_body({{"max_tokens", 8000}, {"logprobs", true}, {"top_logprobs", 20}}).dump()));
  ASSERT_TRUE(half.receive_until("\r\n\r\n"));
  half.end_sending();
  const Reply whole = half.receive();
  EXPECT_GT(whole.body.size(), 8'000'000U);
  EXPECT_TRUE(whole.json().is_object());
  EXPECT_EQ(half.receive_some(), "");
  // One that leaves before its response is complete has gone.
  {
    Connection leaving(server.port());
    leaving.shrink_buffers();
    const OrderedJson large = {{"stream", true}, {"max_tokens", 8000}, {"logprobs", true}, {"top_logprobs", 20}};
    leaving.send(request_text("POST", "/v1/chat/completions", chat_body(large).dump()));
    ASSERT_TRUE(leaving.receive_until("reasoning_content"));
  }
  EXPECT_TRUE(server.engine().wait_idle(20));
  server.stop();
  std::ifstream file(scratch / "log");
  std::size_t lines = 0;
  std::size_t gone = 0;
  for (std::string text; std::getline(file, text); ++lines) {
    const OrderedJson line = OrderedJson::parse(text);
    gone += line["gone"].get<bool>() ? 1 : 0;
    EXPECT_GT(line["bytes_out"], 0) << text;
  }
  EXPECT_EQ(lines, 32U);
  EXPECT_EQ(gone, 1U);
}

TEST(Http, DeleteCancels) {
  TestServer server(kAnswer, quick_options(), true);
  Connection stream(server.port());
  stream.send(request_text("POST", "/v1/chat/completions", chat_body({{"stream", true}}).dump()));
  ASSERT_TRUE(stream.receive_until("\"chatcmpl-"));
  std::string text = stream.receive_some();
  const std::size_t at = text.find("chatcmpl-");
  const std::string id = text.substr(at, text.find('"', at) - at);
  EXPECT_EQ(ask(server.port(), "DELETE", "/v1/requests/" + id).status, 200);
  EXPECT_TRUE(stream.receive_until("data: [DONE]"));
  EXPECT_TRUE(server.engine().wait_idle(20));
  EXPECT_EQ(ask(server.port(), "DELETE", "/v1/requests/" + id).status, 404);
  EXPECT_EQ(ask(server.port(), "DELETE", "/v1/requests/-").status, 404);
}

TEST(Http, ASlowReaderPausesItsRequestAndIsNotDropped) {
  TestServer server(kAnswer, quick_options(), true);
  Connection slow(server.port());
  // Bare tokens that wait are sent as one delta, which the system's buffers take; those with log-probabilities do not
  // fit.
  slow.send(request_text("POST", "/v1/chat/completions",
                         chat_body({{"stream", true}, {"logprobs", true}, {"max_tokens", 60000}}).dump()));
  ASSERT_TRUE(slow.receive_until("reasoning_content"));
  ASSERT_TRUE(server.engine().wait_paused());
  EXPECT_EQ(ask(server.port(), "GET", "/health").status, 200);
  EXPECT_TRUE(slow.receive_until("data: [DONE]"));
}

TEST(Http, CommentsKeepAQueuedStreamAlive) {
  server::ServerOptions options = quick_options();
  options.service.keep_alive_seconds = 0.05;
  TestServer server(kAnswer, options);
  server.engine().hold(true);
  Connection connection(server.port());
  connection.send(request_text("POST", "/v1/chat/completions", chat_body({{"stream", true}}).dump()));
  EXPECT_TRUE(connection.receive_until(": queued\n\n"));
  Connection anthropic(server.port());
  anthropic.send(request_text("POST", "/v1/messages", chat_body({{"stream", true}, {"max_tokens", 9}}).dump()));
  EXPECT_TRUE(anthropic.receive_until("event: ping\n"));
  server.engine().hold(false);
  EXPECT_TRUE(connection.receive_until("data: [DONE]"));
  EXPECT_TRUE(anthropic.receive_until("event: message_stop\n"));
}

TEST(Http, LongTextsAreRefusedWithNumbersAndHoldUpNobody) {
  TestServer server(kAnswer);
  // Far more than the context can hold, so no work is done on it.
  const std::string text(4'000'000, 'a');
  OrderedJson chat = chat_body();
  chat["messages"][0]["content"] = text;
  const std::pair<const char*, OrderedJson> requests[] = {{"/tokenize", {{"content", std::string(20'000'000, 'a')}}},
                                                          {"/apply-template", chat},
                                                          {"/v1/chat/completions", chat},
                                                          {"/v1/messages/count_tokens", chat},
                                                          {"/v1/completions", {{"model", "demo"}, {"prompt", text}}},
                                                          {"/v1/responses", {{"model", "demo"}, {"input", text}}}};
  for (const auto& [path, body] : requests) {
    const Reply reply = server.post(path, body);
    EXPECT_EQ(reply.status, 413) << path;
    EXPECT_NE(reply.body.find("more than 32768 tokens; the context holds 32768"), std::string::npos) << reply.body;
  }
  const OrderedJson ids = std::vector<int>(40'000, 7);
  EXPECT_EQ(server.post("/v1/completions", {{"model", "demo"}, {"prompt", ids}}).status, 413);
  EXPECT_EQ(server.post("/detokenize", {{"tokens", ids}}).status, 400);
}

TEST(Http, ALeavingClientEndsItsTokenising) {
  server::ServerOptions options = quick_options();
  options.http.threads = 1;
  TestServer server(kAnswer, options);
  // Within the bounds, and long enough for the lane of long work: one piece of one letter.
  const std::string body = OrderedJson({{"content", std::string(400'000, 'a')}}).dump();
  {
    std::vector<std::unique_ptr<Connection>> leaving;
    for (int i = 0; i < 6; ++i) {
      leaving.push_back(std::make_unique<Connection>(server.port()));
      ASSERT_TRUE(leaving.back()->send(request_text("POST", "/tokenize", body)));
      // The one thread for HTTP is free, whatever is being tokenised.
      EXPECT_EQ(ask(server.port(), "GET", "/health").status, 200);
      EXPECT_EQ(server.post("/tokenize", {{"content", "bank"}}).status, 200);
    }
  }
  const Reply last = ask(server.port(), "POST", "/tokenize", body);
  EXPECT_TRUE(last.status == 200 || last.status == 413) << last.body;
}

TEST(Http, DrainFinishesWhatIsUnderWay) {
  TestServer server(kAnswer);
  server.engine().hold(true);
  Connection running(server.port());
  running.send(request_text("POST", "/v1/chat/completions", chat_body({{"stream", true}}).dump()));
  ASSERT_TRUE(running.receive_until("\r\n\r\n"));
  std::thread drain([&] { server.server().drain(); });
  Reply health;
  do health = ask(server.port(), "GET", "/health");
  while (health.status == 200);
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.json()["status"], "draining");
  EXPECT_EQ(server.post("/v1/chat/completions", chat_body()).status, 503);
  server.engine().hold(false);
  EXPECT_TRUE(running.receive_until("data: [DONE]"));
  drain.join();
}

TEST(Workers, LongWorkHoldsUpNoShortWorkAndAbandonedWorkIsDropped) {
  server::Workers workers;
  std::promise<void> begun;
  std::promise<void> short_done;
  bool dropped_ran = false;
  auto blocking = std::make_shared<server::Workers::Task>([&](const server::Unwanted& unwanted) {
    begun.set_value();
    while (!unwanted()) std::this_thread::yield();
  });
  const auto dropped = std::make_shared<server::Workers::Task>([&](const server::Unwanted&) { dropped_ran = true; });
  workers.add(std::size_t{1} << 30, blocking);
  workers.add(std::size_t{1} << 30, dropped);
  begun.get_future().wait();
  workers.add(1, std::make_shared<server::Workers::Task>([&](const server::Unwanted&) { short_done.set_value(); }));
  short_done.get_future().wait();
  dropped->abandon();
  std::promise<void> after;
  workers.add(std::size_t{1} << 30,
              std::make_shared<server::Workers::Task>([&](const server::Unwanted&) { after.set_value(); }));
  blocking->abandon();
  after.get_future().wait();
  EXPECT_FALSE(dropped_ran);
  workers.stop();
  const auto late = std::make_shared<server::Workers::Task>([&](const server::Unwanted&) { dropped_ran = true; });
  workers.add(1, late);
  EXPECT_TRUE(late->abandoned());
  EXPECT_FALSE(dropped_ran);
}

}  // namespace
}  // namespace lockstep::test
