// lockstep perplexity and lockstep compare: how well a model predicts a text, and how far two models are apart on it.
#include "decode/quality.hpp"

#include <CLI/App.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "base/file.hpp"
#include "base/json.hpp"
#include "base/printable.hpp"
#include "base/progress.hpp"
#include "base/sha256.hpp"
#include "cli/arguments.hpp"
#include "cli/command.hpp"
#include "cli/engine_options.hpp"
#include "cli/interrupt.hpp"
#include "cli/options.hpp"
#include "cli/standard_input.hpp"
#include "cli/terminal.hpp"
#include "cli/version.hpp"
#include "text/tokenizer.hpp"

namespace lockstep::cli {
namespace {

constexpr std::uint64_t kMaxTextBytes = std::uint64_t{256} << 20;

struct Options {
  EngineOptions engine;
  std::string second, second_state;  ///< of compare; an empty state is that of the first model
  std::string text, out;
  decode::QualityOptions quality;
  std::int64_t max_tokens = 0;
  bool json = false;
};

/// A model with what makes tokens of the text.
struct Subject {
  LoadedModel loaded;
  text::Tokenizer tokenizer;
  std::string state;
};

Result<Subject> load(const EngineOptions& options) {
  LoadedModel loaded = LOCKSTEP_TRY(load_model(options, false));
  text::Tokenizer tokenizer = LOCKSTEP_TRY(text::Tokenizer::open(loaded.artifact->directory()));
  return Subject{std::move(loaded), std::move(tokenizer), options.state};
}

std::int64_t usable(const Subject& subject) {
  return std::min<std::int64_t>(subject.loaded.model->config().vocab_size, subject.tokenizer.vocabulary_size());
}

OrderedJson describe(const Subject& subject) {
  const artifact::Identity& identity = subject.loaded.artifact->identity();
  return {{"name", std::filesystem::weakly_canonical(subject.loaded.artifact->directory()).filename().string()},
          {"config_sha256", identity.config_sha256},
          {"inventory_sha256", identity.inventory_sha256},
          {"state", subject.state},
          {"device", subject.loaded.model->backend().describe()}};
}

Result<std::vector<std::int32_t>> tokens_of(const Options& options, std::string_view text, const Subject& a,
                                            const Subject* b) {
  text::EncodeOptions encode;
  encode.stop = [] { return InterruptScope::flag().load(); };
  std::vector<std::int32_t> ids = LOCKSTEP_TRY(a.tokenizer.encode(text, encode));
  if (b != nullptr) {
    if (usable(a) != usable(*b) || LOCKSTEP_TRY(b->tokenizer.encode(text, encode)) != ids) {
      return fail(ErrorKind::Invalid,
                  "the two models make different tokens of the text; only models with the same tokenizer can be "
                  "compared");
    }
  }
  if (options.max_tokens > 0 && ids.size() > static_cast<std::size_t>(options.max_tokens)) {
    ids.resize(static_cast<std::size_t>(options.max_tokens));
  }
  return ids;
}

OrderedJson loss_json(std::span<const double> losses) {
  const decode::MeanError loss = decode::mean_error(losses);
  return {{"loss", loss.mean}, {"loss_standard_error", loss.error}, {"perplexity", std::exp(loss.mean)}};
}

OrderedJson comparison_json(const decode::QualityResult& result) {
  std::vector<double> kl = result.kl;
  std::ranges::sort(kl);
  std::vector<double> change(result.loss_a.size());
  for (std::size_t i = 0; i < change.size(); ++i) change[i] = result.loss_b[i] - result.loss_a[i];
  const decode::MeanError ratio = decode::mean_error(change);
  const decode::MeanError mean = decode::mean_error(kl);
  OrderedJson out;
  out["kl_mean"] = mean.mean;
  out["kl_mean_standard_error"] = mean.error;
  out["kl_median"] = decode::nearest_rank(kl, 0.5);
  out["kl_p95"] = decode::nearest_rank(kl, 0.95);
  out["kl_p99"] = decode::nearest_rank(kl, 0.99);
  out["kl_max"] = kl.back();
  out["top1_agreement"] = static_cast<double>(result.same_top) / static_cast<double>(kl.size());
  out["perplexity_ratio"] = std::exp(ratio.mean);
  out["log_perplexity_ratio_standard_error"] = ratio.error;
  return out;
}

std::string table(const OrderedJson& json) {
  const auto number = [](const OrderedJson& value) { return value.get<double>(); };
  std::string out;
  for (const OrderedJson& model : json["models"]) {
    out += fmt::format("{} (state {}): perplexity {:.4f}, loss {:.5f} +- {:.5f}\n",
                       printable(model["name"].get<std::string>()), model["state"].get<std::string>(),
                       number(model["perplexity"]), number(model["loss"]), number(model["loss_standard_error"]));
  }
  out += fmt::format("{} tokens scored, windows of {}, every {}\n", json["scored"].get<std::size_t>(),
                     json["context"].get<std::int64_t>(), json["stride"].get<std::int64_t>());
  if (!json.contains("comparison")) return out;
  const OrderedJson& both = json["comparison"];
  out += fmt::format("KL(A || B) mean {:.3e} +- {:.1e}, median {:.3e}, p95 {:.3e}, p99 {:.3e}, max {:.3e} nats\n",
                     number(both["kl_mean"]), number(both["kl_mean_standard_error"]), number(both["kl_median"]),
                     number(both["kl_p95"]), number(both["kl_p99"]), number(both["kl_max"]));
  return out + fmt::format("same most probable token {:.2f} %, perplexity of B over A {:.5f} (log +- {:.5f})\n",
                           100 * number(both["top1_agreement"]), number(both["perplexity_ratio"]),
                           number(both["log_perplexity_ratio_standard_error"]));
}

Status measure(Options& options, bool two) {
  const InterruptScope interrupts;
  if (options.quality.stride == 0) options.quality.stride = std::max<std::int64_t>(1, options.quality.context / 2);
  std::optional<AtomicFile> file;  // opened first: a wrong path is better known before the run
  if (!options.out.empty()) file = LOCKSTEP_TRY(AtomicFile::create(options.out));
  const std::string text = options.text == "-" ? LOCKSTEP_TRY(read_stdin(kMaxTextBytes, interrupts))
                                               : LOCKSTEP_TRY(read_file(options.text, kMaxTextBytes));
  const Subject a = LOCKSTEP_TRY(load(options.engine));
  std::optional<Subject> b;
  if (two) {
    EngineOptions second = options.engine;
    second.model = options.second;
    if (!options.second_state.empty()) second.state = options.second_state;
    b = LOCKSTEP_TRY(load(second));
  }
  const std::vector<std::int32_t> ids = LOCKSTEP_TRY(tokens_of(options, text, a, b ? &*b : nullptr));
  options.quality.vocab = usable(a);
  decode::QualityResult result;
  {
    std::optional<Progress> bar;
    result = LOCKSTEP_TRY(decode::measure_quality(*a.loaded.model, b ? b->loaded.model.get() : nullptr, ids,
                                                  options.quality, [&](std::size_t done, std::size_t total) {
                                                    if (!bar) bar.emplace("tokens", total, ProgressUnit::Items);
                                                    bar->set(done);
                                                    return !interrupts.requested();
                                                  }));
  }
  OrderedJson json = {{"format", "lockstep-quality-1"}, {"version", version()}, {"commit", commit()}};
  json["text_sha256"] = sha256_hex(text);
  json["tokens"] = ids.size();
  json["scored"] = result.loss_a.size();
  json["context"] = options.quality.context;
  json["stride"] = options.quality.stride;
  json["models"] = OrderedJson::array({describe(a)});
  json["models"][0].update(loss_json(result.loss_a));
  if (b) {
    json["models"].push_back(describe(*b));
    json["models"][1].update(loss_json(result.loss_b));
    json["comparison"] = comparison_json(result);
  }
  if (file) {
    LOCKSTEP_TRY(file->write(json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n"));
    LOCKSTEP_TRY(file->commit());
  }
  return write_stdout(options.json ? json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n"
                                   : table(json));
}

void add_quality_options(CLI::App& command, Options& options) {
  command.add_option("--text", options.text, "The text; - is standard input")->required()->check(not_empty());
  command.add_option("--context", options.quality.context, "Tokens of a window")
      ->transform(whole_number(2, std::uint64_t{1} << 24))
      ->capture_default_str();
  options.quality.stride = 0;
  command.add_option("--stride", options.quality.stride, "Tokens from window to window (default: half of --context)")
      ->transform(whole_number(1, std::uint64_t{1} << 24));
  command.add_option("--max-tokens", options.max_tokens, "Only the first tokens of the text; 0: all")
      ->transform(whole_number(0, std::uint64_t{1} << 32))
      ->capture_default_str();
  command.add_option("--out", options.out, "Also write the JSON to this file")->check(not_empty());
  command.add_flag("--json", options.json, "Print JSON instead of lines");
}

}  // namespace

void add_perplexity(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("perplexity", "Measure how well a model predicts a text");
  add_engine_options(*command, options->engine);
  command->add_option("model", options->engine.model, "Model directory (same as --model)")
      ->excludes(command->get_option("--model"))
      ->check(not_empty());
  add_quality_options(*command, *options);
  command->footer(
      "Examples:\n"
      "  lockstep perplexity models/demo --text text.txt\n"
      "  lockstep perplexity -m ~/models/Flash-Next --text text.txt --context 4096 --json");
  command->callback([options, &context] { context.status = measure(*options, false); });
}

void add_compare(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("compare", "Measure how far two models are apart on a text");
  add_engine_options(*command, options->engine);
  command->remove_option(command->get_option("--model"));
  command->add_option("model_a", options->engine.model, "The reference")->required()->check(not_empty());
  command->add_option("model_b", options->second, "The model to judge")->required()->check(not_empty());
  command->add_option("--state-b", options->second_state, "How the second model keeps keys and values")
      ->check(CLI::IsMember({"bf16", "f32"}));
  add_quality_options(*command, *options);
  command->footer(
      "Both models are in memory at the same time.\n"
      "\n"
      "Examples:\n"
      "  lockstep compare Flash-Next-BF16 Flash-Next-Optimized --text text.txt\n"
      "  lockstep compare models/demo models/demo --state f32 --state-b bf16 --text text.txt");
  command->callback([options, &context] { context.status = measure(*options, true); });
}

}  // namespace lockstep::cli
