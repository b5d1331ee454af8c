// The answers of POST /v1/completions.
#include <map>

#include "server/wire/writer.hpp"
#include "text/utf8.hpp"

namespace lockstep::server {
namespace {

/// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}; `offset` is where the first token's text begins, in
/// characters of the choice's text, and moves on.
OrderedJson logprobs_json(std::span<const TokenRecord> records, std::size_t& offset) {
  OrderedJson out = {{"tokens", OrderedJson::array()}, {"token_logprobs", OrderedJson::array()}};
  out["top_logprobs"] = OrderedJson::array();
  out["text_offset"] = OrderedJson::array();
  for (const TokenRecord& record : records) {
    out["tokens"].push_back(text::replace_invalid_utf8(record.chosen.bytes));
    out["token_logprobs"].push_back(record.has_logprob ? OrderedJson(record.chosen.logprob) : OrderedJson());
    OrderedJson top = OrderedJson::object();
    // Tokens with the same text share a key; the likelier one, which comes first, is kept.
    for (const TokenText& other : record.top) top.emplace(text::replace_invalid_utf8(other.bytes), other.logprob);
    out["top_logprobs"].push_back(record.has_logprob ? std::move(top) : OrderedJson());
    out["text_offset"].push_back(offset);
    for (const char c : record.chosen.bytes) offset += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  }
  return out;
}

class CompletionWriter final : public AnswerWriter {
 public:
  using AnswerWriter::AnswerWriter;

  OrderedJson body(std::span<const ChoiceResult> choices, const Usage& usage) override {
    OrderedJson out = envelope();
    out["choices"] = OrderedJson::array();
    for (const ChoiceResult& choice : choices) {
      OrderedJson entry = {{"index", choice.index}, {"text", choice.echo + choice.text_of(AnswerPart::Kind::Content)}};
      entry["logprobs"] =
          request_.logprobs ? logprobs_json(all_records(choice), offsets_[choice.index]) : OrderedJson();
      entry["finish_reason"] = openai_reason(choice.ending);
      out["choices"].push_back(std::move(entry));
    }
    out["usage"] = openai_usage(usage);
    out["lockstep"] = extension(head_, choices);
    return out;
  }

  std::string start(const Usage& /*usage*/) override { return {}; }

  std::string events(std::size_t choice, std::span<const AnswerEvent> events,
                     std::span<const TokenRecord> records) override {
    std::vector<TokenRecord>& waiting = waiting_[choice];
    waiting.insert(waiting.end(), records.begin(), records.end());
    std::string text;
    for (const AnswerEvent& event : events) text += event.text;
    return text.empty() ? "" : sse(chunk(choice, text, OrderedJson()));
  }

  std::string finish(const ChoiceResult& choice) override {
    OrderedJson out = chunk(choice.index, "", openai_reason(choice.ending));
    out["lockstep"] = extension(head_, std::span(&choice, 1));
    return sse(out);
  }

  std::string end(std::span<const ChoiceResult> /*choices*/, const Usage& usage) override {
    std::string out;
    if (request_.include_usage) {
      OrderedJson last = envelope();
      last["choices"] = OrderedJson::array();
      last["usage"] = openai_usage(usage);
      out = sse(last);
    }
    return out + "data: [DONE]\n\n";
  }

  std::string error(const ApiError& error) override {
    return sse(error_body(error, ErrorShape::OpenAi)) + "data: [DONE]\n\n";
  }

 private:
  [[nodiscard]] OrderedJson envelope() const {
    return {{"id", "cmpl-" + head_.id},
            {"object", "text_completion"},
            {"created", head_.created},
            {"model", head_.model},
            {"system_fingerprint", head_.fingerprint}};
  }

  [[nodiscard]] std::vector<TokenRecord> all_records(const ChoiceResult& choice) const {
    std::vector<TokenRecord> records;
    if (request_.echo) records = choice.prompt_records;
    records.insert(records.end(), choice.records.begin(), choice.records.end());
    return records;
  }

  OrderedJson chunk(std::size_t choice, const std::string& text, OrderedJson reason) {
    OrderedJson out = envelope();
    OrderedJson entry = {{"index", choice}, {"text", text}};
    const std::vector<TokenRecord> records = std::exchange(waiting_[choice], {});
    entry["logprobs"] = records.empty() ? OrderedJson() : logprobs_json(records, offsets_[choice]);
    entry["finish_reason"] = std::move(reason);
    out["choices"] = OrderedJson::array({std::move(entry)});
    if (request_.include_usage) out["usage"] = nullptr;
    return out;
  }

  std::map<std::size_t, std::vector<TokenRecord>> waiting_;
  std::map<std::size_t, std::size_t> offsets_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_completion_writer(const GenerationRequest& request, AnswerHead head) {
  return std::make_unique<CompletionWriter>(request, std::move(head));
}

}  // namespace lockstep::server
