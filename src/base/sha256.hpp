// SHA-256 (OpenSSL), one shot and incremental, as lower-case hex.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256(const Sha256&) = delete;
  Sha256& operator=(Sha256&&) noexcept;
  Sha256& operator=(const Sha256&) = delete;
  ~Sha256();
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  /// Ends the computation; the object must not be used afterwards.
  [[nodiscard]] std::string hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

[[nodiscard]] std::string sha256_hex(std::string_view text);

}  // namespace lockstep
