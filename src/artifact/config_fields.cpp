#include "artifact/config_fields.hpp"

#include <algorithm>

namespace lockstep::artifact {

std::string brief(const Json& value) {
  constexpr std::size_t kLongest = 60;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

Result<Fields> Fields::of(const Json& object, std::string what) {
  if (!object.is_object()) return fail(ErrorKind::Invalid, "{}: not a JSON object", what);
  return Fields(object, std::move(what));
}

const Json* Fields::find(std::string_view key) {
  known_.emplace(key);
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

Result<std::int64_t> Fields::integer(std::string_view key, std::int64_t low, std::int64_t high) {
  if (find(key) == nullptr) return fail(ErrorKind::NotFound, "{}: field '{}' is missing", what_, key);
  const std::int64_t value = LOCKSTEP_TRY(json_integer(*object_, key, what_));
  if (value < low || value > high) {
    return fail(ErrorKind::Invalid, "{}: {} is {}, not within {} to {}", what_, key, value, low, high);
  }
  return value;
}

Result<std::int64_t> Fields::integer_or(std::string_view key, std::int64_t low, std::int64_t high,
                                        std::int64_t fallback) {
  return find(key) == nullptr ? Result<std::int64_t>(fallback) : integer(key, low, high);
}

Result<std::optional<double>> Fields::number(std::string_view key, double low, double high) {
  if (find(key) == nullptr) return std::optional<double>();
  const double value = LOCKSTEP_TRY(json_number(*object_, key, what_));
  if (!(value >= low && value <= high)) {  // a NaN fails too
    return fail(ErrorKind::Invalid, "{}: {} is {}, not within {} to {}", what_, key, value, low, high);
  }
  return std::optional(value);
}

Status Fields::expect(std::string_view key, const Json& value) {
  const Json* found = find(key);
  if (found == nullptr || *found == value) return {};
  return fail(ErrorKind::Unsupported, "{}: {} is {}; only {} is supported", what_, key, brief(*found), brief(value));
}

Status Fields::expect_one_of(std::string_view key, std::span<const std::string_view> values) {
  const Json* found = find(key);
  if (found == nullptr) return {};
  if (found->is_string()) {
    const auto& text = found->get_ref<const std::string&>();
    if (std::find(values.begin(), values.end(), text) != values.end()) return {};
  }
  std::string list;
  for (const std::string_view value : values) list.append(list.empty() ? "" : ", ").append(value);
  return fail(ErrorKind::Unsupported, "{}: {} is {}; supported: {}", what_, key, brief(*found), list);
}

void Fields::ignore(std::span<const std::string_view> keys) {
  known_.insert(keys.begin(), keys.end());
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : object_->items()) {
    if (!known_.contains(key)) names.push_back(key);
  }
  return names;
}

Status Fields::refuse_unknown() const {
  constexpr std::size_t kShown = 5;
  const std::vector<std::string> names = unknown();
  if (names.empty()) return {};
  std::string list;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) list += (i == 0 ? "" : ", ") + brief(names[i]);
  return fail(ErrorKind::Unsupported,
              "{}: unknown field{} {}{}: what it would change is not known, so the model is refused", what_,
              names.size() == 1 ? "" : "s", list, names.size() > kShown ? ", ..." : "");
}

}  // namespace lockstep::artifact
