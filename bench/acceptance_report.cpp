// What speculative decoding is worth on a model: drafts kept by depth, tokens per forward pass, and decode speed with
// and without drafts, for every way to accept them. Prints a Markdown table, and writes its figures as JSON for
// scripts/performance_tables.
//
//   acceptance_report [MODEL] [DEPTH] [SEEDS] [FILE.json]     defaults: models/demo of the source tree, 3, 4, no file
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "artifact/artifact.hpp"
#include "backend/cpu/cpu_backend.hpp"
#include "base/file.hpp"
#include "base/json.hpp"
#include "decode/decoder.hpp"
#include "text/chat_template.hpp"
#include "text/tokenizer.hpp"

namespace {

using namespace lockstep;
using decode::AcceptanceRule;
using decode::DrawRule;

constexpr std::int64_t kTokens = 160;

const std::vector<std::string>& questions() {
  static const std::vector<std::string> list{"What does bank mean?",
                                             "Give me a synonym of quick.",
                                             "What is the opposite of early?",
                                             "Use the word river in a sentence.",
                                             "Define the word justice.",
                                             "What does candle mean?",
                                             "Give me three synonyms of large.",
                                             "What does measure mean?"};
  return list;
}

struct Mode {
  const char* name;
  double temperature;
  DrawRule draw;
  AcceptanceRule accept;
};

/// Sums over the requests of one mode.
struct Total {
  std::array<std::int64_t, decode::kMaxDepth> drafted{}, accepted{};
  std::int64_t tokens = 0, steps = 0, plain_tokens = 0;
  double seconds = 0, plain_seconds = 0;
};

/// A request's output; errors end the program.
decode::DecodeStats run(decode::Decoder& decoder, const decode::DecodeRequest& request) {
  Status status = decoder.start(request, {});
  while (status && decoder.finish() == decode::Finish::None) {
    const auto tokens = decoder.step();
    if (!tokens) status = tl::unexpected(tokens.error());
  }
  if (!status) {
    std::fprintf(stderr, "%s\n", status.error().message.c_str());
    std::exit(1);
  }
  return decoder.stats();
}

void print(const Mode& mode, std::int64_t depth, const Total& total) {
  std::string kept;
  for (std::int64_t i = 0; i < depth; ++i) {
    const auto at = static_cast<std::size_t>(i);
    kept += fmt::format("{}{:.1f} %", i == 0 ? "" : " / ",
                        100.0 * static_cast<double>(total.accepted[at]) / static_cast<double>(total.drafted[at]));
  }
  const double drafted = static_cast<double>(total.tokens) / total.seconds;
  const double plain = static_cast<double>(total.plain_tokens) / total.plain_seconds;
  fmt::print("| {} | {} | {:.2f} | {:.0f} | {:.0f} | {:.2f} |\n", mode.name, kept,
             static_cast<double>(total.tokens) / static_cast<double>(total.steps), drafted, plain, drafted / plain);
  std::fflush(stdout);
}

OrderedJson to_json(const Mode& mode, const Total& total) {
  return {{"draws", mode.name},
          {"drafted", total.drafted},
          {"accepted", total.accepted},
          {"tokens", total.tokens},
          {"steps", total.steps},
          {"seconds", total.seconds},
          {"plain_tokens", total.plain_tokens},
          {"plain_seconds", total.plain_seconds}};
}

Status report(const std::string& directory, std::int64_t depth, std::uint64_t seeds, const std::string& out) {
  const artifact::Artifact artifact = LOCKSTEP_TRY(artifact::Artifact::open(directory));
  const text::Tokenizer tokenizer = LOCKSTEP_TRY(text::Tokenizer::open(directory));
  const text::ChatTemplate chat = LOCKSTEP_TRY(text::ChatTemplate::open(directory));
  std::unique_ptr<backend::Backend> backend = LOCKSTEP_TRY(backend::CpuBackend::create({}));
  const std::unique_ptr<model::Model> model =
      LOCKSTEP_TRY(model::Model::load(artifact, std::move(backend), model::ModelOptions{}));
  decode::SpeculativeOptions options;
  options.depth = depth;
  const auto drafted = LOCKSTEP_TRY(decode::make_speculative_decoder(*model, options));
  const auto plain = LOCKSTEP_TRY(decode::make_plain_decoder(*model));
  fmt::print("| draws | drafts kept by depth | tokens per pass | tokens/s, depth {} | tokens/s, plain | ratio |\n",
             depth);
  fmt::print("|---|---|---|---|---|---|\n");
  const std::vector<Mode> modes{{"greedy", 0, DrawRule::Pcg64, AcceptanceRule::Stream},
                                {"T 0.7, stream, pcg64", 0.7, DrawRule::Pcg64, AcceptanceRule::Stream},
                                {"T 0.7, stream, race", 0.7, DrawRule::Race, AcceptanceRule::Stream},
                                {"T 0.7, rejection", 0.7, DrawRule::Pcg64, AcceptanceRule::Rejection},
                                {"T 1.0, stream, pcg64", 1.0, DrawRule::Pcg64, AcceptanceRule::Stream},
                                {"T 1.0, stream, race", 1.0, DrawRule::Race, AcceptanceRule::Stream},
                                {"T 1.0, rejection", 1.0, DrawRule::Pcg64, AcceptanceRule::Rejection}};
  OrderedJson json{{"format", "lockstep-acceptance-1"}, {"backend", model->backend().describe()}, {"depth", depth}};
  json["seeds"] = seeds;
  json["questions"] = questions().size();
  json["modes"] = OrderedJson::array();
  for (const Mode& mode : modes) {
    Total total;
    for (const std::string& question : questions()) {
      const OrderedJson messages = OrderedJson::array({{{"role", "user"}, {"content", question}}});
      text::ChatOptions wanted;
      wanted.add_generation_prompt = true;
      const text::Rendered rendered = LOCKSTEP_TRY(chat.render(messages, wanted));
      decode::DecodeRequest request;
      request.prompt = LOCKSTEP_TRY(tokenizer.encode(rendered.text));
      request.vocab = std::min<std::int64_t>(artifact.config().vocab_size, tokenizer.vocabulary_size());
      request.max_tokens = kTokens;
      request.stop_ids = LOCKSTEP_TRY(tokenizer.encode("<|im_end|>"));
      request.sampler.temperature = mode.temperature;
      request.sampler.top_k = 20;
      request.sampler.top_p = 0.95;
      request.sampler.draw_rule = mode.draw;
      request.sampler.acceptance = mode.accept;
      for (request.sampler.seed = 1; request.sampler.seed <= seeds; ++request.sampler.seed) {
        // One after the other, so that both see the same machine.
        const decode::DecodeStats with = run(*drafted, request);
        const decode::DecodeStats without = run(*plain, request);
        for (std::size_t i = 0; i < total.drafted.size(); ++i) {
          total.drafted[i] += with.drafted[i];
          total.accepted[i] += with.accepted[i];
        }
        total.tokens += with.tokens;
        total.steps += with.steps;
        total.seconds += with.decode_seconds;
        total.plain_tokens += without.tokens;
        total.plain_seconds += without.decode_seconds;
      }
    }
    print(mode, depth, total);
    json["modes"].push_back(to_json(mode, total));
  }
  fmt::print("\n{}\n", model->backend().describe());
  if (!out.empty()) {
    AtomicFile file = LOCKSTEP_TRY(AtomicFile::create(out));
    LOCKSTEP_TRY(file.write(json.dump(2) + "\n"));
    LOCKSTEP_TRY(file.commit());
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const std::string directory = argc > 1 ? argv[1] : LOCKSTEP_SOURCE_DIR "/models/demo";
  const std::int64_t depth = argc > 2 ? std::atoll(argv[2]) : 3;
  const std::uint64_t seeds = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 4;
  const Status status = report(directory, depth, seeds, argc > 4 ? argv[4] : "");
  if (status) return 0;
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  return 1;
}
