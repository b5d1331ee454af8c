// `lockstep serve` as a process, with the demo model.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/client.hpp"
#include "server/server.hpp"

namespace lockstep::test {
namespace {

const std::string kDemo = LOCKSTEP_SOURCE_DIR "/models/demo";

/// A running server; killed at the end of the test at the latest.
class Process {
 public:
  explicit Process(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {LOCKSTEP_BINARY, "serve",  "-m", kDemo,       "--model-id",
                                          "demo",          "--port", "0",  "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw std::runtime_error("pipe failed");
    child_ = ::fork();
    if (child_ == 0) {
      // A test runner in the background may have been started with some of them ignored.
      for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, SIG_DFL);
      ::dup2(ends[1], STDERR_FILENO);
      ::close(ends[0]);
      std::vector<char*> argv;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    stderr_ = ends[0];
    read_until("ready: ");
    const std::size_t at = log_.find("http://127.0.0.1:");
    if (at != std::string::npos) port_ = static_cast<std::uint16_t>(std::stoi(log_.substr(at + 17)));
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    ::close(stderr_);
  }

  [[nodiscard]] std::uint16_t port() const { return port_; }
  void signal(int number) const { ::kill(child_, number); }
  bool read_until(const std::string& text) {
    std::array<char, 4096> bytes{};
    while (log_.find(text) == std::string::npos) {
      const ssize_t n = ::read(stderr_, bytes.data(), bytes.size());
      if (n <= 0) return false;
      log_.append(bytes.data(), static_cast<std::size_t>(n));
    }
    return true;
  }
  /// The exit code.
  int wait() {
    int status = 0;
    ::waitpid(child_, &status, 0);
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t child_ = -1;
  int stderr_ = -1;
  std::string log_;
  std::uint16_t port_ = 0;
};

std::string body(const std::string& word, bool stream, int tokens = 48) {
  return OrderedJson({{"model", "demo"},
                      {"stream", stream},
                      {"seed", 3},
                      {"max_tokens", tokens},
                      {"messages", {{{"role", "user"}, {"content", "What does " + word + " mean?"}}}}})
      .dump();
}

/// Reasoning and content of an answer, streamed or not.
std::string answer(std::uint16_t port, const std::string& word, bool stream, const Pairs& headers = {}) {
  const Reply reply = ask(port, "POST", "/v1/chat/completions", body(word, stream), headers);
  if (!stream) {
    const OrderedJson message = reply.json()["choices"][0]["message"];
    return message.value("reasoning_content", "") + "|" + message["content"].get<std::string>();
  }
  std::string reasoning;
  std::string content;
  for (const SseEvent& event : sse_events(reply.body)) {
    const OrderedJson chunk = OrderedJson::parse(event.data, nullptr, false);
    if (!chunk.is_object() || chunk["choices"].empty()) continue;
    reasoning += chunk["choices"][0]["delta"].value("reasoning_content", "");
    content += chunk["choices"][0]["delta"].value("content", "");
  }
  return reasoning + "|" + content;
}

TEST(Serve, AnswersAreTheSameAloneTogetherStreamedCachedAndCold) {
  Process server;
  ASSERT_NE(server.port(), 0);
  const std::vector<std::string> words = {"bank", "river", "stone", "bird", "light", "house"};
  std::vector<std::string> alone;
  for (const std::string& word : words) {
    alone.push_back(answer(server.port(), word, false, {{"x-lockstep-cache", "bypass"}}));
    EXPECT_GT(alone.back().size(), 20U);
    EXPECT_EQ(answer(server.port(), word, true), alone.back());
    EXPECT_EQ(answer(server.port(), word, false), alone.back());
  }
  std::vector<std::string> together(words.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < words.size(); ++i) {
    threads.emplace_back([&, i] { together[i] = answer(server.port(), words[i], i % 2 == 0); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(together, alone);
}

TEST(Serve, CommentsKeepAStreamAliveWhileItsPromptIsRead) {
  const Process server({"--keep-alive", "0.05", "--prefill-chunk", "16"});
  std::vector<int> ids(1500);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(1000 + i);
  const Reply reply =
      ask(server.port(), "POST", "/v1/completions",
          OrderedJson({{"model", "demo"}, {"prompt", ids}, {"max_tokens", 2}, {"stream", true}}).dump());
  std::int64_t before = 0;
  std::size_t comments = 0;
  for (std::size_t at = 0; (at = reply.body.find(": prompt ", at)) != std::string::npos; ++comments) {
    at += 9;
    EXPECT_EQ(reply.body.substr(reply.body.find('/', at), 7), "/1500\n\n");
    const std::int64_t done = std::stoll(reply.body.substr(at));
    EXPECT_GE(done, before);  // a chunk may take longer than the time between two comments
    before = done;
  }
  EXPECT_GE(comments, 1U);
  EXPECT_LE(before, 1500);
}

TEST(Serve, TheSecondTimeAPromptComesFromTheBank) {
  Process server;
  const auto report = [&](const Pairs& headers) {
    const Reply reply = ask(server.port(), "POST", "/v1/chat/completions", body("bank", false), headers);
    return reply.json()["lockstep"]["choices"][0];
  };
  const OrderedJson first = report({});
  const OrderedJson second = report({});
  const OrderedJson cold = report({{"x-lockstep-cache", "bypass"}});
  EXPECT_EQ(first["cached_tokens"], 0);
  EXPECT_GT(second["cached_tokens"], 0);
  EXPECT_EQ(cold["cached_tokens"], 0);
  EXPECT_EQ(cold["cache_miss"], "bypass");
  for (const char* digest : {"prompt_ids_sha256", "ids_sha256", "text_sha256", "reasoning_sha256"}) {
    EXPECT_EQ(first[digest], second[digest]);
    EXPECT_EQ(first[digest], cold[digest]);
  }
}

TEST(Serve, DiskErrorsAreSaidOnStandardError) {
  Process server({"--access-log", "/dev/full"});
  EXPECT_EQ(ask(server.port(), "GET", "/v1/models").status, 200);
  EXPECT_TRUE(server.read_until("the access log: cannot write: No space left on device\n"));
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
}

TEST(Serve, SigtermLetsTheAnswerEnd) {
  Process server;
  Connection stream(server.port());
  stream.send(request_text("POST", "/v1/chat/completions", body("bank", true, 400)));
  ASSERT_TRUE(stream.receive_until("reasoning_content"));
  server.signal(SIGTERM);
  EXPECT_TRUE(stream.receive_until("data: [DONE]"));
  EXPECT_EQ(server.wait(), 0);
}

TEST(Serve, SighupDrainsToo) {
  Process server;
  ASSERT_TRUE(server.read_until("ready: "));
  server.signal(SIGHUP);
  EXPECT_TRUE(server.read_until("draining"));
  EXPECT_EQ(server.wait(), 0);
}

TEST(Serve, ASignalEndsLoading) {
  server::ServerOptions options;
  options.http.port = 0;
  std::vector<std::string> said;
  std::mutex mutex;
  const auto loader = [](server::LoadProgress& progress) -> Result<std::shared_ptr<const server::ModelContext>> {
    ::kill(::getpid(), SIGTERM);
    while (!progress.cancel.load()) std::this_thread::yield();
    return fail(ErrorKind::Cancelled, "interrupted");
  };
  const Status status = server::serve(options, loader, [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    said.push_back(line);
  });
  EXPECT_TRUE(status) << status.error().message;
  ASSERT_EQ(said.size(), 2U);
  EXPECT_EQ(said[0].find("listening on"), 0U);
  EXPECT_EQ(said[1], "ending before the model is loaded; a second signal ends at once");
}

TEST(Serve, ASecondSignalEndsAtOnce) {
  Process server({"--stall-timeout", "600"});
  Connection stream(server.port());
  stream.shrink_buffers();
  // Keeps the server busy for long: it cannot finish this by itself before the test would time out.
  OrderedJson request = OrderedJson::parse(body("bank", true, 30000));
  request["logit_bias"] = {{"6102", -100}, {"6100", -100}};
  stream.send(request_text("POST", "/v1/chat/completions", request.dump()));
  ASSERT_TRUE(stream.receive_until("reasoning_content"));
  server.signal(SIGINT);
  ASSERT_TRUE(server.read_until("draining"));
  server.signal(SIGINT);
  EXPECT_EQ(server.wait(), 130);
}

}  // namespace
}  // namespace lockstep::test
