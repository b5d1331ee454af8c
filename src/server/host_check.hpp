// Which names a request may have come to: the guard against DNS rebinding.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::server {

/// The host of a Host header, "name:port" or "[v6]:port", in lower case and without brackets, port and final dot; empty
/// when it is none.
[[nodiscard]] std::string host_of(std::string_view header);

/// Whether the name can only mean this machine: localhost and names below it, 127.0.0.0/8, ::1.
[[nodiscard]] bool is_loopback_name(std::string_view host);

/// A web page whose own name points at 127.0.0.1 is, to its browser, of the same origin as a server there; its requests
/// give it away by the name in Host. True for loopback names, `bound` (what the server was told to listen on) and the
/// names in `allowed`.
[[nodiscard]] bool host_allowed(std::string_view header, std::string_view bound,
                                const std::vector<std::string>& allowed);

}  // namespace lockstep::server
