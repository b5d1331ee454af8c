#include "base/json.hpp"

#include <set>
#include <vector>

#include "base/json_events.hpp"

namespace lockstep {
namespace {

constexpr std::size_t kMaxExcerpt = 160;

/// A key or a parser's message for an error line: bounded, and without bytes that a terminal might act on.
std::string excerpt(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMaxExcerpt)) out += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > kMaxExcerpt ? out + "..." : out;
}

/// The library's message without its "[json.exception.parse_error.101] ".
std::string parser_message(std::string_view message) {
  const std::size_t bracket = message.find("] ");
  return excerpt(message.starts_with("[json.exception") && bracket != std::string_view::npos
                     ? message.substr(bracket + 2)
                     : message);
}

/// A first pass over the text that builds nothing and looks for violated limits; it stops at the first. The library
/// parses without recursion. (Its parser callback could do this in one pass, but then each object that ends rescans its
/// parent, which takes minutes for a hostile or merely large array of objects.)
class Checker : public JsonScalars<Checker> {
 public:
  Checker(const JsonLimits& limits, std::size_t max_members) : limits_(limits), max_members_(max_members) {}

  bool value() {
    if (++values_ <= limits_.max_values) return true;
    return stop(ErrorKind::Limit, fmt::format("JSON with more than {} values", limits_.max_values));
  }

  bool start_object(std::size_t) {
    objects_.emplace_back();
    return enter();
  }
  bool end_object() {
    objects_.pop_back();
    return leave();
  }
  bool start_array(std::size_t) { return enter(); }
  bool end_array() { return leave(); }

  bool key(std::string& name) {
    Object& object = objects_.back();
    if (++object.members > max_members_) {
      const std::string own =
          objects_.size() > 1 ? fmt::format(" '{}'", excerpt(objects_[objects_.size() - 2].key)) : "";
      return stop(ErrorKind::Limit, fmt::format("the JSON object{} has more than {} members", own, max_members_));
    }
    object.key = name;
    if (limits_.unique_keys && !object.keys.insert(name).second) {
      return stop(ErrorKind::Invalid, fmt::format("key '{}' appears twice", excerpt(name)));
    }
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const std::exception& error) {
    return stop(ErrorKind::Invalid, fmt::format("not valid JSON: {}", parser_message(error.what())));
  }

  [[nodiscard]] const Error& error() const { return error_; }

 private:
  struct Object {
    std::size_t members = 0;
    std::string key;             // the last one
    std::set<std::string> keys;  // filled only when they must be unique
  };

  bool enter() {
    if (!value()) return false;
    if (++depth_ <= limits_.max_depth) return true;
    return stop(ErrorKind::Limit, fmt::format("JSON nested deeper than {} levels", limits_.max_depth));
  }
  bool leave() {
    --depth_;
    return true;
  }
  bool stop(ErrorKind kind, std::string message) {
    error_ = Error{kind, std::move(message)};
    return false;
  }

  const JsonLimits& limits_;
  std::size_t max_members_, values_ = 0;
  int depth_ = 0;
  std::vector<Object> objects_;
  Error error_;
};

template <class J>
Result<J> parse(std::string_view text, std::string_view what, const JsonLimits& limits, std::size_t max_members) {
  if (text.size() > limits.max_bytes) {
    return fail(ErrorKind::Limit, "{}: {} bytes of JSON, more than the limit of {}", what, text.size(),
                limits.max_bytes);
  }
  // The library takes a zero byte for the end of the text and would ignore what follows.
  if (text.find('\0') != std::string_view::npos) {
    return fail(ErrorKind::Invalid, "{}: not valid JSON: it has a zero byte", what);
  }
  try {
    Checker checker(limits, max_members);
    if (!Json::sax_parse(text.begin(), text.end(), &checker)) return with_context(checker.error(), what);
    return J::parse(text.begin(), text.end());
  } catch (const std::exception& error) {
    return fail(ErrorKind::Invalid, "{}: not valid JSON: {}", what, parser_message(error.what()));
  }
}

Result<const Json*> field(const Json& object, std::string_view key, std::string_view what) {
  if (!object.is_object()) return fail(ErrorKind::Invalid, "{}: not a JSON object", what);
  const auto found = object.find(key);
  if (found == object.end()) return fail(ErrorKind::NotFound, "{}: field '{}' is missing", what, key);
  return &*found;
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view what, const JsonLimits& limits) {
  return parse<Json>(text, what, limits, limits.max_members);
}

Result<OrderedJson> parse_ordered_json(std::string_view text, std::string_view what, const JsonLimits& limits) {
  return parse<OrderedJson>(text, what, limits, limits.max_ordered_members);
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
