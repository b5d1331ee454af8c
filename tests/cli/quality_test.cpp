// `lockstep perplexity` and `lockstep compare` against plain float64 arithmetic over what `lockstep logits` writes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "artifact/safetensors.hpp"
#include "base/json.hpp"
#include "cli/process.hpp"
#include "support/scratch.hpp"

namespace lockstep::test {
namespace {

constexpr const char* kDemo = LOCKSTEP_SOURCE_DIR "/models/demo";
constexpr const char* kText =
    "<|im_start|>user\nWhat does bank mean?<|im_end|>\n<|im_start|>assistant\nbank has 2 senses.";

using Rows = std::vector<std::vector<double>>;

class Quality : public testing::Test {
 protected:
  void SetUp() override { std::ofstream(path("text.txt")) << kText; }
  [[nodiscard]] std::string path(const std::string& name) const { return (scratch_ / name).string(); }

  [[nodiscard]] static std::vector<std::int32_t> ids() {
    const Outcome made = run_lockstep({"tokenize", kText, "-m", kDemo});
    std::istringstream words(made.out);
    return {std::istream_iterator<std::int32_t>(words), {}};
  }

  /// Logits of tokens [begin, end) as a text of their own.
  [[nodiscard]] Rows logits(std::span<const std::int32_t> tokens, const std::string& state) const {
    std::ofstream(path("ids.json")) << Json(std::vector<std::int32_t>(tokens.begin(), tokens.end())).dump();
    const Outcome made =
        run_lockstep({"logits", kDemo, "--ids", path("ids.json"), "--out", path("logits"), "--state", state});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    const auto file = artifact::SafetensorsFile::open(path("logits"));
    const artifact::TensorInfo* tensor = file->find("logits");
    const std::span<const std::byte> bytes = file->data(*tensor);
    Rows rows(tokens.size(), std::vector<double>(static_cast<std::size_t>(tensor->shape[1])));
    std::size_t at = 0;
    for (std::vector<double>& row : rows) {
      for (double& value : row) {
        float read = 0;
        std::memcpy(&read, bytes.data() + at, sizeof(read));
        value = static_cast<double>(read);
        at += sizeof(read);
      }
    }
    return rows;
  }

  /// Probabilities by the plainest formula over the tokens that exist.
  static std::vector<double> softmax(const std::vector<double>& logits, std::size_t usable) {
    std::vector<double> out(logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(usable));
    double sum = 0;
    for (double& value : out) sum += value = std::exp(value);
    for (double& value : out) value /= sum;
    return out;
  }

  static constexpr std::size_t kUsable = 6116;  // tokens of the demo model's tokenizer
  ScratchDirectory scratch_;
};

TEST_F(Quality, PerplexityIsThatOfTheLogits) {
  const Outcome result = run_lockstep({"perplexity", kDemo, "--text", path("text.txt"), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  const std::vector<std::int32_t> tokens = ids();
  const Rows rows = logits(tokens, "bf16");
  double loss = 0;
  for (std::size_t t = 1; t < tokens.size(); ++t) {
    loss -= std::log(softmax(rows[t - 1], kUsable)[static_cast<std::size_t>(tokens[t])]);
  }
  loss /= static_cast<double>(tokens.size() - 1);
  EXPECT_EQ(json["scored"], tokens.size() - 1);
  EXPECT_NEAR(json["models"][0]["loss"].get<double>(), loss, 1e-9);
  EXPECT_NEAR(json["models"][0]["perplexity"].get<double>(), std::exp(loss), 1e-8);
}

TEST_F(Quality, WindowsForgetWhatIsBeforeThem) {
  const Outcome result =
      run_lockstep({"perplexity", kDemo, "--text", path("text.txt"), "--context", "8", "--stride", "5", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<std::int32_t> tokens = ids();
  double loss = 0;
  std::size_t done = 1;
  for (std::size_t begin = 0; done < tokens.size(); begin += 5) {
    const std::size_t end = std::min(begin + 8, tokens.size());
    const Rows rows = logits(std::span(tokens).subspan(begin, end - begin), "bf16");
    for (; done < end; ++done) {
      loss -= std::log(softmax(rows[done - 1 - begin], kUsable)[static_cast<std::size_t>(tokens[done])]);
    }
  }
  EXPECT_NEAR(Json::parse(result.out)["models"][0]["loss"].get<double>(), loss / static_cast<double>(tokens.size() - 1),
              1e-9);
}

TEST_F(Quality, ComparisonIsThatOfTheLogits) {
  const Outcome result = run_lockstep({"compare", kDemo, kDemo, "--state", "f32", "--state-b", "bf16", "--text",
                                       path("text.txt"), "--json", "--out", path("out.json")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json both = Json::parse(result.out)["comparison"];
  const std::vector<std::int32_t> tokens = ids();
  const Rows a = logits(tokens, "f32");
  const Rows b = logits(tokens, "bf16");
  std::vector<double> kl;
  double change = 0;
  std::size_t same = 0;
  for (std::size_t t = 1; t < tokens.size(); ++t) {
    const std::vector<double> p = softmax(a[t - 1], kUsable);
    const std::vector<double> q = softmax(b[t - 1], kUsable);
    double sum = 0;
    for (std::size_t i = 0; i < p.size(); ++i) sum += p[i] * std::log(p[i] / q[i]);
    kl.push_back(sum);
    const auto token = static_cast<std::size_t>(tokens[t]);
    change += std::log(p[token] / q[token]);
    same += std::ranges::max_element(p) - p.begin() == std::ranges::max_element(q) - q.begin() ? 1U : 0U;
  }
  const auto count = static_cast<double>(kl.size());
  double mean = 0;
  for (const double value : kl) mean += value / count;
  std::ranges::sort(kl);
  EXPECT_NEAR(both["kl_mean"].get<double>(), mean, 1e-10);
  EXPECT_NEAR(both["kl_max"].get<double>(), kl.back(), 1e-10);
  EXPECT_NEAR(both["kl_p95"].get<double>(), kl[static_cast<std::size_t>(std::ceil(0.95 * count)) - 1], 1e-10);
  EXPECT_GT(mean, 0);
  EXPECT_DOUBLE_EQ(both["top1_agreement"].get<double>(), static_cast<double>(same) / count);
  EXPECT_NEAR(both["perplexity_ratio"].get<double>(), std::exp(change / count), 1e-9);
  std::ifstream file(path("out.json"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), result.out);
}

TEST_F(Quality, AModelIsNoDistanceFromItself) {
  const Outcome result = run_lockstep({"compare", kDemo, kDemo, "--text", path("text.txt"), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json both = Json::parse(result.out)["comparison"];
  EXPECT_EQ(both["kl_max"], 0);
  EXPECT_EQ(both["top1_agreement"], 1);
  EXPECT_EQ(both["perplexity_ratio"], 1);
}

TEST_F(Quality, WrongInputsSayWhatIsWrong) {
  const auto refused = [&](std::vector<std::string> arguments, int code, const std::string& part) {
    const Outcome result = run_lockstep(std::move(arguments));
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  };
  std::ofstream(path("empty.txt")) << "";
  refused({"perplexity", kDemo, "--text", path("empty.txt")}, 1, "at least 2 are needed");
  refused({"perplexity", kDemo, "--text", path("absent.txt")}, 1, "absent.txt");
  refused({"perplexity", kDemo, "--text", path("text.txt"), "--context", "1"}, 2, "--context");
  refused({"perplexity", kDemo, "--text", path("text.txt"), "--context", "4", "--stride", "5"}, 2, "stride");
  refused({"perplexity", kDemo, "--text", path("text.txt"), "--context", "1000000"}, 1, "32768");
  refused({"compare", kDemo, "--text", path("text.txt")}, 2, "model_b");
  refused({"perplexity", kDemo}, 2, "--text");
}

}  // namespace
}  // namespace lockstep::test
