// `lockstep completion SHELL`: completion scripts generated from the command tree itself, so they cannot go stale.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>

#include "cli/command.hpp"
#include "cli/terminal.hpp"

namespace lockstep::cli {
namespace {

/// What a shell needs to know of an option.
struct Flag {
  std::vector<std::string> names;    ///< with dashes
  std::vector<std::string> choices;  ///< the accepted words, when they are a fixed set
  std::string description;
  bool takes_value = false;
};

/// The words of a set validator, which CLI11 shows in the type as "TEXT:{a,b}".
std::vector<std::string> choices_of(const CLI::Option& option) {
  std::vector<std::string> words;
  const std::string type = option.get_type_name();
  const std::size_t open = type.find('{');
  const std::size_t close = type.find('}');
  if (open == std::string::npos || close == std::string::npos || close < open) return words;
  std::string word;
  for (const char c : type.substr(open + 1, close - open - 1) + ',') {
    if (c != ',') {
      word += c;
    } else {
      words.push_back(std::exchange(word, {}));
    }
  }
  return words;
}

std::vector<Flag> flags_of(const CLI::App& app) {
  std::vector<Flag> flags;
  for (const CLI::Option* option : app.get_options()) {
    Flag flag;
    for (const std::string& name : option->get_snames()) flag.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) flag.names.push_back("--" + name);
    if (flag.names.empty()) continue;
    flag.choices = choices_of(*option);
    flag.description = option->get_description();
    flag.takes_value = option->get_items_expected_max() > 0;
    flags.push_back(std::move(flag));
  }
  return flags;
}

/// The fixed words that a command takes without a flag (the shells of `completion`).
std::vector<std::string> positional_choices(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    for (std::string& word : choices_of(*option)) words.push_back(std::move(word));
  }
  return words;
}

std::string join(const std::vector<std::string>& words, std::string_view separator) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : std::string(separator)) + word;
  return out;
}

/// In single quotes, for any of the three shells.
std::string quoted(std::string_view text, std::string_view escaped_quote) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += escaped_quote;
    } else {
      out += c == '\n' ? ' ' : c;
    }
  }
  return out + "'";
}

std::string bash_command(const std::string& name, const CLI::App& command) {
  std::string words = join(positional_choices(command), " ");
  std::string cases;
  for (const Flag& flag : flags_of(command)) {
    words += (words.empty() ? "" : " ") + join(flag.names, " ");
    if (!flag.takes_value) continue;
    const std::string action = flag.choices.empty()
                                   ? "COMPREPLY=($(compgen -f -- \"$current\"))"
                                   : "COMPREPLY=($(compgen -W '" + join(flag.choices, " ") + "' -- \"$current\"))";
    cases += fmt::format("        {}) {}; return ;;\n", join(flag.names, "|"), action);
  }
  std::string out = fmt::format("    {})\n", name);
  if (!cases.empty()) out += "      case \"$previous\" in\n" + cases + "      esac\n";
  return out + fmt::format("      words='{}' ;;\n", words);
}

std::string bash_script(const CLI::App& app) {
  std::string commands;
  std::string cases;
  for (const CLI::App* command : app.get_subcommands({})) {
    commands += command->get_name() + " ";
    cases += bash_command(command->get_name(), *command);
  }
  std::string flags;
  for (const Flag& flag : flags_of(app)) flags += (flags.empty() ? "" : " ") + join(flag.names, " ");
  return fmt::format(
      "# bash completion of lockstep\n"
      "_lockstep() {{\n"
      "  local current=\"${{COMP_WORDS[COMP_CWORD]}}\" previous=\"${{COMP_WORDS[COMP_CWORD-1]}}\" words=''\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W '{}{}' -- \"$current\"))\n"
      "    return\n"
      "  fi\n"
      "  case \"${{COMP_WORDS[1]}}\" in\n{}"
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "  if [ \"${{#COMPREPLY[@]}}\" -eq 0 ]; then COMPREPLY=($(compgen -f -- \"$current\")); fi\n"
      "}}\n"
      "complete -o filenames -F _lockstep lockstep\n",
      commands, flags, cases);
}

/// A zsh `_arguments` description, where brackets and colons have a meaning.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_arguments(const CLI::App& app) {
  constexpr std::string_view kQuote = "'\\''";
  std::string out;
  for (const Flag& flag : flags_of(app)) {
    const std::string action = flag.choices.empty() ? "_files" : "(" + join(flag.choices, " ") + ")";
    for (const std::string& name : flag.names) {
      std::string spec = name + "[" + zsh_text(flag.description) + "]";
      if (flag.takes_value) spec += ":value:" + action;
      out += " \\\n        " + quoted(spec, kQuote);
    }
  }
  const std::vector<std::string> words = positional_choices(app);
  out += " \\\n        " + quoted("*:argument:" + (words.empty() ? "_files" : "(" + join(words, " ") + ")"), kQuote);
  return out;
}

std::string zsh_script(const CLI::App& app) {
  std::string commands;
  std::string cases;
  for (const CLI::App* command : app.get_subcommands({})) {
    commands += "    " + quoted(command->get_name() + ":" + zsh_text(command->get_description()), "'\\''") + "\n";
    cases += fmt::format("    {})\n      _arguments{} ;;\n", command->get_name(), zsh_arguments(*command));
  }
  return fmt::format(
      "#compdef lockstep\n"
      "_lockstep() {{\n"
      "  local -a commands=(\n{}  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe -t commands command commands\n"
      "    return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  shift words\n"
      "  (( CURRENT-- ))\n"
      "  case $command in\n{}"
      "  esac\n"
      "}}\n"
      "if [ \"$funcstack[1]\" = _lockstep ]; then _lockstep \"$@\"; else compdef _lockstep lockstep; fi\n",
      commands, cases);
}

std::string fish_flag(const Flag& flag, const std::string& condition) {
  std::string out = "complete -c lockstep -n " + condition;
  for (const std::string& name : flag.names) {
    out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  if (flag.takes_value) out += flag.choices.empty() ? " -r -F" : " -x -a '" + join(flag.choices, " ") + "'";
  return out + " -d " + quoted(flag.description, "\\'") + "\n";
}

std::string fish_script(const CLI::App& app) {
  std::string out = "# fish completion of lockstep\ncomplete -c lockstep -f -n __fish_use_subcommand\n";
  for (const Flag& flag : flags_of(app)) out += fish_flag(flag, "__fish_use_subcommand");
  for (const CLI::App* command : app.get_subcommands({})) {
    out += fmt::format("complete -c lockstep -n __fish_use_subcommand -a {} -d {}\n", command->get_name(),
                       quoted(command->get_description(), "\\'"));
    const std::string condition = "'__fish_seen_subcommand_from " + command->get_name() + "'";
    for (const Flag& flag : flags_of(*command)) out += fish_flag(flag, condition);
    const std::vector<std::string> words = positional_choices(*command);
    if (!words.empty()) {
      out += fmt::format("complete -c lockstep -f -n {} -a '{}'\n", condition, join(words, " "));
    }
  }
  return out;
}

}  // namespace

void add_completion(CLI::App& app, CommandContext& context) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "Print a shell completion script");
  command->add_option("shell", *shell, "The shell to complete for")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer(
      "Examples:\n"
      "  source <(lockstep completion bash)\n"
      "  lockstep completion zsh > ~/.zfunc/_lockstep\n"
      "  lockstep completion fish > ~/.config/fish/completions/lockstep.fish");
  command->callback([&app, &context, shell] {
    if (*shell == "bash") context.status = write_stdout(bash_script(app));
    if (*shell == "zsh") context.status = write_stdout(zsh_script(app));
    if (*shell == "fish") context.status = write_stdout(fish_script(app));
  });
}

}  // namespace lockstep::cli
