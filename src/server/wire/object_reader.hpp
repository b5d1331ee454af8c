// Reading the fields of a request: typed, bounded, and with the field's path in every complaint.
//
// Complaints are collected instead of returned, so that the code of a wire format reads as a list of its fields; the
// first one is the answer to the client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/json.hpp"
#include "server/wire/api_error.hpp"

namespace lockstep::server {

class Problems {
 public:
  /// Keeps the first complaint.
  void add(std::string path, std::string message, std::string_view code = "invalid_value");
  [[nodiscard]] bool any() const { return first_.has_value(); }
  /// Only if any().
  [[nodiscard]] const ApiError& first() const { return *first_; }

 private:
  std::optional<ApiError> first_;
};

/// "messages[2]"
[[nodiscard]] std::string element_path(std::string_view path, std::size_t index);

/// A whole number of JSON, however it is written: 5, 5.0 and 5e0 are the same.
struct WholeNumber {
  std::uint64_t bits = 0;  ///< the value modulo 2^64
  bool negative = false;
  [[nodiscard]] std::int64_t as_signed() const { return static_cast<std::int64_t>(bits); }
};
/// Nothing for a fraction and outside of -2^63 to 2^64 - 1. `value` is a number.
[[nodiscard]] std::optional<WholeNumber> whole_number(const OrderedJson& value);

/// A token id, which a vocabulary still has to know. Complains, with `path`, about everything else.
[[nodiscard]] std::optional<std::int32_t> token_id(const OrderedJson& value, const std::string& path,
                                                   Problems& problems);

/// One object of a request. Every getter returns nothing for a field that is absent or null, and complains about a
/// wrong type or range. Keeps references to its arguments.
class ObjectReader {
 public:
  /// Complains when `value` is not an object; it then has no fields.
  ObjectReader(const OrderedJson& value, std::string path, Problems& problems);

  const OrderedJson* find(std::string_view key);
  std::optional<double> number(std::string_view key, double low, double high);
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t low, std::int64_t high);
  std::optional<bool> boolean(std::string_view key);
  std::optional<std::string> string(std::string_view key);
  /// One of these words.
  std::optional<std::string> word(std::string_view key, std::initializer_list<std::string_view> words);
  /// An array of at most `most` elements, or null. `kinds` says what the field takes, the caller's other kinds
  /// included.
  const OrderedJson* array(std::string_view key, std::size_t most, std::string_view kinds = "an array");
  /// An object, or null.
  const OrderedJson* object(std::string_view key);
  /// Fields that are known and change nothing here.
  void ignore(std::initializer_list<std::string_view> keys);
  /// A field that asks for something this program does not do: complains unless it is absent, null, false, or an empty
  /// list, object or string.
  void refuse(std::string_view key, std::string_view why);
  /// Complains that a field is missing, if it is.
  void require(std::string_view key);
  /// In strict mode, complains about the first field that nobody asked for.
  void finish(bool strict);

  [[nodiscard]] std::string path(std::string_view key) const;
  void complain(std::string_view key, std::string message, std::string_view code = "invalid_value");
  [[nodiscard]] Problems& problems() { return *problems_; }

 private:
  const OrderedJson* object_;
  std::string path_;
  Problems* problems_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace lockstep::server
