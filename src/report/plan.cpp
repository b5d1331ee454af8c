#include "report/plan.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/printable.hpp"

namespace lockstep::report {
namespace {

bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}
bool is_upper(char c) {
  return c >= 'A' && c <= 'Z';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

bool is_arm_name(std::string_view name) {
  return !name.empty() && name.size() <= 32 && is_lower(name.front()) && !is_digit(name.back()) &&
         std::ranges::all_of(name, [](char c) { return is_lower(c) || is_digit(c) || c == '-' || c == '_'; });
}

bool is_variable(std::string_view name) {
  return !name.empty() && !is_digit(name.front()) &&
         std::ranges::all_of(name, [](char c) { return is_upper(c) || is_digit(c) || c == '_'; });
}

/// Splits as parse_arm() says. Errors: Usage.
class Words {
 public:
  static Result<std::vector<std::string>> of(std::string_view text) {
    Words words;
    for (const char c : text) words.take(c);
    if (words.quote_ != 0 || words.escaped_) {
      return fail(ErrorKind::Usage, "a quote or backslash is open at the end of '{}'", printable(text));
    }
    words.end();
    return std::move(words.words_);
  }

 private:
  void take(char c) {
    if (escaped_) {
      append(c);
      escaped_ = false;
    } else if (c == '\\' && quote_ != '\'') {
      escaped_ = true;
    } else if (quote_ != 0) {
      if (c == quote_) {
        quote_ = 0;
      } else {
        append(c);
      }
    } else if (c == '\'' || c == '"') {
      quote_ = c;
      open_ = true;
    } else if (is_space(c)) {
      end();
    } else {
      append(c);
    }
  }
  void append(char c) {
    word_ += c;
    open_ = true;
  }
  void end() {
    if (open_) words_.push_back(std::move(word_));
    word_.clear();
    open_ = false;
  }

  std::vector<std::string> words_;
  std::string word_;
  char quote_ = 0;
  bool escaped_ = false, open_ = false;
};

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::vector<std::string_view> list(std::string_view text, std::string_view separators = " ,\t\n") {
  std::vector<std::string_view> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(separators, at), text.size());
    if (end > at) out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

Result<std::size_t> arm_of(std::string_view name, std::span<const Arm> arms) {
  const auto found = std::ranges::find(arms, name, &Arm::name);
  if (found != arms.end()) return static_cast<std::size_t>(found - arms.begin());
  return fail(ErrorKind::Usage, "the order names '{}', which is no arm", printable(name, 64));
}

/// The name in a label: "a" of "a1".
std::string_view name_of(std::string_view label) {
  return label.substr(0, label.find_last_not_of("0123456789") + 1);
}

/// The labels of an order. '-' is part of an arm's name where there is such an arm, and separates labels elsewhere.
std::vector<std::string_view> labels_of(std::string_view text, std::span<const Arm> arms) {
  std::vector<std::string_view> out;
  for (const std::string_view word : list(text, " ,/\t\n")) {
    if (std::ranges::find(arms, name_of(word), &Arm::name) != arms.end()) {
      out.push_back(word);
    } else {
      const std::vector<std::string_view> parts = list(word, "-");
      out.insert(out.end(), parts.begin(), parts.end());
    }
  }
  return out;
}

/// Windows of capital letters.
Result<std::vector<std::size_t>> by_letters(std::string_view letters, std::size_t arms) {
  std::vector<std::size_t> out;
  for (const char c : letters) {
    const auto arm = static_cast<std::size_t>(c - 'A');
    if (arm >= arms) return fail(ErrorKind::Usage, "the order's letter {} stands for arm {} of {}", c, arm + 1, arms);
    out.push_back(arm);
  }
  return out;
}

}  // namespace

Result<Arm> parse_arm(std::string_view text) {
  if (text.size() > kMaxArmBytes) return fail(ErrorKind::Usage, "an arm has at most {} bytes", kMaxArmBytes);
  if (text.find('\0') != std::string_view::npos) return fail(ErrorKind::Usage, "an arm cannot contain a zero byte");
  const std::size_t equals = std::min(text.find('='), text.size());
  Arm arm{std::string(text.substr(0, equals)), {}, {}};
  if (!is_arm_name(arm.name) || equals == text.size()) {
    return fail(ErrorKind::Usage, "'{}' is no arm; it must be NAME=FLAGS with a lower-case name that ends in no digit",
                printable(text, 64));
  }
  for (std::string& word : LOCKSTEP_TRY(Words::of(text.substr(equals + 1)))) {
    const std::size_t at = std::min(word.find('='), word.size());
    if (arm.flags.empty() && at < word.size() && is_variable(std::string_view(word).substr(0, at))) {
      arm.environment.emplace_back(word.substr(0, at), word.substr(at + 1));
    } else {
      arm.flags.push_back(std::move(word));
    }
  }
  return arm;
}

Result<std::vector<Window>> parse_order(std::string_view text, std::span<const Arm> arms) {
  const std::vector<std::string_view> words = labels_of(text, arms);
  if (words.empty()) return fail(ErrorKind::Usage, "the order is empty");
  std::vector<Window> windows;
  std::vector<std::size_t> counts(arms.size());
  const auto add = [&](std::size_t arm, std::optional<std::string> label) {
    ++counts[arm];
    windows.push_back({arm, label ? *std::move(label) : fmt::format("{}{}", arms[arm].name, counts[arm])});
  };
  std::string letters;
  for (const std::string_view word : words) letters += word;
  if (std::ranges::all_of(letters, is_upper)) {
    for (const std::size_t arm : LOCKSTEP_TRY(by_letters(letters, arms.size()))) add(arm, std::nullopt);
  } else {
    for (const std::string_view word : words) {
      const std::string_view name = name_of(word);
      const std::size_t arm = LOCKSTEP_TRY(arm_of(name, arms));
      add(arm, name == word ? std::nullopt : std::optional(std::string(word)));
    }
  }
  if (windows.size() > kMaxWindows) return fail(ErrorKind::Usage, "an order has at most {} windows", kMaxWindows);
  for (std::size_t arm = 0; arm < arms.size(); ++arm) {
    if (counts[arm] == 0) return fail(ErrorKind::Usage, "the order never runs arm '{}'", arms[arm].name);
  }
  std::vector<std::string> labels;
  labels.reserve(windows.size());
  for (const Window& window : windows) labels.push_back(window.label);
  std::ranges::sort(labels);
  const auto twice = std::ranges::adjacent_find(labels);
  if (twice != labels.end()) return fail(ErrorKind::Usage, "the order names window '{}' twice", *twice);
  return windows;
}

Result<std::vector<std::uint64_t>> parse_seeds(std::string_view text) {
  std::vector<std::uint64_t> seeds;
  for (const std::string_view word : list(text)) {
    const std::size_t dash = word.find('-');
    const auto first = number<std::uint64_t>(word.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number<std::uint64_t>(word.substr(dash + 1));
    if (!first || !last || *last < *first) {
      return fail(ErrorKind::Usage, "'{}' is no seed; give whole numbers or ranges FIRST-LAST", printable(word, 64));
    }
    if (*last - *first >= kMaxSeeds - seeds.size()) return fail(ErrorKind::Usage, "at most {} seeds", kMaxSeeds);
    for (std::uint64_t i = 0; i <= *last - *first; ++i) seeds.push_back(*first + i);
  }
  if (seeds.empty()) return fail(ErrorKind::Usage, "there is no seed");
  std::vector<std::uint64_t> sorted = seeds;
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice != sorted.end()) return fail(ErrorKind::Usage, "seed {} is there twice", *twice);
  return seeds;
}

}  // namespace lockstep::report
