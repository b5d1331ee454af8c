// `lockstep inspect`: what a model directory is, without reading its weights.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include <CLI/App.hpp>

#include "artifact/artifact.hpp"
#include "artifact/identity.hpp"
#include "artifact/summary.hpp"
#include "base/json.hpp"
#include "base/printable.hpp"
#include "base/progress.hpp"
#include "cli/arguments.hpp"
#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "cli/options.hpp"
#include "cli/terminal.hpp"

namespace lockstep::cli {
namespace {

using artifact::Artifact;
using artifact::FamilySummary;
using artifact::FileHash;
using artifact::ModelConfig;
using artifact::Summary;

struct Options {
  std::string model;
  bool json = false, hash = false;
};

const char* layout_name(const Artifact& model) {
  return model.layout() == artifact::Layout::Pack ? "pack" : "official";
}

std::size_t attention_layers(const ModelConfig& config) {
  return static_cast<std::size_t>(
      std::count(config.layers.begin(), config.layers.end(), artifact::LayerKind::Attention));
}

Json geometry_json(const ModelConfig& c) {
  Json layers = Json::array();
  for (const artifact::LayerKind kind : c.layers) {
    layers.push_back(kind == artifact::LayerKind::Attention ? "attention" : "linear");
  }
  return {{"vocab_size", c.vocab_size},
          {"hidden_size", c.hidden_size},
          {"layers", layers},
          {"streams", c.streams},
          {"hc_lowrank", c.hc_lowrank},
          {"attention_heads", c.attention_heads},
          {"kv_heads", c.kv_heads},
          {"head_dim", c.head_dim},
          {"rotary_dim", c.rotary_dim},
          {"rope_theta", c.rope_theta},
          {"indexer_heads", c.indexer_heads},
          {"indexer_dim", c.indexer_dim},
          {"indexer_budget", c.indexer_budget},
          {"indexer_ratio", c.indexer_ratio},
          {"linear_key_heads", c.linear_key_heads},
          {"linear_value_heads", c.linear_value_heads},
          {"linear_key_dim", c.linear_key_dim},
          {"linear_value_dim", c.linear_value_dim},
          {"conv_kernel", c.conv_kernel},
          {"experts", c.experts},
          {"experts_per_token", c.experts_per_token},
          {"expert_dim", c.expert_dim},
          {"shared_expert_dim", c.shared_expert_dim},
          {"ngram_layers", c.ple_layers},
          {"ngram_dim", c.ple_dim},
          {"draft_layers", c.draft_layers},
          {"max_positions", c.max_positions}};
}

Json report_json(const Artifact& model, const Summary& summary, const std::vector<FileHash>& hashes) {
  Json families = Json::array();
  for (const FamilySummary& family : summary.families) {
    families.push_back({{"name", family.name},
                        {"draft", family.draft},
                        {"precision", family.precision},
                        {"parameters", family.parameters},
                        {"bytes", family.bytes},
                        {"touched_bytes", family.touched}});
  }
  const artifact::Identity& identity = model.identity();
  Json out{{"directory", model.directory().string()},
           {"layout", layout_name(model)},
           {"geometry", geometry_json(model.config())},
           {"families", families},
           {"parameters", summary.parameters},
           {"bytes", summary.bytes},
           {"decoded_token_bytes", summary.decoded_token_bytes},
           {"drafted_token_bytes", summary.drafted_token_bytes},
           {"identity", {{"config_sha256", identity.config_sha256}, {"inventory_sha256", identity.inventory_sha256}}},
           {"tensors", model.inventory().size()},
           {"ignored", model.ignored()},
           {"warnings", model.warnings()}};
  if (!identity.runtime_sha256.empty()) out["identity"]["runtime_sha256"] = identity.runtime_sha256;
  for (const FileHash& hash : hashes) out["files"][hash.file] = {{"sha256", hash.sha256}, {"bytes", hash.bytes}};
  return out;
}

std::string heading(std::string_view text) {
  return "\n" + styled(text, Style::Bold, Stream::Out) + "\n";
}

std::string geometry_text(const ModelConfig& c) {
  const std::size_t attention = attention_layers(c);
  std::string out = fmt::format(
      "  layers       {} ({} gated delta net, {} sparse attention), {} residual streams of {}\n"
      "  vocabulary   {} tokens, up to {} positions\n"
      "  attention    {} query heads on {} key/value heads of {}, {} rotary dimensions\n"
      "  selection    {} tokens in groups of {}, {} index heads of {}\n"
      "  delta net    {} key heads of {}, {} value heads of {}, convolution {}\n"
      "  experts      {} of {}, inner size {}, shared expert {}\n",
      c.layers.size(), c.layers.size() - attention, attention, c.streams, c.hidden_size, c.vocab_size, c.max_positions,
      c.attention_heads, c.kv_heads, c.head_dim, c.rotary_dim, c.indexer_budget, c.indexer_ratio, c.indexer_heads,
      c.indexer_dim, c.linear_key_heads, c.linear_key_dim, c.linear_value_heads, c.linear_value_dim, c.conv_kernel,
      c.experts_per_token, c.experts, c.expert_dim, c.shared_expert_dim);
  for (const std::int64_t layer : c.ple_layers) {
    out += fmt::format("  n-grams      layer {}, {} rows of {} a token\n", layer, c.ngram_heads(), c.ngram_row_dim());
  }
  return out + fmt::format("  draft layer  {}\n", c.draft_layers == 0 ? "none" : "yes");
}

std::string families_text(const Summary& summary) {
  std::string out = fmt::format("  {:<25}{:<24}{:>9}{:>11}{:>12}\n", "", "precision", "weights", "bytes", "per token");
  const auto count = [](std::uint64_t n) {
    const auto x = static_cast<double>(n);
    return n >= 1'000'000'000 ? fmt::format("{:.2f} G", x / 1e9)
           : n >= 1'000'000   ? fmt::format("{:.2f} M", x / 1e6)
                              : fmt::format("{:.1f} k", x / 1e3);
  };
  const auto bytes = [](std::uint64_t n) { return format_bytes(static_cast<double>(n)); };
  for (const FamilySummary& family : summary.families) {
    out += fmt::format("  {:<25}{:<24}{:>9}{:>11}{:>12}\n", family.name,
                       fmt::format("{}", fmt::join(family.precision, ", ")), count(family.parameters),
                       bytes(family.bytes), bytes(family.touched));
  }
  out += fmt::format("  {:<25}{:<24}{:>9}{:>11}\n", "total", "", count(summary.parameters), bytes(summary.bytes));
  out += fmt::format("  weights read for one decoded token: {}", bytes(summary.decoded_token_bytes));
  if (summary.drafted_token_bytes > 0) {
    out += fmt::format(", for one drafted token: {} (with the head)", bytes(summary.drafted_token_bytes));
  }
  return out + "\n";
}

std::string report_text(const Artifact& model, const Summary& summary, const std::vector<FileHash>& hashes) {
  constexpr std::size_t kIgnoredShown = 5;
  std::string out = styled(printable(model.directory().string()), Style::Bold, Stream::Out) +
                    fmt::format("  ({} layout, {} tensors)\n", layout_name(model), model.inventory().size());
  out += heading("Geometry") + geometry_text(model.config());
  out += heading("Weights") + families_text(summary);
  const artifact::Identity& identity = model.identity();
  out += heading("Identity") + fmt::format("  config     {}\n", identity.config_sha256);
  if (!identity.runtime_sha256.empty()) out += fmt::format("  runtime    {}\n", identity.runtime_sha256);
  out += fmt::format("  inventory  {}\n", identity.inventory_sha256);
  for (const FileHash& hash : hashes) out += fmt::format("  {}  {}\n", hash.sha256, printable(hash.file));
  const auto& ignored = model.ignored();
  if (!ignored.empty()) {
    out += heading(fmt::format("Ignored tensors ({})", ignored.size()));
    for (std::size_t i = 0; i < std::min(kIgnoredShown, ignored.size()); ++i)
      out += "  " + printable(ignored[i]) + "\n";
    if (ignored.size() > kIgnoredShown)
      out += fmt::format("  ... and {} more (--json lists all)\n", ignored.size() - kIgnoredShown);
  }
  if (!model.warnings().empty()) {
    out += heading("Warnings");
    for (const std::string& warning : model.warnings())
      out += "  " + styled(printable(warning), Style::Yellow, Stream::Out) + "\n";
  }
  return out;
}

Status inspect(const Options& options) {
  const InterruptScope interrupts;
  const auto directory = LOCKSTEP_TRY(find_model(options.model));
  const Artifact model = LOCKSTEP_TRY(Artifact::open_shapes(directory));
  std::vector<FileHash> hashes;
  if (options.hash) {
    Progress progress("hashing", LOCKSTEP_TRY(artifact::hashed_bytes(model)), ProgressUnit::Bytes);
    hashes = LOCKSTEP_TRY(artifact::hash_files(model, [&](std::uint64_t bytes) {
      progress.add(bytes);
      return !interrupts.requested();
    }));
  }
  const Summary summary = artifact::summarise(model);
  if (options.json) {
    const Json report = report_json(model, summary, hashes);
    return write_stdout(report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  return write_stdout(report_text(model, summary, hashes));
}

}  // namespace

void add_inspect(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("inspect", "Describe a model: geometry, precision, sizes, identity");
  const auto options = std::make_shared<Options>();
  command->add_option("-m,--model,model", options->model, "Model directory (default: the demo model)")
      ->check(not_empty());
  command->add_flag("--json", options->json, "Print one JSON object");
  command->add_flag("--hash", options->hash, "Hash every file (reads the whole model)");
  command->footer(
      "Examples:\n"
      "  lockstep inspect models/demo\n"
      "  lockstep inspect models/demo --json --hash");
  command->callback([options, &context] { context.status = inspect(*options); });
}

}  // namespace lockstep::cli
