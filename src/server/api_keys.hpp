// Keys that clients must show.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "server/http/exchange.hpp"

namespace lockstep::server {

class ApiKeys {
 public:
  /// No key: everybody may ask.
  ApiKeys() = default;
  /// Adds a key. Errors: Usage when it is empty or has white space or control characters.
  Status add(std::string_view key);
  /// Adds the keys of a file, one a line; empty lines and lines that begin with # do not count. Errors: those of
  /// reading it, Usage when there is none.
  Status add_file(const std::filesystem::path& file);

  [[nodiscard]] bool required() const { return !digests_.empty(); }
  /// Whether the request has a key: "authorization: Bearer KEY" or "x-api-key: KEY". The time that this takes depends
  /// neither on which key it is nor on how much of it is right: digests are compared, all of them, in constant time.
  [[nodiscard]] bool admit(const HttpRequest& request) const;

 private:
  [[nodiscard]] bool known(std::string_view key) const;
  std::vector<std::string> digests_;
};

}  // namespace lockstep::server
