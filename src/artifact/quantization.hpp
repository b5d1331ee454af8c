// What config.json says about the precision of modules, to be compared with what the tensors' shapes say.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"
#include "base/result.hpp"

namespace lockstep::artifact {

struct Precision {
  int bits = 0, group = 0;
  bool operator==(const Precision&) const = default;
};

[[nodiscard]] bool supported_bits(std::int64_t bits);    ///< 2, 3, 4, 5, 6, 8
[[nodiscard]] bool supported_group(std::int64_t group);  ///< 32, 64, 128

class QuantizationConfig {
 public:
  /// Reads `quantization` (or `quantization_config`). Errors: Invalid, Unsupported (a mode that is not affine, or
  /// another method such as fp8).
  /// `file` is the path that errors name.
  static Result<QuantizationConfig> parse(const Json& config, std::vector<std::string>& warnings,
                                          const std::string& file = "config.json");

  /// False when config.json has no such section: then every module is expected to be dense.
  [[nodiscard]] bool present() const { return present_; }

  /// All modules that have an entry, in ascending order.
  [[nodiscard]] std::vector<std::string> modules() const;

  /// Compares a module's real precision (nothing when dense) with the section. An explicit entry must agree: Invalid.
  /// A quantised module without an entry that differs from the default is noted in `unlisted` and accepted.
  Status check(std::string_view module, std::optional<Precision> real, std::vector<std::string>& unlisted) const;

 private:
  std::string file_;
  bool present_ = false;
  Precision default_;
  std::map<std::string, std::optional<Precision>, std::less<>> entries_;  // nothing: kept dense
};

}  // namespace lockstep::artifact
