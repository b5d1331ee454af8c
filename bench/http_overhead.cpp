// What a request costs outside the model: HTTP, JSON, the chat template, tokenising, the hand-overs between threads.
//
//   cmake --preset bench && ninja -C build/release http_overhead && build/release/bench/http_overhead [REQUESTS]
//
// A server with the demo model's tokenizer and template answers from an engine that has its tokens ready. Each request
// is followed by a round trip of as many bytes to a socket that only echoes, in the same process: what a busy machine
// adds shows there as well. Prints both, and the processor time of everything but the client.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "server/fixture.hpp"

namespace lockstep::test {
namespace {

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Reads `in` bytes and sends `out` bytes, again and again.
class Echo {
 public:
  Echo(std::size_t in, std::size_t out) : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
    ::listen(listener_, 1);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    thread_ = std::thread([this, in, out] { serve(in, out); });
    client_ = ::socket(AF_INET, SOCK_STREAM, 0);
    ::connect(client_, reinterpret_cast<sockaddr*>(&address), size);
    set_no_delay(client_);
  }
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;
  ~Echo() {
    ::close(client_);
    thread_.join();
    ::close(listener_);
  }
  void round_trip(const std::string& request, std::size_t answer) {
    if (::send(client_, request.data(), request.size(), 0) < 0) std::abort();
    read(client_, answer);
  }

 private:
  static void set_no_delay(int socket) {
    const int on = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  static bool read(int socket, std::size_t bytes) {
    std::string buffer(65536, '\0');
    while (bytes > 0) {
      const ssize_t got = ::recv(socket, buffer.data(), std::min(buffer.size(), bytes), 0);
      if (got <= 0) return false;
      bytes -= static_cast<std::size_t>(got);
    }
    return true;
  }
  void serve(std::size_t in, std::size_t out) const {
    const int socket = ::accept(listener_, nullptr, nullptr);
    set_no_delay(socket);
    const std::string answer(out, 'x');
    while (read(socket, in) && ::send(socket, answer.data(), answer.size(), MSG_NOSIGNAL) > 0) {
    }
    ::close(socket);
  }

  int listener_, client_ = -1;
  std::thread thread_;
};

double at(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return 1e3 *
         values[std::min(values.size() - 1, static_cast<std::size_t>(share * static_cast<double>(values.size())))];
}

void measure(const TestServer& server, const char* name, const OrderedJson& body, std::size_t count) {
  const std::string text = request_text("POST", "/v1/chat/completions", body.dump());
  Connection connection(server.port());
  connection.send(text);
  const std::size_t answer = connection.receive().body.size();
  Echo echo(text.size(), answer);
  std::vector<double> requests;
  std::vector<double> echoes;
  double processor = 0;
  for (std::size_t i = 0; i < count + count / 10; ++i) {
    const double all = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    const double own = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    const auto begin = std::chrono::steady_clock::now();
    connection.send(text);
    if (connection.receive().status != 200) std::abort();
    const auto middle = std::chrono::steady_clock::now();
    const double spent = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - all - (seconds_of(CLOCK_THREAD_CPUTIME_ID) - own);
    const auto again = std::chrono::steady_clock::now();
    echo.round_trip(text, answer);
    const auto end = std::chrono::steady_clock::now();
    // A process that never rests waits for its turn on a busy machine, and that would be measured.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (i < count / 10) continue;  // warming up
    processor += spent;
    requests.push_back(std::chrono::duration<double>(middle - begin).count());
    echoes.push_back(std::chrono::duration<double>(end - again).count());
  }
  std::printf("%-10s request p50 %.3f ms p99 %.3f ms; echo p50 %.3f ms p99 %.3f ms; processor %.3f ms a request\n",
              name, at(requests, 0.5), at(requests, 0.99), at(echoes, 0.5), at(echoes, 0.99),
              1e3 * processor / static_cast<double>(count));
}

}  // namespace
}  // namespace lockstep::test

int main(int argc, char** argv) {
  using namespace lockstep;
  const std::size_t count = argc > 1 ? std::max<std::size_t>(10, std::strtoul(argv[1], nullptr, 10)) : 2000;
  const test::TestServer server("I think.\n</think>\n\nbank has 2 senses.");
  test::measure(server, "whole", test::chat_body(), count);
  test::measure(server, "stream", test::chat_body({{"stream", true}}), count);
  return 0;
}
