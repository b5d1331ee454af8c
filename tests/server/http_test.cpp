// Routes and answers over real sockets, with an engine that is made up; connections are in connection_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "server/fixture.hpp"
#include "support/scratch.hpp"

namespace lockstep::test {
namespace {

const std::string kAnswer = "I think.\n</think>\n\nbank has 2 senses.";

TEST(Http, AnswersAChat) {
  TestServer server(kAnswer);
  const Reply reply = server.post("/v1/chat/completions", chat_body({{"seed", 7}}));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const OrderedJson body = reply.json();
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "demo");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "bank has 2 senses.");
  EXPECT_EQ(body["choices"][0]["message"]["reasoning_content"], "I think.");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  const OrderedJson& report = body["lockstep"]["choices"][0];
  EXPECT_EQ(report["seed"], 7);
  EXPECT_EQ(report["text_sha256"], "131012dcda13cf796a1cf2e9924b016bb34e6ee85d9edf846662213dc86a199f");
  EXPECT_EQ(body["usage"]["prompt_tokens"], server.engine().last_request().prompt.size());
  EXPECT_EQ(server.engine().last_request().boundaries.size(), 2U);  // the template's own system message, the question
}

TEST(Http, StreamsAChat) {
  TestServer server(kAnswer);
  const Reply reply =
      server.post("/v1/chat/completions", chat_body({{"stream", true}, {"stream_options", {{"include_usage", true}}}}));
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream; charset=utf-8");
  std::string content;
  std::string reasoning;
  const auto events = sse_events(reply.body);
  ASSERT_GT(events.size(), 3U);
  EXPECT_EQ(events.back().data, "[DONE]");
  for (const SseEvent& event : events) {
    const OrderedJson chunk = OrderedJson::parse(event.data, nullptr, false);
    if (!chunk.is_object() || chunk["choices"].empty()) continue;
    content += chunk["choices"][0]["delta"].value("content", "");
    reasoning += chunk["choices"][0]["delta"].value("reasoning_content", "");
  }
  EXPECT_EQ(content, "bank has 2 senses.");
  EXPECT_EQ(reasoning, "I think.");
  EXPECT_EQ(OrderedJson::parse(events[events.size() - 2].data)["usage"]["completion_tokens"],
            server.engine().tokens_sent());
}

TEST(Http, SeveralChoicesPromptsAndEcho) {
  TestServer server("sloping land");
  const OrderedJson body = {{"model", "demo"}, {"prompt", {"a", "b"}}, {"n", 2},
                            {"echo", true},    {"max_tokens", 100},    {"logprobs", 1}};
  const OrderedJson reply = server.post("/v1/completions", body).json();
  ASSERT_EQ(reply["choices"].size(), 4U) << reply.dump();
  for (std::size_t i = 0; i < 4; ++i) {
    const OrderedJson& choice = reply["choices"][i];
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["text"], std::string(i < 2 ? "a" : "b") + "sloping land");
    EXPECT_TRUE(choice["logprobs"]["token_logprobs"][0].is_null());
    EXPECT_EQ(choice["logprobs"]["token_logprobs"][1], -0.25);
    // The second choice of a prompt starts with the first one's state.
    const OrderedJson& report = reply["lockstep"]["choices"][i];
    EXPECT_EQ(report["prefill_tokens"], i % 2 == 0 ? report["prompt_tokens"].get<int>() : 0);
    EXPECT_EQ(report["cached_tokens"], 0);
  }
  OrderedJson streaming = body;
  streaming["stream"] = true;
  std::map<std::size_t, std::string> texts;
  for (const SseEvent& event : sse_events(server.post("/v1/completions", streaming).body)) {
    const OrderedJson chunk = OrderedJson::parse(event.data, nullptr, false);
    if (!chunk.is_object()) continue;
    for (const OrderedJson& choice : chunk["choices"]) texts[choice["index"]] += choice["text"].get<std::string>();
  }
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(texts[i], reply["choices"][i]["text"]);
}

TEST(Http, EveryApiAnswers) {
  TestServer server(kAnswer);
  const OrderedJson responses = server.post("/v1/responses", {{"model", "demo"}, {"input", "hi"}}).json();
  EXPECT_EQ(responses["status"], "completed");
  EXPECT_EQ(responses["output"][1]["content"][0]["text"], "bank has 2 senses.");
  OrderedJson message = chat_body({{"max_tokens", 100}, {"thinking", {{"type", "adaptive"}}}});
  const OrderedJson messages = server.post("/v1/messages", message).json();
  EXPECT_EQ(messages["stop_reason"], "end_turn");
  EXPECT_EQ(messages["content"][0]["thinking"], "I think.");
  EXPECT_EQ(messages["content"][1]["text"], "bank has 2 senses.");
  const OrderedJson counted = server.post("/v1/messages/count_tokens", message).json();
  EXPECT_EQ(counted["input_tokens"], server.engine().last_request().prompt.size());
  const OrderedJson tokens = server.post("/tokenize", {{"content", "bank é"}, {"with_pieces", true}}).json();
  EXPECT_EQ(tokens["tokens"].size(), tokens["count"]);
  EXPECT_EQ(server.post("/detokenize", {{"tokens", tokens["tokens"]}}).json()["content"], "bank é");
  const OrderedJson applied = server.post("/apply-template", chat_body()).json();
  EXPECT_TRUE(applied["prompt"].get<std::string>().ends_with("<|im_start|>assistant\n<think>\n"));
  EXPECT_EQ(ask(server.port(), "GET", "/v1/models").json()["data"][0]["id"], "demo");
  EXPECT_EQ(ask(server.port(), "GET", "/v1/models/demo").status, 200);
  EXPECT_EQ(ask(server.port(), "GET", "/v1/models/other").status, 404);
  EXPECT_EQ(ask(server.port(), "GET", "/health").json()["status"], "ok");
  const std::string metrics = ask(server.port(), "GET", "/metrics").body;
  EXPECT_NE(metrics.find("lockstep_http_responses_total"), std::string::npos);
  // The engine's own count, whatever the choices say.
  EXPECT_NE(metrics.find("lockstep_ple_rows_total{result=\"hit\"} 1456\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("lockstep_ple_rows_total{result=\"miss\"} 12\n"), std::string::npos) << metrics;
  EXPECT_EQ(ask(server.port(), "GET", "/stats").json()["limits"]["context"], 32768);
}

TEST(Http, LogprobsThatWouldNotFitInMemoryAreRefusedWithNumbers) {
  const TestServer server(kAnswer);
  const OrderedJson many = {{"logprobs", true}, {"top_logprobs", 20}, {"n", 4}};
  OrderedJson body = chat_body(many);
  const Reply refused = server.post("/v1/chat/completions", body);
  EXPECT_EQ(refused.status, 413);
  EXPECT_EQ(refused.json()["error"]["param"], "top_logprobs");
  EXPECT_NE(refused.body.find("65536 tokens may come, each with 21"), std::string::npos) << refused.body;
  body["max_tokens"] = 100;
  EXPECT_EQ(server.post("/v1/chat/completions", body).status, 200);
  body.erase("max_tokens");
  body["stream"] = true;
  EXPECT_EQ(server.post("/v1/chat/completions", body).status, 200);
  const OrderedJson prompts(4, OrderedJson(std::vector<int>(15'000, 64)));
  OrderedJson echo = {{"model", "demo"}, {"prompt", prompts}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 20}};
  for (const bool stream : {false, true}) {
    echo["stream"] = stream;
    EXPECT_EQ(server.post("/v1/completions", echo).json()["error"]["param"], "logprobs");
  }
}

TEST(Http, AServerWithoutKeysThatOthersReachSaysSo) {
  for (const bool keys : {false, true}) {
    server::ServerOptions options = quick_options();
    options.http.host = "0.0.0.0";
    if (keys) {
      ASSERT_TRUE(options.keys.add("sesame"));
    }
    std::mutex mutex;
    std::string said;
    const TestServer server(kAnswer, options, false, [&](const std::string& line) {
      const std::lock_guard lock(mutex);
      said += line + "\n";
    });
    const std::lock_guard lock(mutex);
    EXPECT_EQ(said.find("there are no API keys") == std::string::npos, keys) << said;
  }
}

TEST(Http, WhatIsCutInAResponseIsIncomplete) {
  const TestServer server(kAnswer);
  for (const bool stream : {false, true}) {
    Reply reply = server.post("/v1/responses",
                              {{"model", "demo"}, {"input", "hi"}, {"max_output_tokens", 2}, {"stream", stream}});
    const OrderedJson response =
        stream ? OrderedJson::parse(sse_events(reply.body).back().data)["response"] : reply.json();
    EXPECT_EQ(response["status"], "incomplete");
    EXPECT_EQ(response["output"].back()["status"], "incomplete") << response;
  }
}

TEST(Http, StopStringsAndToolCalls) {
  TestServer server(
      "hm\n</think>\n\n<tool_call>\n<function=f>\n<parameter=n>\n12\n</parameter>\n</function>\n</tool_call>");
  OrderedJson body = chat_body();
  body["tools"] = OrderedJson::parse(R"([{"type": "function", "function": {"name": "f", "parameters":
      {"type": "object", "properties": {"n": {"type": "integer"}}}}}])");
  const OrderedJson reply = server.post("/v1/chat/completions", body).json();
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "tool_calls") << reply.dump();
  EXPECT_EQ(reply["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], R"({"n":12})");
  EXPECT_TRUE(reply["choices"][0]["message"]["content"].is_null());
  const OrderedJson stopped = TestServer(kAnswer).post("/v1/chat/completions", chat_body({{"stop", "2 sen"}})).json();
  EXPECT_EQ(stopped["choices"][0]["message"]["content"], "bank has ");
}

TEST(Http, EveryRouteButHealthNeedsTheKey) {
  server::ServerOptions options = quick_options();
  ASSERT_TRUE(options.keys.add("sesame-1"));
  ASSERT_TRUE(options.keys.add("sesame-2"));
  TestServer server(kAnswer, options);
  std::size_t open = 0;
  for (const server::Route& route : server::Router::routes()) {
    SCOPED_TRACE(route.path);
    const std::string body = route.method == "POST" ? "{}" : "";
    const int bare = ask(server.port(), route.method, route.path, body).status;
    open += bare == 401 ? 0 : 1;
    EXPECT_EQ(bare == 401, route.path != "/health");
    for (const Pairs& wrong : {Pairs{{"authorization", "Bearer sesame-"}}, Pairs{{"authorization", "sesame-1"}},
                               Pairs{{"x-api-key", "sesame-11"}}, Pairs{{"authorization", "Basic sesame-1"}}}) {
      EXPECT_EQ(ask(server.port(), route.method, route.path, body, wrong).status == 401, route.path != "/health");
    }
    EXPECT_NE(ask(server.port(), route.method, route.path, body, {{"authorization", "bearer sesame-1"}}).status, 401);
    EXPECT_NE(ask(server.port(), route.method, route.path, body, {{"x-api-key", "sesame-2"}}).status, 401);
  }
  EXPECT_EQ(open, 1U);
  EXPECT_EQ(ask(server.port(), "GET", "/no/such/route").status, 401);
  EXPECT_EQ(ask(server.port(), "POST", "/health").status, 401);
  const Reply anthropic = ask(server.port(), "POST", "/v1/messages", "{}");
  EXPECT_EQ(anthropic.json()["error"]["type"], "authentication_error");
  EXPECT_EQ(anthropic.json()["type"], "error");
}

TEST(Http, UnknownRoutesMethodsModels) {
  server::ServerOptions options = quick_options();
  options.service.limits.strict = true;
  TestServer server(kAnswer, options);
  EXPECT_EQ(ask(server.port(), "GET", "/nope").status, 404);
  const Reply wrong = ask(server.port(), "GET", "/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  EXPECT_EQ(server.post("/v1/chat/completions", chat_body({{"model", "other"}})).status, 404);
  EXPECT_EQ(server.post("/v1/chat/completions", chat_body({{"frobnicate", 1}})).status, 400);
  EXPECT_EQ(server.post("/v1/chat/completions", chat_body(), {{"content-encoding", "gzip"}}).status, 415);
  EXPECT_EQ(server.post("/v1/chat/completions", chat_body(), {{"x-lockstep-cache", "maybe"}}).status, 400);
  EXPECT_EQ(server.post("/v1/chat/completions", chat_body(), {{"x-lockstep-cache", "bypass"}}).status, 200);
  EXPECT_TRUE(server.engine().last_request().bypass_bank);
  const Reply head = ask(server.port(), "HEAD", "/health");
  EXPECT_EQ(head.status, 200);
  const Reply template_error = server.post(
      "/v1/chat/completions", {{"model", "demo"}, {"messages", {{{"role", "assistant"}, {"content", ""}}}}});
  EXPECT_EQ(template_error.status, 400);
  EXPECT_EQ(template_error.json()["error"]["param"], "messages");
}

TEST(Http, RefusalsOfTheEngine) {
  TestServer server(kAnswer);
  server.engine().refuse_with({engine::RefusalReason::QueueFull, "64 of 64 waiting", 65, 64, 3});
  for (const bool stream : {false, true}) {
    const Reply reply = server.post("/v1/chat/completions", chat_body({{"stream", stream}}));
    EXPECT_EQ(reply.status, 429);
    EXPECT_EQ(reply.headers.at("retry-after"), "3");
    EXPECT_EQ(reply.json()["error"]["code"], "queue_full");
  }
}

TEST(Http, AnErrorInTheMiddle) {
  TestServer server(kAnswer);
  server.engine().fail_after(3);
  EXPECT_EQ(server.post("/v1/chat/completions", chat_body()).status, 413);
  const auto events = sse_events(server.post("/v1/chat/completions", chat_body({{"stream", true}})).body);
  EXPECT_EQ(events.back().data, "[DONE]");
  EXPECT_EQ(OrderedJson::parse(events[events.size() - 2].data)["error"]["message"], "out of memory");
}

TEST(Http, WebPagesOfOtherOriginsMayNotAsk) {
  const Pairs page = {{"origin", "https://page.example"}};
  TestServer closed(kAnswer);
  EXPECT_EQ(closed.post("/v1/chat/completions", chat_body(), page).status, 403);
  EXPECT_FALSE(ask(closed.port(), "GET", "/v1/models", "", page).headers.contains("access-control-allow-origin"));
  EXPECT_EQ(ask(closed.port(), "OPTIONS", "/v1/chat/completions", "", page).status, 403);
  server::ServerOptions options = quick_options();
  options.origins = {"https://page.example"};
  ASSERT_TRUE(options.keys.add("k"));
  TestServer open(kAnswer, options);
  Pairs asks = page;
  asks.emplace_back("access-control-request-headers", "authorization, content-type");
  const Reply preflight = ask(open.port(), "OPTIONS", "/v1/chat/completions", "", asks);
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.headers.at("access-control-allow-headers"), "authorization, content-type");
  Pairs with_key = page;
  with_key.emplace_back("authorization", "Bearer k");
  const Reply reply = open.post("/v1/chat/completions", chat_body(), with_key);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("access-control-allow-origin"), "https://page.example");
  EXPECT_EQ(open.post("/v1/chat/completions", chat_body(), {{"origin", "https://x"}, {"x-api-key", "k"}}).status, 403);
}

TEST(Http, TheAccessLogSaysNothingOfWhatWasSaid) {
  const ScratchDirectory scratch;
  server::ServerOptions options = quick_options();
  options.access_log = (scratch / "log").string();
  ASSERT_TRUE(options.keys.add("sesame"));
  TestServer server(kAnswer, options);
  const Pairs key = {{"authorization", "Bearer sesame"}};
  OrderedJson body = chat_body();
  body["messages"][0]["content"] = "my secret question";
  EXPECT_EQ(ask(server.port(), "POST", "/v1/chat/completions?token=hidden", body.dump(), key).status, 200);
  body["messages"] = "my secret question";
  EXPECT_EQ(server.post("/v1/chat/completions", body, key).status, 400);
  EXPECT_EQ(server.post("/v1/chat/completions", body).status, 401);
  server.stop();
  std::ifstream file(scratch / "log");
  std::vector<OrderedJson> lines;
  for (std::string line; std::getline(file, line);) {
    for (const char* word : {"secret", "sesame", "hidden", "senses"}) EXPECT_EQ(line.find(word), std::string::npos);
    lines.push_back(OrderedJson::parse(line));
  }
  ASSERT_EQ(lines.size(), 3U);
  // A response is logged when it has been sent, which the client may notice earlier.
  std::ranges::sort(lines, {}, [](const OrderedJson& line) { return line["status"].get<int>(); });
  EXPECT_EQ(lines[2]["error"], "invalid_api_key");
  EXPECT_EQ(lines[0]["status"], 200);
  EXPECT_EQ(lines[0]["path"], "/v1/chat/completions");
  EXPECT_GT(lines[0]["tokens"], 5);
  EXPECT_EQ(lines[0]["finish"], "stop");
  EXPECT_EQ(lines[1]["error"], "invalid_type");
}

TEST(Http, HealthWhileLoadingAndAfterPoisoning) {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  auto started = server::Server::start(
      quick_options(),
      [&](server::LoadProgress& progress) -> Result<std::shared_ptr<const server::ModelContext>> {
        progress.total_bytes.store(2000);
        progress.bytes.store(500);
        progress.phase.store("weights");
        const std::lock_guard wait(mutex);
        return fail(ErrorKind::NotFound, "no such model");
      },
      [](const std::string&) {});
  ASSERT_TRUE(started.has_value());
  const std::uint16_t port = (*started)->port();
  Reply health;
  do health = ask(port, "GET", "/health");
  while (health.json()["loading"]["phase"] != "weights");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.json()["status"], "loading");
  EXPECT_EQ(health.json()["loading"]["bytes"], 500);
  EXPECT_EQ(health.json()["loading"]["total_bytes"], 2000);
  const Reply early = ask(port, "POST", "/v1/chat/completions", chat_body().dump());
  EXPECT_EQ(early.status, 503);
  EXPECT_EQ(early.headers.at("retry-after"), "1");
  lock.unlock();
  EXPECT_EQ((*started)->wait_loaded().error().message, "no such model");

  TestServer server(kAnswer);
  server.engine().poison("a read failed");
  const OrderedJson poisoned = ask(server.port(), "GET", "/health").json();
  EXPECT_EQ(poisoned["status"], "poisoned");
  EXPECT_EQ(poisoned["lanes"][0]["verdict"], "armed") << "its route is not what failed";
  EXPECT_EQ(poisoned["lanes"][1]["verdict"], "poisoned (a read failed)");
}

TEST(Http, WithoutKeysOnlyNamesOfThisMachineAreTakenOnLoopback) {
  const auto status = [](const TestServer& server, const std::string& host, const Pairs& more = {}) {
    Pairs headers = more;
    std::string text = "GET /v1/models HTTP/1.1\r\nhost: " + host + "\r\n";
    for (const auto& [name, value] : headers) text += name + ": " + value + "\r\n";
    Connection connection(server.port());
    connection.send(text + "\r\n");
    return connection.receive().status;
  };
  server::ServerOptions options = quick_options();
  options.hosts = {"box.lan"};
  TestServer server(kAnswer, options);
  for (const char* mine : {"localhost", "LOCALHOST:8080", "127.0.0.1:1", "127.1.2.3", "[::1]:80", "app.localhost",
                           "box.lan", "Box.Lan:99", "localhost."}) {
    EXPECT_EQ(status(server, mine), 200) << mine;
  }
  for (const char* other : {"evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example",
                            "10.0.0.1", "[::2]", "box.lan.evil", "[::1", ":80", "notlocalhost"}) {
    EXPECT_EQ(status(server, other), 403) << other;
  }
  options.hosts.clear();
  ASSERT_TRUE(options.keys.add("k"));
  TestServer keyed(kAnswer, options);
  EXPECT_EQ(status(keyed, "evil.example", {{"x-api-key", "k"}}), 200);
  options = quick_options();
  options.http.host = "0.0.0.0";
  TestServer wide(kAnswer, options);
  EXPECT_EQ(status(wide, "any.example"), 200);
}

TEST(Http, MoreChoicesThanTheServerTakesAreNotToComeAgain) {
  TestServer server(kAnswer);
  server.engine().set_queue(4, 2);
  const OrderedJson body = {{"model", "demo"}, {"prompt", {"a", "b", "c", "d"}}, {"n", 2}};
  const Reply reply = server.post("/v1/completions", body);
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["param"], "prompt");
  EXPECT_EQ(reply.json()["error"]["message"],
            "4 prompts with n = 2 are 8 choices; this server takes at most 6 at once");
  EXPECT_EQ(server.post("/v1/chat/completions", chat_body({{"n", 7}})).json()["error"]["param"], "n");
}

TEST(Http, WhatNeedsTheVocabularyNamesItsField) {
  TestServer server(kAnswer);
  const auto param = [&](const char* path, const OrderedJson& body) {
    const Reply reply = server.post(path, body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    return reply.json()["error"]["param"];
  };
  EXPECT_EQ(param("/v1/chat/completions", chat_body({{"logit_bias", {{"7000", 1}}}})), "logit_bias.7000");
  EXPECT_EQ(param("/v1/completions", {{"model", "demo"}, {"prompt", {1, 2, 6144}}}), "prompt[2]");
  EXPECT_EQ(param("/v1/completions", {{"model", "demo"}, {"prompt", {"a", {1, 6144}}}}), "prompt[1][1]");
}

TEST(Http, DiskErrorsShow) {
  server::ServerOptions options = quick_options();
  options.access_log = "/dev/full";
  std::mutex mutex;
  std::vector<std::string> said;
  TestServer server(kAnswer, options, false, [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    said.push_back(line);
  });
  server.engine().fail_disk("no room");
  OrderedJson health;
  do health = ask(server.port(), "GET", "/health").json();
  while (!health["disk_errors"].contains("access_log"));
  EXPECT_EQ(health["status"], "ok");
  EXPECT_EQ(health["disk_errors"]["access_log"]["last"], "the access log: cannot write: No space left on device");
  EXPECT_EQ(health["disk_errors"]["bank"]["last"], "no room");
  const std::string metrics = ask(server.port(), "GET", "/metrics").body;
  EXPECT_NE(metrics.find("lockstep_disk_errors_total{part=\"bank\"} 1"), std::string::npos) << metrics;
  const std::string resident = "\nlockstep_resident_memory_bytes ";
  ASSERT_NE(metrics.find(resident), std::string::npos) << metrics;
  EXPECT_GT(std::stod(metrics.substr(metrics.find(resident) + resident.size())), 1e6);
  for (int i = 0; i < 3; ++i) {
    ask(server.port(), "GET", "/health");
    server.server().report_faults();
  }
  const std::lock_guard lock(mutex);
  EXPECT_EQ(std::ranges::count(said, "no room"), 1);
  EXPECT_EQ(std::ranges::count_if(said, [](const std::string& line) { return line.starts_with("the access log"); }), 1);
}

TEST(FaultReporter, OneLineAMinute) {
  server::FaultReporter reporter;
  const server::FaultReporter::Clock::time_point start{};
  const auto look = [&](std::uint64_t count, int seconds) {
    return reporter.look({{"bank", count, "full"}, {"access_log", 0, ""}}, start + std::chrono::seconds(seconds));
  };
  EXPECT_EQ(look(0, 0), std::vector<std::string>{});
  EXPECT_EQ(look(1, 1), std::vector<std::string>{"full"});
  EXPECT_EQ(look(5, 2), std::vector<std::string>{});
  EXPECT_EQ(look(8, 61), std::vector<std::string>{"full (7 errors since the last such line)"});
  EXPECT_EQ(look(8, 500), std::vector<std::string>{});
  EXPECT_EQ(look(9, 501), std::vector<std::string>{"full"});
}

TEST(ApiKeys, FilesAndUnusableKeys) {
  const ScratchDirectory scratch;
  std::ofstream(scratch / "keys") << "# of today\n\nfirst\r\nsecond\n";
  std::ofstream(scratch / "none") << "# nothing\n";
  server::ApiKeys keys;
  ASSERT_TRUE(keys.add_file(scratch / "keys"));
  server::HttpRequest request;
  request.headers = {{"x-api-key", "second"}};
  EXPECT_TRUE(keys.admit(request));
  request.headers = {{"x-api-key", "# of today"}};
  EXPECT_FALSE(keys.admit(request));
  EXPECT_FALSE(keys.add_file(scratch / "none"));
  EXPECT_FALSE(keys.add_file(scratch / "missing"));
  std::ofstream(scratch / "bad") << "# keys\n\ngood\nwith space\n";
  const Status bad = keys.add_file(scratch / "bad");
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find("bad: line 4: "), std::string::npos) << bad.error().message;
  EXPECT_FALSE(keys.add(""));
  EXPECT_FALSE(keys.add("a b"));
}

}  // namespace
}  // namespace lockstep::test
