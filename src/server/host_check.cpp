#include "server/host_check.hpp"

#include <algorithm>
#include <boost/asio/ip/address.hpp>

namespace lockstep::server {

std::string host_of(std::string_view header) {
  std::string_view host = header;
  if (host.starts_with('[')) {
    const std::size_t end = host.find(']');
    if (end == std::string_view::npos) return {};
    host = host.substr(1, end - 1);
  } else if (std::ranges::count(host, ':') == 1) {  // more of them are an address without brackets
    host = host.substr(0, host.find(':'));
  }
  if (host.ends_with('.')) host.remove_suffix(1);
  std::string out(host);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return out;
}

bool is_loopback_name(std::string_view host) {
  if (host == "localhost" || host.ends_with(".localhost")) return true;
  boost::system::error_code none;
  const boost::asio::ip::address address = boost::asio::ip::make_address(std::string(host), none);
  return !none && address.is_loopback();
}

bool host_allowed(std::string_view header, std::string_view bound, const std::vector<std::string>& allowed) {
  const std::string host = host_of(header);
  if (host.empty()) return false;
  return is_loopback_name(host) || host == host_of(bound) ||
         std::ranges::any_of(allowed, [&](const std::string& name) { return host_of(name) == host; });
}

}  // namespace lockstep::server
