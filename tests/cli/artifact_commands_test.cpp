// `lockstep inspect`, `lockstep pack` and `lockstep synth`, seen from outside.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/json.hpp"
#include "cli/process.hpp"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

class ArtifactCommands : public testing::Test {
 protected:
  ArtifactCommands() {
    std::string name = (fs::temp_directory_path() / "lockstep-cli-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot create a temporary directory");
    directory_ = name;
  }
  ~ArtifactCommands() override {
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
  }
  [[nodiscard]] std::string path(const std::string& name) const { return (directory_ / name).string(); }

  const std::string source_ = LOCKSTEP_TEST_DATA "/toy-hf";
  fs::path directory_;
};

TEST_F(ArtifactCommands, InspectPrintsTheModel) {
  const Outcome result = run_lockstep({"inspect", source_});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* part : {"official layout", "Geometry", "experts", "n-gram table", "Identity", "decoded token"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part;
  }
}

TEST_F(ArtifactCommands, InspectPrintsJsonWithHashes) {
  const Outcome result = run_lockstep({"inspect", "--json", "--hash", "-m", LOCKSTEP_TEST_DATA "/toy-pack"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto json = parse_json(result.out, "output");
  ASSERT_TRUE(json) << json.error().message;
  EXPECT_EQ(json->at("layout"), "pack");
  EXPECT_EQ(json->at("geometry").at("experts"), 8);
  EXPECT_EQ(json->at("files").size(), 9U);
  std::uint64_t bytes = 0;
  for (const Json& family : json->at("families")) bytes += family.at("bytes").get<std::uint64_t>();
  EXPECT_EQ(json->at("bytes"), bytes);
}

TEST_F(ArtifactCommands, InspectSaysWhatIsWrong) {
  std::ofstream(path("config.json")) << "{";
  const Outcome result = run_lockstep({"inspect", directory_.string()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("config.json"), std::string::npos) << result.err;
  const Outcome missing = run_lockstep({"inspect", path("none")});
  EXPECT_EQ(std::count(missing.err.begin(), missing.err.end(), '\n'), 1) << missing.err;
  EXPECT_EQ(missing.err.find("model '"), missing.err.rfind("model '")) << missing.err;
}

TEST_F(ArtifactCommands, PackMakesAModelThatInspects) {
  const Outcome packed = run_lockstep({"pack", source_, path("out"), "--recipe", "optimized", "--threads", "1"});
  EXPECT_EQ(packed.exit_code, 0) << packed.err;
  const Outcome inspected = run_lockstep({"inspect", path("out")});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_NE(inspected.out.find("pack layout"), std::string::npos);
  EXPECT_NE(inspected.out.find("4-bit g32"), std::string::npos);
  const Outcome again = run_lockstep({"pack", source_, path("out")});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_NE(again.err.find("--force"), std::string::npos) << again.err;
}

TEST_F(ArtifactCommands, SynthLeavesNothingWhenTheDiskIsFull) {
  // Files of at most 100 KB: what a write then meets is an error of the disk.
  Command command;
  command.arguments = {"/bin/bash", "-c", "ulimit -f 100; exec \"$0\" synth --tokenizer none \"$1\"", LOCKSTEP_BINARY,
                       path("full")};
  const Outcome result = run_process(command);
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_FALSE(fs::exists(path("full")));
  EXPECT_FALSE(fs::exists(path("full.partial"))) << result.err;
}

TEST_F(ArtifactCommands, PackUsage) {
  EXPECT_EQ(run_lockstep({"pack", source_}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"pack", source_, path("out"), "--recipe", "best"}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"pack", source_, path("out"), "--threads", "-1"}).exit_code, 2);
  for (const std::vector<std::string>& empty : {std::vector<std::string>{source_, ""}, {"", path("out")}}) {
    const Outcome result = run_lockstep({"pack", empty[0], empty[1]});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.err.find(": the value is empty"), std::string::npos) << result.err;
  }
  EXPECT_EQ(run_lockstep({"inspect", ""}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"pack", path("none"), path("out")}).exit_code, 1);
  EXPECT_FALSE(fs::exists(path("out")));
  EXPECT_FALSE(fs::exists(path("out.partial")));
}

TEST_F(ArtifactCommands, SynthMakesAModelThatRuns) {
  const Outcome made = run_lockstep({"synth", "--seed", "7", "--json", path("model")});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  const auto json = parse_json(made.out, "output");
  ASSERT_TRUE(json) << json.error().message;
  EXPECT_EQ(json->at("geometry"), "toy");
  EXPECT_EQ(json->at("seed"), 7);
  EXPECT_GT(json->at("bytes").get<std::uint64_t>(), 1'000'000U);
  const Outcome ran = run_lockstep({"run", "-m", path("model"), "--seed", "1", "--max-tokens", "4", "-p", "hello"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(run_lockstep({"synth", path("model")}).exit_code, 1);
  EXPECT_EQ(run_lockstep({"synth", "--force", "--recipe", "quality", path("model")}).exit_code, 0);
  EXPECT_NE(run_lockstep({"inspect", path("model")}).out.find("8-bit g64"), std::string::npos);
}

TEST_F(ArtifactCommands, SynthUsage) {
  EXPECT_EQ(run_lockstep({"synth"}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"synth", ""}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"synth", "--in-memory"}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"synth", "--in-memory", "--device", "gpu"}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"synth", "--in-memory", "--device", "cuda", path("model")}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"synth", "--in-memory", "--device", "cuda", "--force"}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"synth", "--device", "cuda", path("model")}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"synth", "--geometry", "huge", path("model")}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"synth", "--seed", "-1", path("model")}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"synth", "--tokenizer", path("none"), path("model")}).exit_code, 1);
  EXPECT_FALSE(fs::exists(path("model")));
  EXPECT_FALSE(fs::exists(path("model.partial")));
}

}  // namespace
}  // namespace lockstep::test
