#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tokenizer_split.hpp"

#include <pcre2.h>

#include <algorithm>
#include <cstdint>

namespace lockstep::text {
namespace {

constexpr std::size_t kMaxPatternBytes = 4096;
constexpr std::uint32_t kDepthLimit = 10'000;  // of the interpreter; compiled code is limited by its 32 KiB of stack
constexpr std::size_t kMaxRepeat = 32;
constexpr const char* kWhatToDo = "restore tokenizer.json as it was published with the model";

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

std::string message_of(int code) {
  unsigned char buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return std::string(buffer, std::find(buffer, buffer + sizeof buffer, '\0'));
}

/// Writes `\s` and `\S` as the Unicode property; both forms are valid inside and outside of character classes.
std::string with_unicode_space(std::string_view pattern) {
  std::string out;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's' || escaped == 'S') {
      out += escaped == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
    } else {
      out += '\\';
      out += escaped;
    }
  }
  return out;
}

/// Whether `{n}` or `{n,...}` asks for more than kMaxRepeat. Braces of escapes such as `\x{20AC}` are none of these.
bool repeats_too_often(std::string_view pattern) {
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\') {
      ++i;
      const bool braces = i + 1 < pattern.size() && pattern[i + 1] == '{';
      if (braces && std::string_view("xopPNgk").find(pattern[i]) != std::string_view::npos) ++i;
      continue;
    }
    if (pattern[i] != '{') continue;
    std::size_t least = 0;
    for (++i; i < pattern.size() && pattern[i] >= '0' && pattern[i] <= '9'; ++i) {
      least = least * 10 + static_cast<std::size_t>(pattern[i] - '0');
      if (least > kMaxRepeat) return true;
    }
    --i;
  }
  return false;
}

}  // namespace

struct SplitPattern::Code {
  explicit Code(pcre2_code* compiled) : code(compiled) {}
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
  pcre2_code* code;
};

SplitPattern::SplitPattern(std::unique_ptr<Code> code) : code_(std::move(code)) {}
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

Result<SplitPattern> SplitPattern::compile(std::string_view pattern) {
  if (pattern.empty() || pattern.size() > kMaxPatternBytes) {
    return fail(ErrorKind::Invalid, "tokenizer.json: split pattern: {} bytes, expected 1 to {}", pattern.size(),
                kMaxPatternBytes);
  }
  if (repeats_too_often(pattern)) {
    return fail(ErrorKind::Unsupported, "tokenizer.json: split pattern '{}': it asks for more than {} repetitions",
                pattern, kMaxRepeat);
  }
  const std::string translated = with_unicode_space(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT, &error, &offset, nullptr);
  if (code == nullptr) {
    return fail(ErrorKind::Invalid, "tokenizer.json: split pattern '{}': {} at byte {}", pattern, message_of(error),
                offset);
  }
  auto owned = std::make_unique<Code>(code);
  std::uint32_t matches_empty = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    return fail(ErrorKind::Unsupported, "tokenizer.json: split pattern '{}': it can match the empty text", pattern);
  }
  // A comparison with an earlier group may take long without a step that could be counted.
  std::uint32_t backreferences = 0;
  pcre2_pattern_info(code, PCRE2_INFO_BACKREFMAX, &backreferences);
  if (backreferences != 0) {
    return fail(ErrorKind::Unsupported, "tokenizer.json: split pattern '{}': it refers back to a group", pattern);
  }
  // Where the system forbids executable memory this fails and matching falls back to the interpreter.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return SplitPattern(std::move(owned));
}

bool SplitPattern::Budget::count(std::size_t position) {
  used_ += 1 + (position > position_ ? position - position_ : position_ - position);
  position_ = position;
  if (used_ >= next_look_) {
    next_look_ = used_ + kStepsBetweenLooks;
    stopped_ = stop_ && stop_();
  }
  return used_ <= most_ && !stopped_;
}

Status SplitPattern::split(std::string_view text, Budget& budget,
                           const std::function<Status(std::string_view)>& visit) const {
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data(
      pcre2_match_data_create_from_pattern(code_->code, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeMatchContext> context(pcre2_match_context_create(nullptr));
  if (!data || !context) return fail(ErrorKind::Limit, "tokenizer.json: the split pattern: out of memory");
  // The budget is over all matches and exact, so the library's own limit of a single match is out of the way.
  pcre2_set_match_limit(context.get(), UINT32_MAX);
  pcre2_set_depth_limit(context.get(), kDepthLimit);
  const auto on_item = [](pcre2_callout_block* at, void* counted) {
    return static_cast<Budget*>(counted)->count(at->current_position) ? 0 : PCRE2_ERROR_CALLOUT;
  };
  pcre2_set_callout(context.get(), on_item, &budget);
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
  std::size_t position = 0;
  while (position < text.size()) {
    budget.position_ = position;
    const int result = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), position,
                                   PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result == PCRE2_ERROR_CALLOUT && budget.stopped_) return fail(ErrorKind::Cancelled, "interrupted");
    if (result == PCRE2_ERROR_CALLOUT) {
      return fail(ErrorKind::Limit,
                  "tokenizer.json: the split pattern needs more than {} steps for the text, at byte {} of {}; {}",
                  budget.most_, position, text.size(), kWhatToDo);
    }
    if (result < 0) {
      return fail(ErrorKind::Limit, "tokenizer.json: matching the split pattern at byte {} of {} failed: {}; {}",
                  position, text.size(), message_of(result), kWhatToDo);
    }
    // \K moves the beginning of a match, up to its end and beyond.
    if (bounds[0] < position || bounds[1] <= bounds[0] || bounds[1] > text.size()) {
      return fail(ErrorKind::Unsupported, "tokenizer.json: the split pattern matches without any text at byte {}; {}",
                  position, kWhatToDo);
    }
    if (bounds[0] > position) LOCKSTEP_TRY(visit(text.substr(position, bounds[0] - position)));
    LOCKSTEP_TRY(visit(text.substr(bounds[0], bounds[1] - bounds[0])));
    position = bounds[1];
  }
  return position < text.size() ? visit(text.substr(position)) : Status{};
}

}  // namespace lockstep::text
