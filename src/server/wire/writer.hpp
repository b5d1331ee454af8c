// Answers in the words of an API: whole bodies, and server-sent events for streams.
//
// A writer belongs to one request. Either body() is called once, or, for a stream, start(), then events() and one
// finish() per choice in any order of choices, then end(), or error() at any point instead of the rest. What these
// return goes to the client as it is; joined, the deltas are what body() would have said.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "server/wire/answer.hpp"
#include "server/wire/api_error.hpp"
#include "server/wire/generation_request.hpp"

namespace lockstep::server {

class AnswerWriter {
 public:
  AnswerWriter(const GenerationRequest& request, AnswerHead head) : request_(request), head_(std::move(head)) {}
  AnswerWriter(const AnswerWriter&) = delete;
  AnswerWriter& operator=(const AnswerWriter&) = delete;
  virtual ~AnswerWriter() = default;

  [[nodiscard]] virtual OrderedJson body(std::span<const ChoiceResult> choices, const Usage& usage) = 0;

  /// The prompt's token counts are known; `usage` has no completion yet.
  virtual std::string start(const Usage& usage) = 0;
  virtual std::string events(std::size_t choice, std::span<const AnswerEvent> events,
                             std::span<const TokenRecord> records) = 0;
  virtual std::string finish(const ChoiceResult& choice) = 0;
  virtual std::string end(std::span<const ChoiceResult> choices, const Usage& usage) = 0;
  virtual std::string error(const ApiError& error) = 0;
  /// Something that clients ignore, while a prompt is read.
  [[nodiscard]] virtual std::string keep_alive(std::int64_t done, std::int64_t total);

  [[nodiscard]] const AnswerHead& head() const { return head_; }

 protected:
  const GenerationRequest& request_;  // NOLINT(cppcoreguidelines-non-private-member-variables-in-classes)
  AnswerHead head_;                   // NOLINT(cppcoreguidelines-non-private-member-variables-in-classes)
};

/// The writer of the request's API. `request` must outlive it.
std::unique_ptr<AnswerWriter> make_writer(const GenerationRequest& request, AnswerHead head);

std::unique_ptr<AnswerWriter> make_chat_writer(const GenerationRequest& request, AnswerHead head);
std::unique_ptr<AnswerWriter> make_completion_writer(const GenerationRequest& request, AnswerHead head);
std::unique_ptr<AnswerWriter> make_response_writer(const GenerationRequest& request, AnswerHead head);
std::unique_ptr<AnswerWriter> make_message_writer(const GenerationRequest& request, AnswerHead head);

/// JSON as text: compact, with ill-formed UTF-8 replaced.
[[nodiscard]] std::string dump(const OrderedJson& json);
/// "data: JSON\n\n", with "event: NAME\n" in front unless `name` is empty.
[[nodiscard]] std::string sse(const OrderedJson& json, std::string_view name = {});

/// usage of OpenAI's chat and completion APIs.
[[nodiscard]] OrderedJson openai_usage(const Usage& usage);
/// "stop", "length" or "tool_calls".
[[nodiscard]] std::string_view openai_reason(Ending ending);

}  // namespace lockstep::server
