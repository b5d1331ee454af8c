#include "server/api_keys.hpp"

#include <openssl/crypto.h>

#include <algorithm>
#include <sstream>

#include "base/file.hpp"
#include "base/sha256.hpp"

namespace lockstep::server {

Status ApiKeys::add(std::string_view key) {
  const bool printable =
      std::ranges::all_of(key, [](char c) { return static_cast<unsigned char>(c) > ' ' && c != '\x7f'; });
  if (key.empty() || !printable) {
    return fail(ErrorKind::Usage, "an API key must have at least one character, and no spaces or control characters");
  }
  digests_.push_back(sha256_hex(key));
  return {};
}

Status ApiKeys::add_file(const std::filesystem::path& file) {
  std::istringstream lines(LOCKSTEP_TRY(read_file(file, 1 << 20)));
  std::size_t count = 0;
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.empty() || line.front() == '#') continue;
    if (const Status added = add(line); !added) {
      return fail(ErrorKind::Usage, "{}: line {}: {}", file.string(), number, added.error().message);
    }
    ++count;
  }
  if (count == 0) return fail(ErrorKind::Usage, "{}: the file has no API key", file.string());
  return {};
}

bool ApiKeys::admit(const HttpRequest& request) const {
  if (!required()) return true;
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view authorization = request.header("authorization");
  const bool bearer = authorization.size() > kBearer.size() &&
                      std::ranges::equal(authorization.substr(0, kBearer.size()), kBearer,
                                         [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + 32 : a) == b; });
  return known(bearer ? authorization.substr(kBearer.size()) : request.header("x-api-key"));
}

bool ApiKeys::known(std::string_view key) const {
  const std::string digest = sha256_hex(key);
  bool found = false;
  for (const std::string& one : digests_) {
    found = (::CRYPTO_memcmp(one.data(), digest.data(), digest.size()) == 0) || found;
  }
  return found;
}

}  // namespace lockstep::server
