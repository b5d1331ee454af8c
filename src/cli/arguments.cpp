#include "cli/arguments.hpp"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "base/memory.hpp"

namespace lockstep::cli {
namespace {

/// In front of a value that the library would take apart. A value that starts with it gets a second one.
constexpr char kMark = '\x1f';

std::string marked(std::string value) {
  const bool list = value.size() > 1 && value.front() == '[' && value.back() == ']';
  return list || (!value.empty() && value.front() == kMark) ? kMark + value : value;
}

const CLI::App* named_command(const CLI::App& app, std::string_view name) {
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  const auto found = std::ranges::find_if(commands, [&](const CLI::App* c) { return c->get_name() == name; });
  return found == commands.end() ? nullptr : *found;
}

/// The option of that name ("--seed", "-m") if it takes a value.
const CLI::Option* valued_option(const CLI::App& command, const std::string& name) {
  const CLI::Option* option = command.get_option_no_throw(name);
  return option != nullptr && option->get_items_expected_max() > 0 ? option : nullptr;
}

/// Where the value of `argument` begins: after "--name=" or "-x"; npos when it is the next argument.
struct Name {
  std::string text;
  std::size_t value = std::string::npos;
};

Name split_name(const std::string& argument) {
  if (!argument.starts_with("--")) return {argument.substr(0, 2), argument.size() > 2 ? 2 : std::string::npos};
  const std::size_t equals = argument.find('=');
  return {argument.substr(0, equals), equals == std::string::npos ? equals : equals + 1};
}

}  // namespace

std::vector<std::string> literal_arguments(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> given(argv + std::min(argc, 1), argv + argc);
  const CLI::App* command = given.empty() ? nullptr : named_command(app, given.front());
  if (command == nullptr) return given;
  std::vector<std::string> out{given.front()};
  bool options_end = false;
  for (std::size_t i = 1; i < given.size(); ++i) {
    const std::string& argument = given[i];
    options_end = options_end || argument == "--";
    if (options_end || argument.size() < 2 || argument.front() != '-') {
      out.push_back(argument == "--" ? argument : marked(argument));
      continue;
    }
    const Name name = split_name(argument);
    if (valued_option(*command, name.text) == nullptr) {
      out.push_back(argument);  // a flag, or unknown
      continue;
    }
    out.push_back(name.text);
    if (name.value != std::string::npos) {
      out.push_back(marked(argument.substr(name.value)));
    } else if (i + 1 < given.size()) {
      out.push_back(marked(given[++i]));
    }
  }
  return out;
}

void unmark_values(CLI::App& app) {
  const CLI::Validator unmark(
      [](std::string& value) -> std::string {
        if (!value.empty() && value.front() == kMark) value.erase(0, 1);
        return {};
      },
      "");
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    for (CLI::Option* option : command->get_options()) {
      if (option->get_items_expected_max() > 0) option->transform(unmark);  // the last transform added runs first
    }
  }
}

CLI::Validator whole_number(std::int64_t least, std::uint64_t most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        const char* end = text.data() + text.size();
        const bool negative = text.starts_with('-');
        std::uint64_t size = 0;
        const auto [rest, error] = std::from_chars(text.data() + (negative ? 1 : 0), end, size);
        const std::uint64_t lowest = least < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(least) : 0;
        const bool inside = negative ? size <= lowest : size <= most && (least <= 0 || !std::cmp_less(size, least));
        if (error == std::errc() && rest == end && inside) {
          text = fmt::format("{}{}", negative && size != 0 ? "-" : "", size);
          return {};
        }
        return fmt::format("'{}' is not a whole number from {} to {}", text, least, most);
      },
      "N");
}

CLI::Validator byte_count(std::uint64_t least) {
  return CLI::Validator(
      [least](std::string& text) -> std::string {
        const std::optional<std::uint64_t> bytes = parse_bytes(text);
        if (!bytes || *bytes < least) {
          return fmt::format("'{}' is not a number of bytes from {} on, or one with K, M, G or T", text, least);
        }
        text = std::to_string(*bytes);
        return {};
      },
      "BYTES");
}

CLI::Validator finite_number(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        double value = 0;
        const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool number = error == std::errc() && rest == text.data() + text.size() && std::isfinite(value);
        if (number && value >= least && value <= most) return {};
        return fmt::format("'{}' is not a number from {} to {}", text, least, most);
      },
      "X");
}

CLI::Validator not_empty() {
  return CLI::Validator([](std::string& text) -> std::string { return text.empty() ? "the value is empty" : ""; }, "");
}

}  // namespace lockstep::cli
