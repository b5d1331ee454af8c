#include "cli/receipt.hpp"

#include "base/sha256.hpp"
#include "base/thread_pool.hpp"
#include "cli/terminal.hpp"
#include "cli/version.hpp"
#include "report/machine.hpp"

namespace lockstep::cli {
namespace {

OrderedJson machine(const decode::GateOptions& options) {
  OrderedJson out = report::describe_machine();
  out["physical_cores"] = physical_cores();
  out["device"] = options.device.text();
  return out;
}

std::string ids_sha256(std::span<const decode::TokenId> ids) {
  Sha256 hash;
  hash.update(std::as_bytes(ids));
  return hash.hex();
}

/// One request of the reference: what was asked, and digests of what came out.
OrderedJson answer_json(const decode::GateAnswer& answer, const std::string* text) {
  const decode::SamplerParams& sampler = answer.request.sampler;
  OrderedJson json{{"prompt_tokens", answer.request.prompt.size()},
                   {"prompt_ids_sha256", ids_sha256(answer.request.prompt)},
                   {"temperature", sampler.temperature},
                   {"draw", sampler.draw_rule == decode::DrawRule::Race ? "race" : "pcg64"},
                   {"seed", sampler.seed},
                   {"tokens", answer.ids.size()},
                   {"ids_sha256", ids_sha256(answer.ids)}};
  if (text != nullptr) json["text_sha256"] = sha256_hex(*text);
  return json;
}

std::string gate_result(const decode::GateResult& gate) {
  if (!gate.passed) return styled("DIFFERS", Style::Red, Stream::Out);
  if (gate.cases == 0) return "not run (time)";
  const std::string cut = gate.cases < gate.planned ? " (cut by time)" : "";
  if (gate.idle()) {
    const decode::LaneInfo& lane = decode::known_lanes()[static_cast<std::size_t>(*gate.lane)];
    return fmt::format("equal, but not engaged: {}{}", lane.idle, cut);
  }
  return cut.empty() ? styled("equal", Style::Green, Stream::Out) : "equal" + cut;
}

}  // namespace

OrderedJson verify_receipt(const artifact::Artifact& artifact, const decode::GateOptions& options,
                           const decode::GateReport& report, const text::Tokenizer* tokenizer) {
  OrderedJson json;
  json["format"] = "lockstep-receipt-1";
  json["version"] = version();
  json["commit"] = commit();
  json["time"] = report::now_utc();
  json["model"] = {{"directory", artifact.directory().string()},
                   {"config_sha256", artifact.identity().config_sha256},
                   {"runtime_sha256", artifact.identity().runtime_sha256},
                   {"inventory_sha256", artifact.identity().inventory_sha256},
                   {"tensors", artifact.inventory().size()}};
  for (const artifact::FileHash& file : report.files) {
    json["model"]["files"][file.file] = {{"sha256", file.sha256}, {"bytes", file.bytes}};
  }
  json["machine"] = machine(options);
  json["instruction_sets"] = report.instruction_sets;
  json["thread_counts"] = report.thread_counts;
  json["seed"] = options.seed;
  json["tokens_per_request"] = options.tokens;
  json["reference_ids_sha256"] = report.digest;
  json["reference_requests"] = report.requests;
  std::string texts;
  OrderedJson answers = OrderedJson::array();
  for (const decode::GateAnswer& answer : report.answers) {
    std::string text;
    if (tokenizer != nullptr) texts += text = tokenizer->decode(answer.ids, false);
    answers.push_back(answer_json(answer, tokenizer != nullptr ? &text : nullptr));
  }
  if (tokenizer != nullptr) json["reference_text_sha256"] = sha256_hex(texts);
  json["reference"] = std::move(answers);
  json["passed"] = report.passed();
  json["complete"] = report.complete();
  json["gates"] = OrderedJson::array();
  for (const decode::GateResult& gate : report.gates) {
    json["gates"].push_back({{"name", gate.name},
                             {"cases", gate.cases},
                             {"planned", gate.planned},
                             {"passed", gate.passed},
                             {"difference", gate.difference},
                             {"seconds", gate.seconds}});
    if (gate.lane) json["gates"].back()["engaged"] = gate.engaged;
  }
  json["lanes"] = OrderedJson::array();
  for (const decode::LaneReport& lane : report.lanes) {
    json["lanes"].push_back({{"name", lane.lane->name},
                             {"exactness", decode::exactness_name(lane.lane->exactness)},
                             {"verdict", decode::verdict_text(lane.verdict)},
                             {"engaged", lane.run.engaged},
                             {"ran", lane.run.detail}});
  }
  return json;
}

std::string verify_table(const decode::GateReport& report) {
  std::string text = fmt::format("{:<32} {:>11}  {:>8}  result\n", "gate", "cases", "seconds");
  for (const decode::GateResult& gate : report.gates) {
    text += fmt::format("{:<32} {:>11}  {:>8.1f}  {}\n", gate.name, fmt::format("{} of {}", gate.cases, gate.planned),
                        gate.seconds, gate_result(gate));
    if (!gate.difference.empty()) text += fmt::format("    {}\n", gate.difference);
  }
  text += fmt::format("\n{:<20} {:>9}  verdict\n", "lane", "engaged");
  for (const decode::LaneReport& lane : report.lanes) {
    text += fmt::format("{:<20} {:>9}  {}; {}\n", lane.lane->name, lane.run.engaged, decode::verdict_text(lane.verdict),
                        lane.run.detail);
  }
  // Of fewer requests it is another digest, which says nothing beside that of a whole run.
  if (report.answers.size() < report.requests) {
    return text + fmt::format("reference ids: no digest, {} of {} requests were tried\n", report.answers.size(),
                              report.requests);
  }
  return text + fmt::format("reference ids sha256 {}\n", report.digest);
}

Status verify_verdict(const decode::GateReport& report) {
  const auto failed =
      std::find_if(report.gates.begin(), report.gates.end(), [](const auto& gate) { return !gate.passed; });
  if (failed == report.gates.end()) return {};
  if (failed->name == "file hashes") {  // somebody wrote to a file and put its time back, or the disk is bad
    return fail(ErrorKind::Io, "{} while verify ran, so nothing is proved, neither for this build nor against it",
                failed->difference);
  }
  return fail(ErrorKind::Internal,
              "results differ: this build must not be trusted on this machine with this model; {}: {}", failed->name,
              failed->difference);
}

}  // namespace lockstep::cli
