// One request for text under way: from the parsed body through the engine to the response.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/http/exchange.hpp"
#include "server/service.hpp"
#include "server/wire/writer.hpp"
#include "text/tool_call_schema.hpp"

namespace lockstep::server {

/// Two sides that meet in an inbox. The engine's thread turns tokens into events (PromptSink); the exchange's sequence
/// turns events into the words of the API. A client that reads slowly fills the inbox, and the engine then leaves out
/// this request alone until there is room again.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(std::shared_ptr<Exchange> exchange, Service& service, std::shared_ptr<const ModelContext> model,
             GenerationRequest request);
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;
  ~Generation();

  /// Makes the prompts and checks what needs the model. Once, on any thread, before run(). Errors: 400, 413; 499 when
  /// `unwanted` said so.
  Parsed<void> prepare(const Unwanted& unwanted);
  /// Submits everything and answers, now or later. On the exchange's sequence.
  void run();
  /// Ends all choices within one step; the client is told. Any thread.
  void cancel();

 private:
  class PromptSink;
  struct Delivery;

  [[nodiscard]] Parsed<void> check_amounts() const;
  [[nodiscard]] Parsed<void> check_logprobs() const;
  bool submit();
  [[nodiscard]] AnswerHead make_head() const;

  // From the engine's thread.
  void deliver(Delivery delivery);
  [[nodiscard]] bool has_room();

  // On the exchange's sequence.
  void flush();
  void take(Delivery& delivery);
  void take_start(const engine::Start& start);
  void take_result(std::unique_ptr<ChoiceResult> result);
  void fail(const ApiError& error);
  void complete();
  void tick();
  void write(const std::string& piece);
  void make_room();
  void note(const Usage& usage);
  [[nodiscard]] Usage usage() const;

  std::shared_ptr<Exchange> exchange_;
  Service& service_;
  std::shared_ptr<const ModelContext> model_;
  const GenerationRequest request_;
  std::unique_ptr<AnswerWriter> writer_;
  std::vector<PreparedPrompt> prompts_;
  std::vector<engine::Request> requests_;  ///< until they are submitted
  std::string request_sha256_;
  text::ToolSchemas schemas_;
  bool with_ids_ = false;  ///< x-lockstep-ids: include

  mutable std::mutex mutex_;
  std::vector<Delivery> inbox_;
  std::size_t inbox_bytes_ = 0;
  bool scheduled_ = false, full_ = false;
  std::vector<engine::Ticket> tickets_;

  // On the exchange's sequence:
  std::vector<std::unique_ptr<ChoiceResult>> results_;
  std::vector<engine::Start> starts_;
  std::size_t left_ = 0;  ///< choices without a result
  std::int64_t done_ = 0, total_ = 0;
  bool started_ = false, over_ = false, wrote_ = false;
};

/// An answer to a request that is not (or no longer) to be generated.
[[nodiscard]] HttpResponse error_response(const ApiError& error, ErrorShape shape);

}  // namespace lockstep::server
