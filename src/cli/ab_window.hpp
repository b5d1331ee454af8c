// The two kinds of windows of `lockstep ab`: a server as a child process, or the model in this process.
#pragma once

#include <memory>
#include <string>

#include "report/child.hpp"
#include "report/driver.hpp"
#include "text/chat_template.hpp"
#include "text/tokenizer.hpp"

namespace lockstep::cli {

/// What all windows are asked, and what they need to run.
struct AbSetup {
  std::string model;            ///< directory
  std::string in_memory;        ///< or a synthetic model: GEOMETRY[:RECIPE[:SEED]]
  std::int64_t ngram_rows = 0;  ///< of the synthetic one's n-gram table; 0: the geometry's
  std::string message;          ///< the user's message
  report::Cell cell;
  double start_seconds = 600, request_seconds = 3600;
  report::Waiter* waiter = nullptr;
  const std::atomic<bool>* interrupted = nullptr;
};

/// Starts `lockstep serve` with the arm's flags and environment on a free port of 127.0.0.1. Errors: Usage (flags that
/// the server refuses), Limit (not ready in time), Internal, Cancelled.
Result<std::unique_ptr<report::Session>> open_served(const AbSetup& setup, const report::Arm& arm);

/// Loads the model here, as `lockstep run` does, with its options as the arm's flags; the environment counts while it
/// is loaded. Errors: Usage, and those of loading.
Result<std::unique_ptr<report::Session>> open_in_process(const AbSetup& setup, const report::Arm& arm);

/// A message whose prompt has `tokens` tokens with the chat template around it: `text`, repeated as often as needed and
/// cut at a token; 0 takes the text as it is. Where no cut gives that count exactly, the next smaller one that does.
/// Errors: Usage (no text, fewer tokens than the template alone takes), and those of the template.
struct AbMessage {
  std::string text;
  std::int64_t prompt_tokens = 0;
};
Result<AbMessage> make_message(const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template,
                               const std::string& text, std::int64_t tokens, const report::Cell& cell);

}  // namespace lockstep::cli
