#include "text/chat_template.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "base/file.hpp"
#include "text/jinja/globals.hpp"
#include "text/jinja/interpreter.hpp"
#include "text/jinja/parser.hpp"
#include "text/utf8.hpp"

namespace lockstep::text {
namespace {

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{64} << 20;
constexpr std::array<const char*, 4> kTokenNames = {"bos_token", "eos_token", "pad_token", "unk_token"};

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  localtime_r(&now, &time);
  return time;
}

/// The text of a special token, which a tokenizer's configuration gives as a string or as an object.
std::string token_text(const Json& config, const char* name) {
  if (!config.is_object() || !config.contains(name)) return {};
  const Json& token = config[name];
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string()) {
    return token["content"].get<std::string>();
  }
  return {};
}

Result<jinja::Program> parse(std::string_view source, const TemplateLimits& limits) {
  auto program = jinja::parse_template(source, limits);
  if (!program) return with_context(program.error(), "chat template");
  return program;
}

/// The same for a template that a file gave.
Result<jinja::Program> parse_named(std::string_view source, const TemplateLimits& limits, const std::string& file) {
  auto program = parse(source, limits);
  if (!program) return with_context(std::move(program).error(), file);
  return program;
}

}  // namespace

bool is_reserved_variable(std::string_view name) {
  static constexpr std::array<std::string_view, 15> kReserved = {"messages", "tools",   "add_generation_prompt",
                                                                 "loop",     "self",    "super",
                                                                 "caller",   "varargs", "kwargs",
                                                                 "true",     "false",   "none",
                                                                 "True",     "False",   "None"};
  static constexpr std::array<std::string_view, 24> kWords = {
      "and",           "or",       "not",     "in",      "is",        "if",        "elif",
      "else",          "endif",    "for",     "endfor",  "recursive", "set",       "endset",
      "macro",         "endmacro", "call",    "endcall", "filter",    "endfilter", "generation",
      "endgeneration", "break",    "continue"};
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto other = [&](char c) { return !letter(c) && (c < '0' || c > '9'); };
  if (name.empty() || !letter(name.front()) || std::ranges::any_of(name, other)) return true;  // no name at all
  return std::ranges::find(kReserved, name) != kReserved.end() || std::ranges::find(kWords, name) != kWords.end() ||
         std::ranges::find(kTokenNames, name) != kTokenNames.end() ||
         std::ranges::any_of(jinja::globals(), [&](const jinja::Global& global) { return global.name == name; });
}

struct ChatTemplate::Compiled {
  TemplateLimits limits;
  std::string source;
  jinja::Program main;
  std::optional<jinja::Program> tool_use;  ///< for conversations with tools
  std::vector<std::pair<std::string, std::string>> tokens;

  Status define_tokens(jinja::Interpreter& interpreter, const ChatOptions& options) const;
  Status define_context(jinja::Interpreter& interpreter, const OrderedJson& messages, const ChatOptions& options) const;
};

Result<ChatTemplate> ChatTemplate::compile(std::string source, TemplateLimits limits) {
  auto compiled = std::make_shared<Compiled>();
  compiled->limits = limits;
  compiled->main = LOCKSTEP_TRY(parse(source, limits));
  compiled->source = std::move(source);
  return ChatTemplate(std::move(compiled));
}

Result<ChatTemplate> ChatTemplate::open(const std::filesystem::path& model_dir, TemplateLimits limits) {
  const std::string config_path = (model_dir / "tokenizer_config.json").string();
  const std::string template_path = (model_dir / "chat_template.jinja").string();
  auto compiled = std::make_shared<Compiled>();
  compiled->limits = limits;
  Json config;
  if (const auto text = read_file(config_path, kMaxConfigBytes)) {
    config = LOCKSTEP_TRY(parse_json(*text, config_path));
  } else if (text.error().kind != ErrorKind::NotFound) {
    return tl::unexpected(text.error());
  }
  for (const char* const name : kTokenNames) {
    std::string token = token_text(config, name);
    if (!token.empty()) compiled->tokens.emplace_back(name, std::move(token));
  }
  std::optional<std::string> source;
  if (auto text = read_file(template_path, limits.max_source_bytes)) {
    source = *std::move(text);
  } else if (text.error().kind != ErrorKind::NotFound) {
    return tl::unexpected(text.error());
  }
  const bool from_file = source.has_value();
  const Json entry = config.is_object() ? config.value("chat_template", Json()) : Json();
  if (!source && entry.is_string()) source = entry.get<std::string>();
  for (const Json& named : !source && entry.is_array() ? entry : Json::array()) {
    const bool usable = named.is_object() && named.contains("name") && named.contains("template") &&
                        named["name"].is_string() && named["template"].is_string();
    if (!usable)
      return fail(ErrorKind::Invalid, "{}: chat_template has an entry that is no named template", config_path);
    if (named["name"] == "default") source = named["template"].get<std::string>();
    if (named["name"] == "tool_use")
      compiled->tool_use = LOCKSTEP_TRY(parse_named(named["template"].get<std::string>(), limits, config_path));
  }
  if (!source) return fail(ErrorKind::NotFound, "{}: the model has no chat template", model_dir.string());
  if (source->find_first_not_of(" \t\r\n") == std::string::npos) {
    return fail(ErrorKind::Invalid, "{}: the chat template is empty", from_file ? template_path : config_path);
  }
  compiled->main = LOCKSTEP_TRY(parse_named(*source, limits, from_file ? template_path : config_path));
  compiled->source = *std::move(source);
  return ChatTemplate(std::move(compiled));
}

Status ChatTemplate::Compiled::define_tokens(jinja::Interpreter& interpreter, const ChatOptions& options) const {
  auto all = tokens;
  if (!options.bos_token.empty()) all.emplace_back("bos_token", options.bos_token);
  if (!options.eos_token.empty()) all.emplace_back("eos_token", options.eos_token);
  for (const auto& [name, token] : all) {
    if (!is_valid_utf8(token)) return fail(ErrorKind::Invalid, "{} is not valid UTF-8", name);
    if (!interpreter.mentions(name)) continue;
    interpreter.define(name, LOCKSTEP_TRY(interpreter.runtime().text(token)));
  }
  return {};
}

Status ChatTemplate::Compiled::define_context(jinja::Interpreter& interpreter, const OrderedJson& messages,
                                              const ChatOptions& options) const {
  if (!messages.is_array()) return fail(ErrorKind::Invalid, "messages must be an array");
  if (!options.extra.is_object() && !options.extra.is_null()) {
    return fail(ErrorKind::Invalid, "the extra variables of a chat template must be an object");
  }
  LOCKSTEP_TRY(define_tokens(interpreter, options));
  const auto define = [&](const std::string& name, const OrderedJson& value) -> Status {
    if (!interpreter.mentions(name)) return {};
    interpreter.define(name, LOCKSTEP_TRY(interpreter.runtime().from_json(value, true)));
    return {};
  };
  LOCKSTEP_TRY(define("messages", messages));
  LOCKSTEP_TRY(define("tools", options.tools));
  LOCKSTEP_TRY(define("documents", OrderedJson()));
  LOCKSTEP_TRY(define("add_generation_prompt", options.add_generation_prompt));
  for (const auto& [name, value] : options.extra.items()) {
    if (is_reserved_variable(name)) {
      return fail(ErrorKind::Invalid, "'{}' cannot be set as an extra variable of the chat template", name);
    }
    LOCKSTEP_TRY(define(name, value));
  }
  return {};
}

Result<Rendered> ChatTemplate::render(const OrderedJson& messages, const ChatOptions& options) const {
  const bool with_tools = compiled_->tool_use && options.tools.is_array() && !options.tools.empty();
  jinja::Interpreter interpreter(with_tools ? *compiled_->tool_use : compiled_->main, compiled_->limits,
                                 options.clock ? options.clock : local_time);
  LOCKSTEP_TRY(compiled_->define_context(interpreter, messages, options));
  jinja::TextBuilder out(interpreter.runtime().budget(), compiled_->limits.max_output_bytes);
  if (const Status run = interpreter.run(out); !run) {
    if (!interpreter.runtime().raised()) return tl::unexpected(run.error());
    return with_context(run.error(), "the chat template refuses the conversation");
  }
  return Rendered{std::move(out.bytes()), std::move(out.literal())};
}

std::string_view ChatTemplate::source() const {
  return compiled_->source;
}

}  // namespace lockstep::text
