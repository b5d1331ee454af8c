#include "server/client.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <stdexcept>

namespace lockstep::test {

Connection::Connection(std::uint16_t port) {
  socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval limit{30, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error("cannot connect");
  }
}

Connection::~Connection() {
  close();
}

void Connection::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void Connection::end_sending() {
  ::shutdown(socket_, SHUT_WR);
}

void Connection::shrink_buffers() {
  const int size = 4096;
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
}

bool Connection::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

bool Connection::fill() {
  std::array<char, 65536> bytes{};
  const ssize_t n = ::recv(socket_, bytes.data(), bytes.size(), 0);
  if (n <= 0) return false;
  buffer_.append(bytes.data(), static_cast<std::size_t>(n));
  return true;
}

std::string Connection::receive_some() {
  if (buffer_.empty() && !fill()) return {};
  return std::exchange(buffer_, {});
}

bool Connection::receive_until(std::string_view text) {
  while (buffer_.find(text) == std::string::npos) {
    if (!fill()) return false;
  }
  return true;
}

Reply Connection::receive(bool head) {
  Reply reply;
  if (!receive_until("\r\n\r\n")) return reply;
  const std::size_t end = buffer_.find("\r\n\r\n");
  std::string top = buffer_.substr(0, end + 2);
  buffer_.erase(0, end + 4);
  reply.status = std::atoi(top.c_str() + top.find(' ') + 1);
  for (std::size_t at = top.find("\r\n") + 2; at < top.size();) {
    const std::size_t stop = top.find("\r\n", at);
    const std::size_t colon = top.find(": ", at);
    reply.headers[top.substr(at, colon - at)] = top.substr(colon + 2, stop - colon - 2);
    at = stop + 2;
  }
  if (reply.status == 100) return receive(head);
  if (head || reply.status == 204) return reply;
  if (reply.headers["transfer-encoding"] == "chunked") {
    for (;;) {
      if (!receive_until("\r\n")) return reply;
      const std::size_t line = buffer_.find("\r\n");
      const std::size_t size = std::strtoul(buffer_.c_str(), nullptr, 16);
      while (buffer_.size() < line + 2 + size + 2) {
        if (!fill()) return reply;
      }
      reply.body += buffer_.substr(line + 2, size);
      buffer_.erase(0, line + 2 + size + 2);
      if (size == 0) return reply;
    }
  }
  if (reply.headers.contains("content-length")) {
    const std::size_t size = std::strtoul(reply.headers["content-length"].c_str(), nullptr, 10);
    while (buffer_.size() < size && fill()) {
    }
    reply.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
    return reply;
  }
  while (fill()) {
  }
  reply.body = std::exchange(buffer_, {});
  return reply;
}

std::string request_text(std::string_view method, std::string_view path, std::string_view body, const Pairs& headers) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nhost: localhost\r\n", method, path);
  for (const auto& [name, value] : headers) text += fmt::format("{}: {}\r\n", name, value);
  if (!body.empty()) text += fmt::format("content-type: application/json\r\ncontent-length: {}\r\n", body.size());
  return text + "\r\n" + std::string(body);
}

Reply ask(std::uint16_t port, std::string_view method, std::string_view path, std::string_view body,
          const Pairs& headers) {
  Connection connection(port);
  connection.send(request_text(method, path, body, headers));
  return connection.receive(method == "HEAD");
}

std::vector<SseEvent> sse_events(std::string_view body) {
  std::vector<SseEvent> events;
  while (!body.empty()) {
    const std::size_t end = std::min(body.find("\n\n"), body.size());
    std::string_view block = body.substr(0, end);
    body.remove_prefix(std::min(end + 2, body.size()));
    SseEvent event;
    while (!block.empty()) {
      const std::size_t stop = std::min(block.find('\n'), block.size());
      const std::string_view line = block.substr(0, stop);
      block.remove_prefix(std::min(stop + 1, block.size()));
      if (line.starts_with("event: ")) event.name = std::string(line.substr(7));
      if (line.starts_with("data: ")) event.data = std::string(line.substr(6));
    }
    if (!event.data.empty()) events.push_back(std::move(event));
  }
  return events;
}

}  // namespace lockstep::test
