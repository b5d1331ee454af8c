// The demonstration model end to end: the committed pack answers as the reference did, and where the checkpoint that it
// was made from is at hand, its logits are those of the reference.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/file.hpp"
#include "base/json.hpp"
#include "decode/decoder.hpp"
#include "decode/generation_config.hpp"
#include "model/fixture.hpp"
#include "support/scratch.hpp"
#include "text/tokenizer.hpp"

namespace lockstep::decode {
namespace {

namespace fs = std::filesystem;

struct GoldenPrompt {
  std::string name, text, answer;  ///< answer up to the stop token
  std::int64_t tokens = 0;         ///< of the prompt
  std::int64_t until_stop = 0;     ///< greedy tokens up to and with the stop token, or all 64
};

std::vector<GoldenPrompt> golden_prompts() {
  const std::string path = std::string(LOCKSTEP_TEST_DATA) + "/demo/golden_prompts.json";
  const Json root = parse_json(read_file(path, 1 << 20).value(), path).value();
  std::vector<GoldenPrompt> prompts;
  for (const Json& item : root["prompts"]) {
    const auto greedy = item["greedy_text"].get<std::string>();
    prompts.push_back({item["name"].get<std::string>(), item["text"].get<std::string>(),
                       greedy.substr(0, greedy.find("<|im_end|>")), item["tokens"].get<std::int64_t>(),
                       item["greedy_until_stop"].get<std::int64_t>()});
  }
  return prompts;
}

/// The embedded demonstration model.
class Demo : public testing::Test {
 protected:
  static constexpr const char* kDirectory = LOCKSTEP_SOURCE_DIR "/models/demo";

  [[nodiscard]] DecodeRequest request_for(const GoldenPrompt& prompt) const {
    DecodeRequest request;
    request.prompt = tokenizer_.encode(prompt.text).value();
    request.sampler.temperature = 0;
    request.vocab = tokenizer_.vocabulary_size();
    request.stop_ids = read_generation_config(kDirectory, request.vocab, {}).value().stop_ids;
    request.max_tokens = prompt.until_stop;
    return request;
  }

  /// The answer's text; the end that was reached in `finish`.
  [[nodiscard]] std::string answer(Decoder& decoder, const DecodeRequest& request, Finish& finish) const {
    std::vector<TokenId> ids;
    const Status started = decoder.start(request, {});
    EXPECT_TRUE(started) << (started ? "" : started.error().message);
    while (started && decoder.finish() == Finish::None) {
      const auto tokens = decoder.step();
      if (!tokens) {
        ADD_FAILURE() << tokens.error().message;
        break;
      }
      for (const Choice& token : *tokens) ids.push_back(token.id);
    }
    finish = decoder.finish();
    return tokenizer_.decode(ids, false);
  }

  model::Loaded loaded_ = model::load(kDirectory, backend::StateType::BF16);
  text::Tokenizer tokenizer_ = text::Tokenizer::open(kDirectory).value();
};

TEST_F(Demo, GreedyAnswersAreThoseOfTheReference) {
  const auto prompts = golden_prompts();
  ASSERT_EQ(prompts.size(), 6U);
  const auto plain = make_plain_decoder(*loaded_.model).value();
  const auto speculative = make_speculative_decoder(*loaded_.model, {}).value();
  for (const GoldenPrompt& prompt : prompts) {
    SCOPED_TRACE(prompt.name);
    const DecodeRequest request = request_for(prompt);
    EXPECT_EQ(static_cast<std::int64_t>(request.prompt.size()), prompt.tokens);
    for (Decoder* decoder : {plain.get(), speculative.get()}) {
      Finish finish = Finish::None;
      EXPECT_EQ(answer(*decoder, request, finish), prompt.answer);
      const bool stopped = prompt.until_stop < 64;
      EXPECT_EQ(finish, stopped ? Finish::Stop : Finish::Length);
      EXPECT_EQ(decoder->stats().tokens, prompt.until_stop - (stopped ? 1 : 0));
    }
  }
}

/// The unquantised checkpoint with its golden tensors; too large to be part of the repository.
fs::path checkpoint() {
  if (const char* given = std::getenv("LOCKSTEP_DEMO_BF16"); given != nullptr && *given != 0) return given;
  return fs::path(LOCKSTEP_SOURCE_DIR) / ".." / "shared" / "demo";
}

/// Runs `lockstep logits` on token ids and opens what it wrote.
Result<artifact::SafetensorsFile> run_logits(const fs::path& model, const std::vector<std::int32_t>& ids,
                                             const test::ScratchDirectory& scratch) {
  std::ofstream(scratch / "ids.json") << Json(ids).dump();
  const std::string command = fmt::format("'{}' logits '{}' --state f32 --draft --ids '{}' --out '{}' 2> '{}'",
                                          LOCKSTEP_BINARY, model.string(), (scratch / "ids.json").string(),
                                          (scratch / "out.safetensors").string(), (scratch / "errors").string());
  if (std::system(command.c_str()) != 0) {
    return fail(ErrorKind::Internal, "{}: {}", command, read_file(scratch / "errors", 1 << 16).value_or(""));
  }
  return artifact::SafetensorsFile::open(scratch / "out.safetensors");
}

TEST(DemoCheckpoint, LogitsAreThoseOfTheReference) {
  const fs::path directory = checkpoint();
  if (!fs::exists(directory / "golden.safetensors")) {
    GTEST_SKIP() << "no unquantised demonstration checkpoint at " << directory
                 << "; set LOCKSTEP_DEMO_BF16 to a folder that has one with golden.safetensors";
  }
  constexpr double kTolerance = 2e-4;  // of the logits' range of a row
  const auto golden = artifact::SafetensorsFile::open(directory / "golden.safetensors").value();
  for (const GoldenPrompt& prompt : golden_prompts()) {
    SCOPED_TRACE(prompt.name);
    const test::ScratchDirectory scratch;
    const auto ids = model::golden_ids(golden, prompt.name + ".ids");
    const auto got = run_logits(directory, ids, scratch);
    ASSERT_TRUE(got) << got.error().message;
    const auto expected = model::golden<float>(golden, prompt.name + ".logits");
    const auto logits = model::golden<float>(*got, "logits");
    const std::size_t vocabulary = expected.size() / 4;
    ASSERT_EQ(logits.size(), ids.size() * vocabulary);
    const std::span<const float> last = std::span(logits).last(4 * vocabulary);
    double worst = 0;
    for (std::size_t row = 0; row < 4; ++row) {
      worst = std::max(worst, model::relative_error(last.subspan(row * vocabulary, vocabulary),
                                                    std::span(expected).subspan(row * vocabulary, vocabulary)));
    }
    const auto draft = model::golden<float>(*got, "mtp_logits");
    const auto draft_expected = model::golden<float>(golden, prompt.name + ".mtp_logits");
    const std::span<const float> draft_last = std::span(draft).last(vocabulary);
    const double draft_error = model::relative_error(draft_last, draft_expected);
    std::printf("%s: worst error %.1e of the range, draft head %.1e\n", prompt.name.c_str(), worst, draft_error);
    EXPECT_LE(worst, kTolerance);
    EXPECT_LE(draft_error, kTolerance);
    const auto greedy = model::golden_ids(golden, prompt.name + ".greedy");
    EXPECT_EQ(model::argmax(last.last(vocabulary)), greedy[0]);
    EXPECT_EQ(model::argmax(draft_last), model::golden_ids(golden, prompt.name + ".mtp_drafts")[0]);
  }
}

}  // namespace
}  // namespace lockstep::decode
