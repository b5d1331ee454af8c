// Field access for config.json that remembers which fields were looked at, so that the rest can be refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"
#include "base/result.hpp"

namespace lockstep::artifact {

class Fields {
 public:
  /// `object` must outlive this. `what` names it in errors ("config.json: text_config"). Errors: Invalid.
  static Result<Fields> of(const Json& object, std::string what);

  /// The field, or nullptr when absent or null. Marks it as known.
  const Json* find(std::string_view key);

  /// A required integer in [low, high].
  Result<std::int64_t> integer(std::string_view key, std::int64_t low, std::int64_t high);
  /// The same, with a value for an absent or null field.
  Result<std::int64_t> integer_or(std::string_view key, std::int64_t low, std::int64_t high, std::int64_t fallback);
  /// A required dimension: 1 to `high`.
  Result<std::int64_t> dimension(std::string_view key, std::int64_t high) { return integer(key, 1, high); }
  /// A number in [low, high], or nothing when absent.
  Result<std::optional<double>> number(std::string_view key, double low, double high);
  /// A field that may be absent, but if present must have this value: another one would change the computation.
  Status expect(std::string_view key, const Json& value);
  /// A field that may be absent, but if present must be one of these strings.
  Status expect_one_of(std::string_view key, std::span<const std::string_view> values);
  /// Fields that change nothing in inference.
  void ignore(std::span<const std::string_view> keys);
  [[nodiscard]] bool knows(std::string_view key) const { return known_.contains(key); }
  /// Names of the fields nobody asked for, in order.
  [[nodiscard]] std::vector<std::string> unknown() const;
  /// Errors: Unsupported naming the unknown fields.
  [[nodiscard]] Status refuse_unknown() const;

  [[nodiscard]] const std::string& what() const { return what_; }
  [[nodiscard]] const Json& object() const { return *object_; }

 private:
  Fields(const Json& object, std::string what) : object_(&object), what_(std::move(what)) {}
  const Json* object_;
  std::string what_;
  std::set<std::string, std::less<>> known_;
};

/// A JSON value in an error message, shortened.
[[nodiscard]] std::string brief(const Json& value);

}  // namespace lockstep::artifact
