// HTTP to the child: one request a connection.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/printable.hpp"
#include "report/child.hpp"

namespace lockstep::report {
namespace {

constexpr std::size_t kMaxResponse = std::size_t{64} << 20;

/// Closes a descriptor at the end of a scope.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  [[nodiscard]] int get() const { return value_; }

 private:
  int value_;
};

struct Head {
  int status = 0;
  std::optional<std::size_t> length;
  std::size_t body = 0;  ///< where it begins
};

/// Nothing while the header is not whole.
std::optional<Head> read_head(const std::string& text) {
  const std::size_t end = text.find("\r\n\r\n");
  if (end == std::string::npos) return std::nullopt;
  Head head;
  head.body = end + 4;
  std::string lower = text.substr(0, end + 2);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower.size() > 12) std::from_chars(lower.data() + 9, lower.data() + 12, head.status);
  constexpr std::string_view kLength = "\r\ncontent-length:";
  const std::size_t at = lower.find(kLength);
  if (at == std::string::npos) return head;
  const std::size_t digits = lower.find_first_not_of(' ', at + kLength.size());
  std::size_t length = 0;
  const auto parsed = std::from_chars(lower.data() + digits, lower.data() + lower.size(), length);
  if (parsed.ec == std::errc()) head.length = length;
  return head;
}

/// Sends what fits; the number of bytes, -1 on failure.
ssize_t send_some(int socket, std::string_view text) {
  const ssize_t sent = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
  return sent < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : sent;
}

enum class Took { More, Nothing, End };

Took receive_some(int socket, std::string& text) {
  std::array<char, 65536> buffer{};
  const ssize_t count = ::recv(socket, buffer.data(), buffer.size(), 0);
  if (count > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(count));
    return Took::More;
  }
  return count < 0 && (errno == EAGAIN || errno == EINTR) ? Took::Nothing : Took::End;
}

}  // namespace

Result<std::string> Child::request(std::uint16_t port, std::string_view method, std::string_view path,
                                   std::string_view headers, std::string_view body, double seconds, Waiter& waiter) {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (socket.get() < 0 || ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    if (!take_output()) return ended();
    return fail(ErrorKind::Io, "port {}: {}", port, std::strerror(error));
  }
  std::string text =
      fmt::format("{} {} HTTP/1.1\r\nhost: 127.0.0.1:{}\r\nconnection: close\r\n{}content-length: {}\r\n\r\n", method,
                  path, port, headers, body.size());
  text += body;
  std::string_view unsent = text;
  std::string response;
  const double deadline = waiter.now() + seconds;
  std::optional<Head> head;
  for (Took took = Took::Nothing; took != Took::End;) {
    const double left = deadline - waiter.now();
    if (left <= 0) return fail(ErrorKind::Limit, "{}: no answer within {:.0f} s", path, seconds);
    // The child's messages are read too: a full pipe would stop it.
    std::array<pollfd, 2> waits{pollfd{socket.get(), static_cast<short>(unsent.empty() ? POLLIN : POLLIN | POLLOUT), 0},
                                pollfd{output_ended_ ? -1 : errors_, POLLIN, 0}};
    if (!waiter.wait(waits, left)) return fail(ErrorKind::Cancelled, "interrupted");
    if (waits[1].revents != 0) take_output();
    if ((waits[0].revents & POLLOUT) != 0 && !unsent.empty()) {
      const ssize_t sent = send_some(socket.get(), unsent.substr(0, std::size_t{64} << 10));
      if (sent < 0) break;
      unsent.remove_prefix(static_cast<std::size_t>(sent));
    }
    if ((waits[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0) took = receive_some(socket.get(), response);
    if (response.size() > kMaxResponse) return fail(ErrorKind::Limit, "{}: the response is too large", path);
    if (!head) head = read_head(response);
    if (head && head->length && response.size() >= head->body + *head->length) break;
  }
  if (!head || (head->length && response.size() < head->body + *head->length)) {
    std::array<pollfd, 1> waits{pollfd{errors_, POLLIN, 0}};
    constexpr double kForTheEnd = 2;  // a connection that breaks usually means that the process ends
    while (take_output() && waiter.wait(waits, kForTheEnd) && waits[0].revents != 0) {
    }
    if (output_ended_) return ended();
    return fail(ErrorKind::Internal, "{}: the connection ended before the response was whole", path);
  }
  response.erase(0, head->body);
  if (head->length) response.resize(*head->length);
  if (head->status == 200) return response;
  return fail(ErrorKind::Internal, "{}: status {}: {}", path, head->status, printable(response, 500));
}

}  // namespace lockstep::report
