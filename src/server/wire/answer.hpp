// An answer on its way from tokens to a wire format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "engine/sink.hpp"

namespace lockstep::server {

/// One step of a choice's answer, in order.
struct AnswerEvent {
  enum class Kind : std::uint8_t {
    Reasoning,
    Content,
    CallBegin,      ///< `text`: the name of the function
    CallArguments,  ///< `text`: a piece of the JSON object of arguments
    CallEnd,
  };
  Kind kind = Kind::Content;
  std::size_t call = 0;  ///< 0, 1, ... for calls
  std::string text;
  bool complete = false;  ///< for CallEnd: see text::ToolCallEvent
  bool operator==(const AnswerEvent&) const = default;
};

/// A stretch of an answer of one kind.
struct AnswerPart {
  enum class Kind : std::uint8_t { Reasoning, Content, Call };
  Kind kind = Kind::Content;
  std::string text;       ///< of a call: the arguments
  std::string name;       ///< of a call
  std::size_t call = 0;   ///< of a call
  bool complete = false;  ///< of a call
  bool operator==(const AnswerPart&) const = default;
};

/// Adds events to the parts of an answer.
void append_events(std::span<const AnswerEvent> events, std::vector<AnswerPart>& parts);

/// A token's bytes, which need not be whole characters, and its log-probability.
struct TokenText {
  std::string bytes;
  double logprob = 0;
};
struct TokenRecord {
  TokenText chosen;
  bool has_logprob = true;  ///< false for the first token of a prompt
  std::vector<TokenText> top;
};

enum class Ending : std::uint8_t {
  Stop,        ///< the model's own end
  StopString,  ///< one of the request's stop strings
  Length,
  Calls,  ///< the answer has tool calls, all complete
};

struct ChoiceResult {
  std::size_t index = 0;
  std::vector<AnswerPart> parts;
  Ending ending = Ending::Stop;
  std::string stop_string;           ///< for StopString
  std::vector<TokenRecord> records;  ///< when log-probabilities were asked for
  std::vector<TokenRecord> prompt_records;
  std::string echo;  ///< the prompt's text, when it is to be repeated
  engine::Start start;
  engine::Summary summary;
  std::int64_t reasoning_tokens = 0;
  std::string prompt_sha256, ids_sha256;
  std::optional<std::vector<std::int32_t>> ids;  ///< of the answer, when the client asked for them

  [[nodiscard]] std::string text_of(AnswerPart::Kind kind) const;
};

struct Usage {
  std::int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
};

/// What all parts of a response have in common.
struct AnswerHead {
  std::string id;  ///< without the API's prefix
  std::int64_t created = 0;
  std::string model, fingerprint;
  std::string request_sha256;
  OrderedJson identity;  ///< of the model, for the extension
};

/// SHA-256 of the ids in decimal, joined with commas.
[[nodiscard]] std::string ids_digest(std::span<const std::int32_t> ids);

/// The object `lockstep` of a response (docs/server.md).
[[nodiscard]] OrderedJson extension(const AnswerHead& head, std::span<const ChoiceResult> choices);

}  // namespace lockstep::server
