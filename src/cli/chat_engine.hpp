// What `run` and `chat` share: a loaded model with its tokenizer, chat template and sampler defaults.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "cli/engine_options.hpp"
#include "decode/decoder.hpp"
#include "decode/generation_config.hpp"
#include "decode/lanes.hpp"
#include "decode/lanes/ar_pipeline.hpp"
#include "text/chat_template.hpp"
#include "text/tokenizer.hpp"

namespace lockstep::cli {

/// Flags that change how an answer is made. Unset values come from the model's generation_config.json.
struct AnswerOptions {
  std::optional<double> temperature, top_p, min_p, presence_penalty, frequency_penalty;
  std::optional<std::int64_t> top_k;
  std::optional<std::uint64_t> seed;  ///< unset: a fresh one
  std::int64_t max_tokens = 0;        ///< 0: as many as the context holds
  std::string draw = "pcg64", accept = "stream", effort, system;
  std::string frspec;                       ///< list of draft tokens
  std::vector<std::string> stop, disabled;  ///< disabled: lanes to switch off
  std::int64_t depth = 3;                   ///< drafts a cycle; 0 decodes plainly
  bool no_think = false, stats = false;
  bool special = false;  ///< special tokens in messages are special
};

void add_answer_options(CLI::App& command, AnswerOptions& options);

/// A prompt as tokens, and whether it ends inside an open reasoning block.
struct Prompt {
  std::vector<decode::TokenId> tokens;
  bool reasoning_open = false;
};

struct Answer {
  std::string reasoning, content;
  std::vector<decode::TokenId> ids;
  decode::Finish finish = decode::Finish::None;
  std::uint64_t seed = 0;
};

/// Receives text as it is decided: reasoning or content, never both empty.
using AnswerSink = std::function<Status(std::string_view reasoning, std::string_view content)>;

class ChatEngine {
 public:
  static Result<std::unique_ptr<ChatEngine>> create(const EngineOptions& engine, AnswerOptions options);

  /// Tokens of a conversation, through the model's template.
  [[nodiscard]] Result<Prompt> chat_prompt(const OrderedJson& messages) const;
  /// Tokens of plain text; special tokens in it count as such.
  [[nodiscard]] Result<Prompt> raw_prompt(std::string_view text) const;

  /// Generates an answer. `split` separates reasoning from content. Stops early when `stop_requested` says so: the
  /// text so far is then in `partial` and the error is Cancelled.
  Result<Answer> answer(const Prompt& prompt, bool split, const std::function<bool()>& stop_requested,
                        const AnswerSink& sink, Answer& partial);

  [[nodiscard]] const decode::DecodeStats& stats() const { return decoder_->stats(); }
  /// Device and the n-gram table, for statistics.
  [[nodiscard]] std::string describe() const;
  /// Verdict of every lane and what ran for the last answer.
  [[nodiscard]] std::vector<decode::LaneReport> lanes() const;
  [[nodiscard]] const AnswerOptions& options() const { return options_; }
  /// Seed of the next answers.
  void set_seed(std::uint64_t seed) { options_.seed = seed; }
  /// What answer() asks of decoder() for a prompt.
  [[nodiscard]] Result<decode::DecodeRequest> request(const Prompt& prompt) const;
  [[nodiscard]] decode::Decoder& decoder() { return *decoder_; }
  [[nodiscard]] const LoadedModel& loaded() const { return loaded_; }
  /// How it was loaded.
  [[nodiscard]] const EngineOptions& engine_options() const { return engine_options_; }

 private:
  ChatEngine(LoadedModel loaded, decode::Lanes lanes, text::Tokenizer tokenizer, text::ChatTemplate chat_template)
      : loaded_(std::move(loaded)),
        lanes_(std::move(lanes)),
        tokenizer_(std::move(tokenizer)),
        template_(std::move(chat_template)) {}
  [[nodiscard]] Status check_options() const;
  [[nodiscard]] Status check_effort() const;
  Status make_decoder();

  LoadedModel loaded_;
  decode::Lanes lanes_;
  text::Tokenizer tokenizer_;
  text::ChatTemplate template_;
  EngineOptions engine_options_;
  AnswerOptions options_;
  decode::GenerationDefaults defaults_;
  std::unique_ptr<decode::Decoder> decoder_;
  std::unique_ptr<decode::Driver> driver_;
  std::int64_t vocab_ = 0;
};

/// Prints reasoning to standard error (dimmed on a terminal) and content to standard output.
class AnswerPrinter {
 public:
  Status print(std::string_view reasoning, std::string_view content);
  /// Ends the line that is open on a terminal.
  Status finish();

 private:
  bool reasoning_shown_ = false, content_shown_ = false, line_open_ = false;
};

/// "18 prompt tokens in 0.05 s (360/s), 12 tokens in 0.06 s (200/s), seed 7, cpu ..." on standard error.
/// and one line per lane.
void print_stats(const decode::DecodeStats& stats, const Answer& answer, const std::string& device,
                 const std::vector<decode::LaneReport>& lanes);

}  // namespace lockstep::cli
