// `lockstep logits`.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "artifact/safetensors.hpp"
#include "artifact/toy_model.hpp"
#include "cli/process.hpp"
#include "support/scratch.hpp"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

class Logits : public testing::Test {
 protected:
  void SetUp() override { ids("[5, 17, 300, 2, 44, 44, 9]"); }

  void ids(const std::string& text) const { std::ofstream(scratch_ / "ids.json") << text; }
  [[nodiscard]] std::string path(const std::string& name) const { return (scratch_ / name).string(); }

  [[nodiscard]] Outcome logits(std::vector<std::string> more, const std::string& model = "") const {
    std::vector<std::string> arguments{"logits", model.empty() ? LOCKSTEP_TEST_DATA "/toy-pack" : model};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_lockstep(arguments);
  }
  [[nodiscard]] std::string content(const std::string& name) const {
    std::ifstream file(scratch_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// The toy pack with every element of one BF16 tensor replaced.
  [[nodiscard]] std::string model_with(const std::string& file, const std::string& tensor, std::uint16_t bits) const {
    artifact::ToyModel model = artifact::ToyModel::load("toy-pack");
    std::string& bytes = model.files.at(file).tensors.at(tensor).bytes;
    for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) std::memcpy(bytes.data() + i, &bits, 2);
    model.write(scratch_ / "model");
    return path("model");
  }

  ScratchDirectory scratch_;
};

TEST_F(Logits, WritesTheRowsOfEveryPosition) {
  const Outcome result = logits({"--ids", path("ids.json"), "--out", path("out"), "--draft"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out + result.err, "");
  const auto file = artifact::SafetensorsFile::open(path("out"));
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 2U);
  for (const artifact::TensorInfo& tensor : file->tensors()) {
    EXPECT_EQ(tensor.dtype, artifact::DType::F32);
    EXPECT_EQ(tensor.shape, (std::vector<std::int64_t>{7, 512})) << tensor.name;
  }
  // Nothing but the arithmetic counts.
  ASSERT_EQ(logits({"--ids", path("ids.json"), "--out", path("again"), "--draft", "--threads", "1"}).exit_code, 0);
  EXPECT_EQ(content("again"), content("out"));
}

TEST_F(Logits, NonFiniteLogitsAreAFailureThatNamesThePlace) {
  // The largest bf16 number as every multiplier of the final norm: the sums overflow.
  const std::string target = model_with("model-00001-of-00002.safetensors",
                                        "language_model.model.hyper_connection_mixer.hc_norm.weight", 0x7f7f);
  const Outcome result = logits({"--ids", path("ids.json"), "--out", path("out")}, target);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("logits: position 0, token id "), std::string::npos) << result.err;
  EXPECT_FALSE(fs::exists(path("out")));

  const std::string draft = model_with("mtp.safetensors", "mtp.hyper_connection_mixer.hc_norm.weight", 0x7f7f);
  const Outcome drafted = logits({"--ids", path("ids.json"), "--out", path("out"), "--draft"}, draft);
  EXPECT_EQ(drafted.exit_code, 1);
  EXPECT_NE(drafted.err.find("mtp_logits: position 0, token id "), std::string::npos) << drafted.err;
  EXPECT_EQ(logits({"--ids", path("ids.json"), "--out", path("out")}, draft).exit_code, 0);
}

TEST_F(Logits, TheInputIsNeverOverwritten) {
  const std::string before = content("ids.json");
  fs::create_symlink("ids.json", scratch_ / "link");
  fs::create_hard_link(scratch_ / "ids.json", scratch_ / "hard");
  for (const std::string& out : {path("ids.json"), path("link"), path("hard"),
                                 path("../") + scratch_.path().filename().string() + "/ids.json"}) {
    const Outcome result = logits({"--ids", path("ids.json"), "--out", out});
    EXPECT_EQ(result.exit_code, 2) << out;
    EXPECT_NE(result.err.find("is the file of --ids"), std::string::npos) << result.err;
    EXPECT_EQ(content("ids.json"), before);
  }
}

TEST_F(Logits, BadInput) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[]", "is empty"},
      {"{}", "not a JSON list"},
      {"[1, 512]", "entry 1"},
      {"[-1]", "entry 0"},
      {"[1.5]", "entry 0"},
      {"[18446744073709551615]", "entry 0"},
      {"[1", "ids.json: not valid JSON"},
  };
  for (const auto& [text, message] : cases) {
    ids(text);
    const Outcome result = logits({"--ids", path("ids.json"), "--out", path("out")});
    EXPECT_EQ(result.exit_code, 1) << text;
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
    EXPECT_FALSE(fs::exists(path("out")));
  }
}

TEST_F(Logits, WrongUsage) {
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"--ids", path("ids.json")},
                                             {"--out", path("out")},
                                             {"--ids", path("ids.json"), "--out", ""},
                                             {"--ids", path("ids.json"), "--out="},
                                             {"--ids", path("ids.json"), "--out", "-"},
                                             {"--ids", "", "--out", path("out")},
                                             {"--ids", path("ids.json"), "--out", path("out"), "--state", "f16"},
                                             {"--ids", path("ids.json"), "--out", path("out"), "-m", "other"}}) {
    const Outcome result = logits(wrong);
    EXPECT_EQ(result.exit_code, 2) << wrong.back() << ": " << result.err;
    EXPECT_FALSE(fs::exists(path("out")));
  }
}

}  // namespace
}  // namespace lockstep::test
