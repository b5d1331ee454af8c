#include "text/jinja/globals.hpp"

#include <array>

#include "text/jinja/format.hpp"
#include "text/jinja/operators.hpp"

namespace lockstep::text::jinja {
namespace {

constexpr std::size_t kMaxTimeFormat = 1000;

Result<Value> range_function(Runtime& runtime, const Value&, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("range", arguments, {"start", "stop", "step"}, 1));
  if (!arguments.named.empty()) return fail(ErrorKind::Invalid, "range() takes no named arguments");
  for (const Value& value : arguments.positional) {
    const auto number = LOCKSTEP_TRY(as_integer(value));
    if (!number) return type_error("range() needs integers", value);
  }
  RangeBounds bounds;
  const std::int64_t first = LOCKSTEP_TRY(bound.integer(0, 0));
  bounds.start = arguments.positional.size() > 1 ? first : 0;
  bounds.stop = LOCKSTEP_TRY(bound.integer(1, first));
  bounds.step = LOCKSTEP_TRY(bound.integer(2, 1));
  return runtime.range(bounds);
}

/// The entries of dict(): those of the argument, then the named ones.
Result<Value> dict_function(Runtime& runtime, const Value&, const Arguments& arguments) {
  if (arguments.positional.size() > 1) return fail(ErrorKind::Invalid, "dict() takes at most one unnamed argument");
  std::vector<std::pair<Value, Value>> entries;
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (const Dict* dict = source.dict()) {
      entries = dict->entries;
    } else {
      const SequencePtr pairs = LOCKSTEP_TRY(runtime.iterate(source));
      for (const Value& pair : pairs->items) {
        const SequencePtr parts = LOCKSTEP_TRY(runtime.iterate(pair));
        if (parts->items.size() != 2) return fail(ErrorKind::Invalid, "dict() needs pairs");
        entries.emplace_back(parts->items[0], parts->items[1]);
      }
    }
  }
  for (const auto& [key, value] : arguments.named) entries.emplace_back(LOCKSTEP_TRY(runtime.text(key)), value);
  return runtime.unique_dict(std::move(entries));
}

Result<Value> namespace_function(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Value content = LOCKSTEP_TRY(dict_function(runtime, self, arguments));
  Namespace* const space = LOCKSTEP_TRY(runtime.make_namespace());
  for (const auto& [key, value] : content.dict()->entries) {
    if (key.text() == nullptr) return type_error("namespace() needs names", key);
    LOCKSTEP_TRY(runtime.set_attribute(*space, key.text()->view(), value));
  }
  return Value(space);
}

Result<Value> raise_function(Runtime& runtime, const Value&, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("raise_exception", arguments, {"message"}, 1));
  const TextPtr message = LOCKSTEP_TRY(to_text(runtime, *bound.get(0)));
  runtime.set_raised();
  return fail(ErrorKind::Invalid, "{}", message->view());
}

Result<Value> strftime_function(Runtime& runtime, const Value&, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("strftime_now", arguments, {"format"}, 1));
  const TextPtr format = LOCKSTEP_TRY(bound.text(0));
  const std::string time = LOCKSTEP_TRY(format_time(runtime.now(), format->view()));
  return runtime.text(time);
}

constexpr std::array kGlobals = {
    Global{"range", range_function},           Global{"dict", dict_function},
    Global{"namespace", namespace_function},   Global{"raise_exception", raise_function},
    Global{"strftime_now", strftime_function},
};

}  // namespace

std::span<const Global> globals() {
  return kGlobals;
}

Result<std::string> format_time(const std::tm& time, std::string_view format) {
  if (format.size() > kMaxTimeFormat) return fail(ErrorKind::Limit, "a time format of {} bytes", format.size());
  static constexpr std::string_view kKnown = "aAbBcCdDeFgGhHIjklmMnpPrRStTuUVwWxXyY%", kFlags = "-_0^#";
  std::string out;
  for (std::size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      out.push_back(format[at]);
      continue;
    }
    std::size_t end = at + 1;
    while (end < format.size() && kFlags.find(format[end]) != std::string_view::npos) ++end;
    const char kind = end < format.size() ? format[end] : '\0';
    if (kind == 'f') {
      out += "000000";
    } else if (kind != '\0' && kKnown.find(kind) != std::string_view::npos) {
      // One directive at a time, so that the result is short and the rest of the format never reaches the C library.
      const std::string directive(format.substr(at, end + 1 - at));
      std::array<char, 256> buffer{};
      out.append(buffer.data(), std::strftime(buffer.data(), buffer.size(), directive.c_str(), &time));
    } else if (kind != 'z' && kind != 'Z') {
      out.push_back('%');
      continue;
    }
    at = end;
  }
  return out;
}

}  // namespace lockstep::text::jinja
