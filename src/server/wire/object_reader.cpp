#include "server/wire/object_reader.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep::server {
namespace {

const OrderedJson kNothing = OrderedJson::object();

std::string joined(std::initializer_list<std::string_view> words) {
  std::string out;
  for (const std::string_view word : words) out += fmt::format("{}'{}'", out.empty() ? "" : ", ", word);
  return out;
}

}  // namespace

std::optional<WholeNumber> whole_number(const OrderedJson& value) {
  if (value.is_number_unsigned()) return WholeNumber{value.get<std::uint64_t>(), false};
  if (value.is_number_integer()) {
    return WholeNumber{static_cast<std::uint64_t>(value.get<std::int64_t>()), value.get<std::int64_t>() < 0};
  }
  const double number = value.get<double>();
  // 2^63 and 2^64 as doubles. What does not fit is rounded to one of them.
  if (number != std::trunc(number) || number <= -0x1p63 || number >= 0x1p64) return std::nullopt;
  if (number < 0) return WholeNumber{static_cast<std::uint64_t>(static_cast<std::int64_t>(number)), true};
  return WholeNumber{static_cast<std::uint64_t>(number), false};
}

std::optional<std::int32_t> token_id(const OrderedJson& value, const std::string& path, Problems& problems) {
  if (value.is_number()) {
    const std::optional<WholeNumber> whole = whole_number(value);
    if (whole && !whole->negative && whole->bits <= INT32_MAX) return static_cast<std::int32_t>(whole->bits);
  }
  problems.add(path, fmt::format("must be a token id, a whole number between 0 and {}", INT32_MAX));
  return std::nullopt;
}

void Problems::add(std::string path, std::string message, std::string_view code) {
  if (first_) return;
  first_ = ApiError{400, std::string(code), std::move(path), std::move(message), 0};
}

std::string element_path(std::string_view path, std::size_t index) {
  return fmt::format("{}[{}]", path, index);
}

ObjectReader::ObjectReader(const OrderedJson& value, std::string path, Problems& problems)
    : object_(&value), path_(std::move(path)), problems_(&problems) {
  if (value.is_object()) return;
  object_ = &kNothing;
  problems.add(path_, fmt::format("must be an object, not {}", value.type_name()), "invalid_type");
}

std::string ObjectReader::path(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

void ObjectReader::complain(std::string_view key, std::string message, std::string_view code) {
  problems_->add(path(key), std::move(message), code);
}

const OrderedJson* ObjectReader::find(std::string_view key) {
  known_.emplace(key);
  const auto found = object_->find(std::string(key));
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

std::optional<double> ObjectReader::number(std::string_view key, double low, double high) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    complain(key, fmt::format("must be a number, not {}", value->type_name()), "invalid_type");
    return std::nullopt;
  }
  const double number = value->get<double>();
  if (number >= low && number <= high) return number;
  complain(key, fmt::format("is {}; it must be between {} and {}", number, low, high));
  return std::nullopt;
}

std::optional<std::int64_t> ObjectReader::integer(std::string_view key, std::int64_t low, std::int64_t high) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    complain(key, fmt::format("must be an integer, not {}", value->type_name()), "invalid_type");
    return std::nullopt;
  }
  const std::optional<WholeNumber> whole = whole_number(*value);
  if (whole && !(whole->negative ? std::cmp_less(whole->as_signed(), low) : std::cmp_less(whole->bits, low)) &&
      !(whole->negative ? std::cmp_greater(whole->as_signed(), high) : std::cmp_greater(whole->bits, high))) {
    return whole->as_signed();
  }
  complain(key, fmt::format("is {}; it must be a whole number between {} and {}", value->dump(), low, high));
  return std::nullopt;
}

std::optional<bool> ObjectReader::boolean(std::string_view key) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  complain(key, fmt::format("must be true or false, not {}", value->type_name()), "invalid_type");
  return std::nullopt;
}

std::optional<std::string> ObjectReader::string(std::string_view key) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  complain(key, fmt::format("must be a string, not {}", value->type_name()), "invalid_type");
  return std::nullopt;
}

std::optional<std::string> ObjectReader::word(std::string_view key, std::initializer_list<std::string_view> words) {
  std::optional<std::string> value = string(key);
  if (!value || std::ranges::find(words, *value) != words.end()) return value;
  complain(key, fmt::format("must be one of {}", joined(words)));
  return std::nullopt;
}

const OrderedJson* ObjectReader::array(std::string_view key, std::size_t most, std::string_view kinds) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) {
    complain(key, fmt::format("must be {}, not {}", kinds, value->type_name()), "invalid_type");
    return nullptr;
  }
  if (value->size() <= most) return value;
  complain(key, fmt::format("has {} elements, more than the limit of {}", value->size(), most), "limit_exceeded");
  return nullptr;
}

const OrderedJson* ObjectReader::object(std::string_view key) {
  const OrderedJson* value = find(key);
  if (value == nullptr || value->is_object()) return value;
  complain(key, fmt::format("must be an object, not {}", value->type_name()), "invalid_type");
  return nullptr;
}

void ObjectReader::ignore(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) known_.emplace(key);
}

void ObjectReader::refuse(std::string_view key, std::string_view why) {
  const OrderedJson* value = find(key);
  if (value == nullptr || *value == false) return;
  const bool empty = (value->is_structured() && value->empty()) ||
                     (value->is_string() && value->get_ref<const std::string&>().empty());
  if (!empty) complain(key, std::string(why), "unsupported_parameter");
}

void ObjectReader::require(std::string_view key) {
  if (find(key) == nullptr) complain(key, "is required", "missing_required_parameter");
}

void ObjectReader::finish(bool strict) {
  if (!strict) return;
  for (const auto& [key, value] : object_->items()) {
    if (!known_.contains(key)) complain(key, "is not a field of this request", "unknown_field");
  }
}

}  // namespace lockstep::server
