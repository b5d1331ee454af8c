// The commands of `lockstep`. One file per command: cli/NAME.cpp defines add_NAME().
#pragma once

#include "base/result.hpp"

namespace CLI {
class App;
}

namespace lockstep::cli {

/// What a command and the frame share. It lives until the program ends, so callbacks may keep a reference.
struct CommandContext {
  Status status;  ///< the outcome of the command that ran; run_app() turns it into the message and the exit code
};

/// Each adds one subcommand to `app`: its options, a footer with examples, and a callback. The callback does the work
/// and stores the outcome in `context.status`; it throws nothing. Options live in a std::shared_ptr that the callback
/// captures. Output goes through cli/terminal.hpp, the model is found through cli/options.hpp.
void add_inspect(CLI::App& app, CommandContext& context);
void add_pack(CLI::App& app, CommandContext& context);
void add_plan(CLI::App& app, CommandContext& context);
void add_synth(CLI::App& app, CommandContext& context);
void add_tokenize(CLI::App& app, CommandContext& context);
void add_detokenize(CLI::App& app, CommandContext& context);
void add_run(CLI::App& app, CommandContext& context);
void add_chat(CLI::App& app, CommandContext& context);
void add_serve(CLI::App& app, CommandContext& context);
void add_logits(CLI::App& app, CommandContext& context);
void add_verify(CLI::App& app, CommandContext& context);
void add_frspec(CLI::App& app, CommandContext& context);
void add_bench(CLI::App& app, CommandContext& context);
void add_ab(CLI::App& app, CommandContext& context);
void add_perplexity(CLI::App& app, CommandContext& context);
void add_compare(CLI::App& app, CommandContext& context);
void add_completion(CLI::App& app, CommandContext& context);

}  // namespace lockstep::cli
