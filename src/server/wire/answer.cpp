#include "server/wire/answer.hpp"

#include <algorithm>

#include "base/sha256.hpp"

namespace lockstep::server {
namespace {

/// The lane that overlaps plain decoding, and what a response says of it.
constexpr std::string_view kPipelineLane = "ar_pipeline";

double rate(std::int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
}

OrderedJson choice_report(const ChoiceResult& choice) {
  const engine::Summary& summary = choice.summary;
  const bool pipeline = std::ranges::find(summary.lanes, kPipelineLane) != summary.lanes.end();
  OrderedJson out;
  out["index"] = choice.index;
  out["seed"] = summary.seed;
  out["prompt_tokens"] = summary.prompt_tokens;
  out["cached_tokens"] = summary.cached_tokens;
  out["cache_miss"] = engine::miss_name(choice.start.miss);
  out["prefill_tokens"] = summary.prefill_tokens;
  out["queued_seconds"] = summary.queued_seconds;
  out["prefill_seconds"] = summary.prefill_seconds;
  out["prefill_tokens_per_second"] = rate(summary.prefill_tokens, summary.prefill_seconds);
  out["ttft_seconds"] = summary.first_token_seconds;
  out["decode_tokens"] = summary.tokens;
  out["decode_seconds"] = summary.decode_seconds;
  out["decode_tokens_per_second"] = rate(summary.tokens, summary.decode_seconds);
  out["steps"] = summary.steps;
  out["drafted"] = summary.drafted;
  out["accepted"] = summary.accepted;
  out["lanes"] = summary.lanes;
  out["ar_pipeline_active"] = pipeline;
  out["ar_pipeline_variant"] = OrderedJson();  // where the table is: the statistics of the model say it
  out["ple_hits"] = summary.ple_hits;
  out["ple_misses"] = summary.ple_misses;
  out["prompt_ids_sha256"] = choice.prompt_sha256;
  out["ids_sha256"] = choice.ids_sha256;
  if (choice.ids) out["ids"] = *choice.ids;
  out["text_sha256"] = sha256_hex(choice.text_of(AnswerPart::Kind::Content));
  out["reasoning_sha256"] = sha256_hex(choice.text_of(AnswerPart::Kind::Reasoning));
  return out;
}

}  // namespace

void append_events(std::span<const AnswerEvent> events, std::vector<AnswerPart>& parts) {
  using Kind = AnswerEvent::Kind;
  for (const AnswerEvent& event : events) {
    if (event.kind == Kind::CallBegin) {
      parts.push_back({AnswerPart::Kind::Call, {}, event.text, event.call, false});
    } else if (event.kind == Kind::CallArguments) {
      parts.back().text += event.text;
    } else if (event.kind == Kind::CallEnd) {
      parts.back().complete = event.complete;
    } else {
      const auto kind = event.kind == Kind::Reasoning ? AnswerPart::Kind::Reasoning : AnswerPart::Kind::Content;
      if (parts.empty() || parts.back().kind != kind) parts.push_back({kind, {}, {}, 0, false});
      parts.back().text += event.text;
    }
  }
}

std::string ChoiceResult::text_of(AnswerPart::Kind kind) const {
  std::string out;
  for (const AnswerPart& part : parts) {
    if (part.kind == kind) out += part.text;
  }
  return out;
}

std::string ids_digest(std::span<const std::int32_t> ids) {
  Sha256 hash;
  for (std::size_t i = 0; i < ids.size(); ++i) hash.update(fmt::format("{}{}", i == 0 ? "" : ",", ids[i]));
  return hash.hex();
}

OrderedJson extension(const AnswerHead& head, std::span<const ChoiceResult> choices) {
  OrderedJson out = {{"model", head.identity}, {"request_sha256", head.request_sha256}};
  out["choices"] = OrderedJson::array();
  for (const ChoiceResult& choice : choices) out["choices"].push_back(choice_report(choice));
  return out;
}

}  // namespace lockstep::server
