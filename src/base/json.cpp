#include "base/json.hpp"

#include <set>
#include <vector>

namespace lockstep {
namespace {

template <class J>
Result<J> parse(std::string_view text, std::string_view what, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return fail(ErrorKind::Limit, "{}: {} bytes of JSON, more than the limit of {}", what, text.size(), limits.max_bytes);
  }
  bool too_deep = false;
  std::string duplicate;
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, typename J::parse_event_t event, J& value) {
    if (depth > limits.max_depth) too_deep = true;
    if (limits.unique_keys) {
      if (event == J::parse_event_t::object_start) keys.emplace_back();
      if (event == J::parse_event_t::object_end && !keys.empty()) keys.pop_back();
      if (event == J::parse_event_t::key && !keys.empty() && duplicate.empty()) {
        std::string key = value.template get<std::string>();
        if (!keys.back().insert(key).second) duplicate = std::move(key);
      }
    }
    return !too_deep;
  };
  J parsed;
  try {
    parsed = J::parse(text.begin(), text.end(), watch);
  } catch (const std::exception& error) {
    return fail(ErrorKind::Invalid, "{}: not valid JSON: {}", what, error.what());
  }
  if (too_deep) return fail(ErrorKind::Limit, "{}: JSON nested deeper than {} levels", what, limits.max_depth);
  if (!duplicate.empty()) return fail(ErrorKind::Invalid, "{}: key '{}' appears twice", what, duplicate);
  return parsed;
}

Result<const Json*> field(const Json& object, std::string_view key, std::string_view what) {
  if (!object.is_object()) return fail(ErrorKind::Invalid, "{}: not a JSON object", what);
  const auto found = object.find(key);
  if (found == object.end()) return fail(ErrorKind::NotFound, "{}: field '{}' is missing", what, key);
  return &*found;
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view what, const JsonLimits& limits) {
  return parse<Json>(text, what, limits);
}

Result<OrderedJson> parse_ordered_json(std::string_view text, std::string_view what, const JsonLimits& limits) {
  return parse<OrderedJson>(text, what, limits);
}

Result<std::int64_t> json_integer(const Json& object, std::string_view key, std::string_view what) {
  const Json& value = *LOCKSTEP_TRY(field(object, key, what));
  if (!value.is_number_integer()) return fail(ErrorKind::Invalid, "{}: field '{}' is not an integer", what, key);
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX) {
    return fail(ErrorKind::Invalid, "{}: field '{}' is too large", what, key);
  }
  return value.get<std::int64_t>();
}

Result<double> json_number(const Json& object, std::string_view key, std::string_view what) {
  const Json& value = *LOCKSTEP_TRY(field(object, key, what));
  if (!value.is_number()) return fail(ErrorKind::Invalid, "{}: field '{}' is not a number", what, key);
  return value.get<double>();
}

Result<std::string> json_string(const Json& object, std::string_view key, std::string_view what) {
  const Json& value = *LOCKSTEP_TRY(field(object, key, what));
  if (!value.is_string()) return fail(ErrorKind::Invalid, "{}: field '{}' is not a string", what, key);
  return value.get<std::string>();
}

Result<bool> json_bool(const Json& object, std::string_view key, std::string_view what) {
  const Json& value = *LOCKSTEP_TRY(field(object, key, what));
  if (!value.is_boolean()) return fail(ErrorKind::Invalid, "{}: field '{}' is not true or false", what, key);
  return value.get<bool>();
}

}  // namespace lockstep
