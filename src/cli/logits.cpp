// lockstep logits: the model's logits of a list of token ids, for comparison with other implementations.
#include <CLI/App.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>

#include "artifact/safetensors.hpp"
#include "base/json.hpp"
#include "base/progress.hpp"
#include "cli/arguments.hpp"
#include "cli/command.hpp"
#include "cli/engine_options.hpp"
#include "cli/interrupt.hpp"
#include "model/runner.hpp"

namespace lockstep::cli {
namespace {

constexpr std::int64_t kChunk = 64;
constexpr std::uint64_t kMaxIdsBytes = std::uint64_t{64} << 20;

struct Options {
  EngineOptions engine;
  std::string ids, out;
  bool draft = false;
};

Result<std::vector<std::int32_t>> read_ids(const std::string& path, std::int64_t vocabulary) {
  const std::string text = LOCKSTEP_TRY(read_file(path, kMaxIdsBytes));
  const Json list = LOCKSTEP_TRY(parse_json(text, path));
  if (!list.is_array()) return fail(ErrorKind::Invalid, "{}: not a JSON list of token ids", path);
  if (list.empty()) return fail(ErrorKind::Invalid, "{}: the list of token ids is empty", path);
  std::vector<std::int32_t> ids;
  for (const Json& item : list) {
    const bool usable = item.is_number_integer() && item.get<std::int64_t>() >= 0 &&
                        item.get<std::int64_t>() < vocabulary &&
                        !(item.is_number_unsigned() && item.get<std::uint64_t>() > INT64_MAX);
    if (!usable) {
      return fail(ErrorKind::Invalid, "{}: entry {} is not a token id between 0 and {}", path, ids.size(),
                  vocabulary - 1);
    }
    ids.push_back(item.get<std::int32_t>());
  }
  return ids;
}

/// The output would replace the input: the same file under two names, or through a link.
Status check_apart(const Options& options) {
  if (options.out == "-") {
    return fail(ErrorKind::Usage, "--out -: logits go to a file, not to standard output; name one (./- for that name)");
  }
  std::error_code absent;
  if (!std::filesystem::equivalent(options.ids, options.out, absent)) return {};
  return fail(ErrorKind::Usage, "--out {} is the file of --ids; name another one", options.out);
}

/// Logits of every position, appended chunk by chunk to the file.
class LogitsWriter {
 public:
  LogitsWriter(artifact::SafetensorsWriter writer, std::int64_t vocabulary)
      : writer_(std::move(writer)), vocabulary_(vocabulary) {}

  /// Appends the rows of positions from `first` on. Errors: Internal at a logit that is not finite, Io.
  Status add(std::string_view name, std::size_t first, std::span<const float> rows) {
    const auto bad = std::ranges::find_if_not(rows, [](float x) { return std::isfinite(x); });
    if (bad == rows.end()) return writer_.append(name, std::as_bytes(rows));
    const auto at = static_cast<std::size_t>(bad - rows.begin());
    return fail(ErrorKind::Internal, "{}: position {}, token id {}: the model gave {}, not a finite logit", name,
                first + at / vocabulary(), at % vocabulary(), *bad);
  }
  Status finish() { return writer_.finish(); }
  [[nodiscard]] std::size_t vocabulary() const { return static_cast<std::size_t>(vocabulary_); }

 private:
  artifact::SafetensorsWriter writer_;
  std::int64_t vocabulary_;
};

std::int32_t argmax(std::span<const float> row) {
  return static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

Status run_rows(const model::Model& model, std::span<const std::int32_t> ids, bool draft,
                const InterruptScope& interrupts, LogitsWriter& out) {
  model::Runner runner = LOCKSTEP_TRY(model::Runner::create(model, kChunk));
  model::Sequence sequence = LOCKSTEP_TRY(model::Sequence::create(model));
  Progress progress("logits", ids.size(), ProgressUnit::Items);
  for (std::size_t first = 0; first < ids.size(); first += kChunk) {
    if (interrupts.requested()) return fail(ErrorKind::Cancelled, "interrupted");
    const std::size_t count = std::min<std::size_t>(kChunk, ids.size() - first);
    const model::Segment segment{&sequence, ids.subspan(first, count), model::LogitsWanted::All, false};
    LOCKSTEP_TRY(runner.forward({&segment, 1}));
    LOCKSTEP_TRY(out.add("logits", first, runner.logits()));
    if (draft) {
      // Row t of the draft head sees the wide residual of t and token t + 1; after the last token comes the greedy one.
      const std::size_t following = std::min(count, ids.size() - first - 1);
      std::vector<std::int32_t> next(ids.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                                     ids.begin() + static_cast<std::ptrdiff_t>(first + 1 + following));
      if (next.size() < count) next.push_back(argmax(runner.logits().last(out.vocabulary())));
      const model::DraftSegment rows{&sequence, next, runner.wide(0), model::LogitsWanted::All};
      LOCKSTEP_TRY(runner.draft({&rows, 1}));
      LOCKSTEP_TRY(out.add("mtp_logits", first, runner.logits()));
    }
    progress.add(count);
  }
  return {};
}

Status run_logits(const Options& options) {
  LOCKSTEP_TRY(check_apart(options));
  const InterruptScope interrupts;
  const LoadedModel loaded = LOCKSTEP_TRY(load_model(options.engine, options.draft));
  const model::Model& model = *loaded.model;
  if (options.draft && !model.has_draft()) return fail(ErrorKind::Invalid, "--draft: the model has no draft layer");
  const std::int64_t vocabulary = model.config().vocab_size;
  const std::vector<std::int32_t> ids = LOCKSTEP_TRY(read_ids(options.ids, vocabulary));
  const auto rows = static_cast<std::int64_t>(ids.size());
  if (rows > model.config().max_positions) {
    return fail(ErrorKind::Limit, "{}: {} tokens do not fit the model's context of {}", options.ids, rows,
                model.config().max_positions);
  }
  std::vector<artifact::SafetensorsWriter::Entry> entries{{"logits", artifact::DType::F32, {rows, vocabulary}}};
  if (options.draft) entries.push_back({"mtp_logits", artifact::DType::F32, {rows, vocabulary}});
  LogitsWriter writer(
      LOCKSTEP_TRY(artifact::SafetensorsWriter::create(options.out, entries, {{"state", options.engine.state}})),
      vocabulary);
  LOCKSTEP_TRY(run_rows(model, ids, options.draft, interrupts, writer));
  return writer.finish();
}

}  // namespace

void add_logits(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("logits", "Write the logits of every position of a list of token ids");
  add_engine_options(*command, options->engine);
  command->add_option("model", options->engine.model, "Model directory (same as --model)")
      ->excludes(command->get_option("--model"))
      ->check(not_empty());
  command->add_option("--ids", options->ids, "JSON file with a list of token ids")->required()->check(not_empty());
  command->add_option("--out", options->out, "safetensors file to write: logits [N, vocabulary] f32")
      ->required()
      ->check(not_empty());
  command->add_flag("--draft", options->draft, "Also run the draft head: mtp_logits [N, vocabulary]");
  command->add_flag("--unquantised-activations", options->engine.unquantised,
                    "Keep activations in float32 in quantised products (an oracle: slower, not the canon)");
  command->footer(
      "Examples:\n"
      "  echo '[6101, 17, 300]' > ids.json\n"
      "  lockstep logits models/demo --ids ids.json --state f32 --out logits.safetensors");
  command->callback([options, &context] { context.status = run_logits(*options); });
}

}  // namespace lockstep::cli
