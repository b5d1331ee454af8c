#include "artifact/pack.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <set>

#include "artifact/affine_quantiser.hpp"
#include "artifact/model_walk.hpp"
#include "base/sha256.hpp"
#include "toy_model.hpp"

namespace lockstep::artifact {
namespace {

namespace fs = std::filesystem;
const fs::path kSource = LOCKSTEP_TEST_DATA "/toy-hf";

PackOptions options_for(const std::string& recipe) {
  PackOptions options;
  options.recipe = *find_recipe(recipe);
  options.threads = 2;
  return options;
}

std::map<std::string, std::string> contents(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    files[entry.path().filename().string()] = *read_file(entry.path(), 1 << 26);
  }
  return files;
}

std::set<std::string> names_of(const Artifact& artifact) {
  std::set<std::string> names;
  for (const TensorRecord& record : artifact.inventory()) names.insert(record.name);
  return names;
}

/// Largest |packed - source| over the matrix, in steps of its group; 0 for an exact copy.
double worst_steps(const MatrixView& source, const MatrixView& packed) {
  double worst = 0;
  const auto cols = static_cast<std::size_t>(source.cols);
  std::vector<float> a(cols), b(cols), scales(cols);
  for (std::int64_t i = 0; i < source.count; ++i) {
    for (std::int64_t row = 0; row < source.rows; ++row) {
      read_row(source, i, row, a.data());
      read_row(packed, i, row, b.data());
      for (std::size_t c = 0; c < cols; ++c) {
        double step = 1e-30;
        if (packed.quantised) {
          const auto groups = static_cast<std::size_t>(packed.cols / packed.group);
          const std::size_t at =
              static_cast<std::size_t>(i * packed.rows + row) * groups + c / static_cast<std::size_t>(packed.group);
          float scale = 0;
          std::uint16_t bits = 0;
          std::memcpy(&bits, packed.scales + 2 * at, 2);
          const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
          std::memcpy(&scale, &wide, 4);
          step = std::fabs(scale);
        }
        worst = std::max(worst, std::fabs(static_cast<double>(a[c]) - b[c]) / step);
      }
    }
  }
  return worst;
}

class PackRecipes : public testing::TestWithParam<std::string> {};

TEST_P(PackRecipes, RoundTripIsWithinHalfAStep) {
  const Scratch scratch;
  const auto result = write_pack(kSource, scratch / "out", options_for(GetParam()));
  ASSERT_TRUE(result) << result.error().message;
  const auto packed = Artifact::open(scratch / "out"), source = Artifact::open(kSource);
  ASSERT_TRUE(packed && source) << packed.error().message;
  EXPECT_EQ(packed->layout(), Layout::Pack);
  EXPECT_TRUE(packed->warnings().empty()) << testing::PrintToString(packed->warnings());
  const ModelParts a = walk_model(source->view()), b = walk_model(packed->view());
  ASSERT_EQ(a.matrices.size(), b.matrices.size());
  for (std::size_t i = 0; i < a.matrices.size(); ++i) {
    SCOPED_TRACE(a.matrices[i].module);
    EXPECT_LE(worst_steps(*a.matrices[i].matrix, *b.matrices[i].matrix), 0.5001);
  }
  ASSERT_EQ(a.vectors.size(), b.vectors.size());
  for (std::size_t i = 0; i < a.vectors.size(); ++i) {
    SCOPED_TRACE(a.vectors[i].tensor);
    ASSERT_EQ(a.vectors[i].values->size(), b.vectors[i].values->size());
    for (std::size_t j = 0; j < a.vectors[i].values->size(); ++j) {
      const float before = (*a.vectors[i].values)[j], after = (*b.vectors[i].values)[j];
      if (a.vectors[i].kind == VectorKind::Norm) {
        EXPECT_LE(std::fabs(before - after), std::fabs(before) / 256);  // rounded to bf16
      } else {
        EXPECT_EQ(before, after);
      }
    }
  }
  const PleView &before = *source->view().layers[1].ple, &after = *packed->view().layers[1].ple;
  EXPECT_EQ(before.hash.multipliers, after.hash.multipliers);
  EXPECT_EQ(before.hash.sizes, after.hash.sizes);
  EXPECT_EQ(before.hash.offsets, after.hash.offsets);
  for (std::size_t s = 0; s < before.table.shards.size(); ++s) {
    MatrixView part = *after.table.table;
    const std::size_t first = s * static_cast<std::size_t>(before.table.rows_per_shard);
    part.rows = before.table.rows_per_shard;
    part.codes += first * part.code_row_bytes();
    part.scales += first * part.scale_row_bytes();
    part.biases += first * part.scale_row_bytes();
    EXPECT_LE(worst_steps(before.table.shards[s], part), 0.5001);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PackRecipes, testing::ValuesIn(recipe_names()),
                         [](const testing::TestParamInfo<std::string>& recipe) { return recipe.param; });

TEST(Pack, HasTheNamesShapesAndPrecisionsOfThePublishedLayout) {
  const Scratch scratch;
  ASSERT_TRUE(write_pack(kSource, scratch / "out", options_for("bare")));
  const auto packed = Artifact::open(scratch / "out"), golden = Artifact::open(LOCKSTEP_TEST_DATA "/toy-pack");
  ASSERT_TRUE(packed && golden);
  EXPECT_EQ(names_of(*packed), names_of(*golden));
  for (std::size_t i = 0; i < packed->inventory().size(); ++i) {
    const TensorRecord &a = packed->inventory()[i], &b = golden->inventory()[i];
    if (a.name.starts_with("mtp.layers.0.mlp.switch_mlp.down_proj")) continue;  // 2 bits there, 4 by the recipe
    EXPECT_EQ(a.shape, b.shape) << a.name;
    EXPECT_EQ(a.dtype, b.dtype) << a.name;
  }
}

TEST(Pack, BytesDoNotDependOnThreadsShardsOrInterruptions) {
  const Scratch scratch;
  PackOptions options = options_for("bare");
  options.shard_bytes = 300'000;
  ASSERT_TRUE(write_pack(kSource, scratch / "whole", options));
  const auto expected = contents(scratch / "whole");
  std::vector<std::string> shards;
  for (const auto& [name, text] : expected) {
    if (name.starts_with("model-")) shards.push_back(name);
  }
  ASSERT_GT(shards.size(), 4U);
  EXPECT_TRUE(shards.back().ends_with(fmt::format("{:05}-of-{:05}.safetensors", shards.size(), shards.size())));
  EXPECT_FALSE(expected.contains("pack-progress.json"));
  EXPECT_FALSE(fs::exists(scratch / "whole.partial"));

  std::atomic<bool> cancel{false};
  options.threads = 1;
  options.cancel = &cancel;
  options.progress = [&](std::uint64_t done, std::uint64_t total) { cancel = done > total / 2; };
  const auto stopped = write_pack(kSource, scratch / "cut", options);
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().kind, ErrorKind::Cancelled);
  EXPECT_FALSE(fs::exists(scratch / "cut"));
  // What a killed run or a bad disk might leave: a temporary file, a finished one whose size is wrong, and one with
  // wrong bytes in it.
  EXPECT_NE(stopped.error().message.find("cut.partial"), std::string::npos) << stopped.error().message;
  std::string damaged = *read_file((scratch / "cut.partial") / shards[0], 1 << 26);
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
  write_bytes((scratch / "cut.partial") / shards[0], damaged);
  write_bytes(scratch / "cut.partial/model-00009-of-00009.safetensors.tmp-abcdef", "half");
  write_bytes((scratch / "cut.partial") / shards[1], "short");
  options.progress = [](std::uint64_t, std::uint64_t) {};
  std::uint64_t checked = 0, to_check = 0;
  options.checking = [&](std::uint64_t done, std::uint64_t total) {
    checked = done;
    to_check = total;
  };
  cancel = false;
  const auto resumed = write_pack(kSource, scratch / "cut", options);
  ASSERT_TRUE(resumed) << resumed.error().message;
  EXPECT_EQ(resumed->damaged, 1U);
  EXPECT_GT(checked, 0U);
  EXPECT_EQ(checked, to_check);
  EXPECT_GT(resumed->reused, 0U);
  EXPECT_LT(resumed->reused, resumed->files - 1);
  EXPECT_EQ(contents(scratch / "cut"), expected);
}

/// The same checkpoint with experts stored as [E, in, out] gives the same pack.
TEST(Pack, TransposedExpertsGiveTheSameTensors) {
  ToyModel model = ToyModel::load("toy-hf");
  std::vector<std::string> layers{"mtp.layers.0."};
  for (const auto& [name, tensor] : model.files.at("model.safetensors").tensors) {
    const std::size_t end = name.find("mlp.experts.down_proj");
    if (end != std::string::npos && !name.starts_with("mtp.")) layers.push_back(name.substr(0, end));
  }
  ASSERT_GT(layers.size(), 3U);
  const Scratch scratch;
  model.write(scratch / "plain");
  model.transpose_experts(layers);
  model.write(scratch / "transposed");
  for (const std::string& recipe : recipe_names()) {
    ASSERT_TRUE(write_pack(scratch / "plain", scratch / ("a-" + recipe), options_for(recipe)));
    ASSERT_TRUE(write_pack(scratch / "transposed", scratch / ("b-" + recipe), options_for(recipe)));
    const auto a = contents(scratch / ("a-" + recipe)), b = contents(scratch / ("b-" + recipe));
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, text] : a) {
      // mtplx_runtime.json names the source, whose shapes differ.
      EXPECT_EQ(b.at(name) == text, name != "mtplx_runtime.json") << recipe << ": " << name;
    }
  }
}

TEST(Pack, ProgressCountsTheBytesThatAreRead) {
  const Scratch scratch;
  PackOptions options = options_for("bare");
  std::uint64_t last = 0, all = 0, calls = 0;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GE(done, last);
    EXPECT_TRUE(all == 0 || all == total);
    last = done;
    all = total;
    ++calls;
  };
  ASSERT_TRUE(write_pack(kSource, scratch / "out", options));
  EXPECT_EQ(last, all);
  EXPECT_GT(calls, 20U);
  // The source is nothing but these matrices and some small tensors.
  const auto source = fs::file_size(fs::path(kSource) / "model.safetensors");
  EXPECT_LT(all, source);
  EXPECT_GT(all, source * 9 / 10);
}

TEST(Pack, AnotherRecipeDoesNotContinueAnInterruptedRun) {
  const Scratch scratch;
  std::atomic<bool> cancel{false};
  PackOptions options = options_for("bare");
  options.shard_bytes = 300'000;
  options.cancel = &cancel;
  options.progress = [&](std::uint64_t done, std::uint64_t total) { cancel = done > total / 2; };
  ASSERT_FALSE(write_pack(kSource, scratch / "out", options));
  PackOptions other = options_for("quality");
  other.shard_bytes = 300'000;
  const auto result = write_pack(kSource, scratch / "out", other);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->reused, 0U);
  ASSERT_TRUE(write_pack(kSource, scratch / "fresh", other));
  EXPECT_EQ(contents(scratch / "out"), contents(scratch / "fresh"));
}

TEST(Pack, ExistingDestinationsAreSafe) {
  const Scratch scratch;
  const PackOptions options = options_for("bare");
  PackOptions forced = options;
  forced.force = true;
  fs::create_directories(scratch / "letters");
  write_bytes(scratch / "letters/dear.txt", "x");
  EXPECT_FALSE(write_pack(kSource, scratch / "letters", options));
  EXPECT_FALSE(write_pack(kSource, scratch / "letters", forced));
  EXPECT_TRUE(fs::exists(scratch / "letters/dear.txt"));
  ASSERT_TRUE(write_pack(kSource, scratch / "out", options));
  EXPECT_FALSE(write_pack(kSource, scratch / "out", options));
  ASSERT_TRUE(write_pack(kSource, scratch / "out/", forced));
  EXPECT_FALSE(fs::exists(scratch / "out.old"));
  EXPECT_TRUE(Artifact::open(scratch / "out"));
  fs::create_directories(scratch / "strange.partial");
  write_bytes(scratch / "strange.partial/mine.txt", "x");
  EXPECT_FALSE(write_pack(kSource, scratch / "strange", options));
  EXPECT_TRUE(fs::exists(scratch / "strange.partial/mine.txt"));
  fs::create_directories(scratch / "killed.partial");
  write_bytes(scratch / "killed.partial/pack-progress.json.tmp-17-0", "{");
  EXPECT_TRUE(write_pack(kSource, scratch / "killed", options));
  EXPECT_FALSE(fs::exists(scratch / "killed/pack-progress.json.tmp-17-0"));
}

/// A run that was cut after some files.
void cut(const fs::path& destination, PackOptions options) {
  std::atomic<bool> cancel{false};
  options.threads = 1;
  options.cancel = &cancel;
  options.progress = [&](std::uint64_t done, std::uint64_t total) { cancel = done > total / 2; };
  ASSERT_FALSE(write_pack(kSource, destination, options));
}

TEST(Pack, ARecordNamesNothingButFilesOfThePlan) {
  const Scratch scratch;
  PackOptions options = options_for("bare");
  options.shard_bytes = 300'000;
  ASSERT_TRUE(write_pack(kSource, scratch / "whole", options));
  cut(scratch / "cut", options);
  const fs::path partial = scratch / "cut.partial";
  Json record = *parse_json(*read_file(partial / "pack-progress.json", 1 << 20), "record");
  const std::string text = "not of this pack";
  const Json entry = {{"bytes", text.size()}, {"sha256", sha256_hex(text)}};
  for (const char* name : {"extra.safetensors", "config.json", "../outside"}) {
    write_bytes(partial / name, text);
    record["files"][name] = entry;
  }
  // A link with the right bytes behind it is no finished file.
  std::string shard;
  for (const auto& [name, ignored] : record["files"].items()) {
    if (name.starts_with("model-")) shard = name;
  }
  ASSERT_FALSE(shard.empty());
  fs::rename(partial / shard, scratch / "elsewhere");
  fs::create_symlink(scratch / "elsewhere", partial / shard);
  write_bytes(partial / "pack-progress.json", record.dump());
  ASSERT_TRUE(write_pack(kSource, scratch / "cut", options));
  EXPECT_EQ(contents(scratch / "cut"), contents(scratch / "whole"));
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(scratch / "cut" / shard)));
  EXPECT_TRUE(fs::exists(scratch / "outside"));
}

TEST(Pack, ARecordThatCannotBeReadIsSaidToBeThat) {
  const auto refusal = [](const std::function<void(const fs::path&)>& spoil) {
    const Scratch scratch;
    fs::create_directories(scratch / "out.partial");
    spoil(scratch / "out.partial/pack-progress.json");
    const auto refused = write_pack(kSource, scratch / "out", options_for("bare"));
    EXPECT_FALSE(refused);
    EXPECT_TRUE(fs::exists(scratch / "out.partial"));
    return refused ? "" : refused.error().message.substr(scratch.path().string().size());
  };
  const auto says = [&](const std::function<void(const fs::path&)>& spoil, std::string_view part) {
    const std::string message = refusal(spoil);
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find("; remove "), std::string::npos) << message;
  };
  says([](const fs::path& record) { write_bytes(record, std::string((16U << 20) + 1, ' ')); }, "more than the limit");
  says([](const fs::path& record) { fs::create_directory(record); }, "not a regular file");
  says([](const fs::path& record) { ::mkfifo(record.c_str(), 0600); }, "not a regular file");
  says([](const fs::path& record) { write_bytes(record.parent_path() / "mine.txt", "x"); }, "holds no pack-progress");
}

TEST(Pack, ARefusalSaysWhatAnEarlierRunHasLeft) {
  const Scratch scratch;
  PackOptions options = options_for("bare");
  options.shard_bytes = 300'000;
  cut(scratch / "out", options);
  const std::string left = (scratch / "out.partial").string() + " stays";
  const auto missing = write_pack(scratch / "nothing", scratch / "out", options);
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find(left), std::string::npos) << missing.error().message;
  const auto packed = write_pack(LOCKSTEP_TEST_DATA "/toy-pack", scratch / "out/", options);
  ASSERT_FALSE(packed);
  EXPECT_NE(packed.error().message.find(left), std::string::npos) << packed.error().message;
  write_bytes(scratch / "out", "x");
  const auto exists = write_pack(kSource, scratch / "out", options);
  ASSERT_FALSE(exists);
  EXPECT_NE(exists.error().message.find(left), std::string::npos) << exists.error().message;
}

TEST(Pack, NeverOverItsSource) {
  const Scratch scratch;
  fs::create_directories(scratch / "a/b");
  ToyModel::load("toy-hf").write(scratch / "a/b");
  PackOptions options = options_for("bare");
  options.force = true;
  EXPECT_EQ(write_pack(scratch / "a/b", scratch / "a/b", options).error().kind, ErrorKind::Usage);
  EXPECT_EQ(write_pack(scratch / "a/b", scratch / "a", options).error().kind, ErrorKind::Usage);
  EXPECT_EQ(write_pack(scratch / "a/b", scratch / "a/../a/b/", options).error().kind, ErrorKind::Usage);
  EXPECT_TRUE(Artifact::open(scratch / "a/b"));
}

TEST(Pack, UnusableSourcesAreRefused) {
  const Scratch scratch;
  const auto again = write_pack(LOCKSTEP_TEST_DATA "/toy-pack", scratch / "out", options_for("bare"));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().kind, ErrorKind::Unsupported);
  EXPECT_TRUE(again.error().message.starts_with(LOCKSTEP_TEST_DATA "/toy-pack: already quantised"))
      << again.error().message;
  ToyModel model = ToyModel::load("toy-hf");
  model.at("lm_head.weight").bytes[1001] = '\x7f';  // the high byte of an infinity or NaN
  model.at("lm_head.weight").bytes[1000] = '\x80';
  model.write(scratch / "broken");
  const auto broken = write_pack(scratch / "broken", scratch / "out", options_for("bare"));
  ASSERT_FALSE(broken);
  EXPECT_NE(broken.error().message.find("'lm_head.weight': row 3 has a weight that is not finite"), std::string::npos)
      << broken.error().message;
  EXPECT_FALSE(fs::exists(scratch / "out"));
  EXPECT_FALSE(fs::exists(scratch / "out.partial"));
  EXPECT_EQ(write_pack(scratch / "nothing", scratch / "out", options_for("bare")).error().kind, ErrorKind::NotFound);
}

TEST(Pack, WeightsTooLargeForAScaleAreRefused) {
  const Scratch scratch;
  ToyModel model = ToyModel::load("toy-hf");
  std::string& bytes = model.at("lm_head.weight").bytes;
  bytes[1000] = bytes[1002] = '\x7f';  // the greatest bf16 and the least one in the same group
  bytes[1001] = '\x7f';
  bytes[1003] = '\xff';
  model.write(scratch / "huge");
  PackOptions options = options_for("bare");
  const auto whole = write_pack(scratch / "huge", scratch / "out", options);
  ASSERT_FALSE(whole);
  EXPECT_EQ(whole.error().kind, ErrorKind::Invalid);
  EXPECT_NE(whole.error().message.find("'lm_head.weight': row 3 has weights from -3.38953e+38"), std::string::npos)
      << whole.error().message;
  EXPECT_FALSE(fs::exists(scratch / "out.partial"));
  // A group of equal weights that is too large for a step.
  ToyModel equal = ToyModel::load("toy-hf");
  std::string& constant = equal.at("lm_head.weight").bytes;
  for (std::size_t i = 0; i < 512; i += 2) {
    constant[i] = '\x7f';
    constant[i + 1] = '\x7f';
  }
  equal.write(scratch / "equal");
  const auto step = write_pack(scratch / "equal", scratch / "out", options);
  ASSERT_FALSE(step);
  EXPECT_NE(step.error().message.find("too large or too far apart"), std::string::npos) << step.error().message;
  // Finished files stay, and the message says where.
  options.shard_bytes = 300'000;
  const auto cut = write_pack(scratch / "huge", scratch / "out", options);
  ASSERT_FALSE(cut);
  EXPECT_TRUE(fs::exists(scratch / "out.partial"));
  EXPECT_NE(cut.error().message.find("out.partial"), std::string::npos) << cut.error().message;
}

TEST(Pack, ASourceThatShrinksIsNamed) {
  const Scratch scratch;
  ToyModel::load("toy-hf").write(scratch / "source");
  const fs::path file = scratch / "source/model.safetensors";
  const std::uintmax_t size = fs::file_size(file);
  PackOptions options = options_for("bare");
  options.progress = [&](std::uint64_t done, std::uint64_t) {
    if (done > 0 && fs::file_size(file) == size) fs::resize_file(file, size / 3);
  };
  const auto result = write_pack(scratch / "source", scratch / "out", options);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind, ErrorKind::Io);
  EXPECT_TRUE(result.error().message.starts_with(file.string() + ": shrank")) << result.error().message;
  EXPECT_FALSE(fs::exists(scratch / "out"));
  EXPECT_FALSE(fs::exists(scratch / "out.partial"));
}

TEST(Pack, TakesOverTokenizerAndLicences) {
  const Scratch scratch;
  ToyModel model = ToyModel::load("toy-hf");
  model.texts["tokenizer.json"] = "{}";
  model.texts["chat_template.jinja"] = "{{ x }}";
  model.texts["NOTICE"] = "thanks";
  model.texts["LICENSE.txt"] = "free";
  model.texts["generation_config.json"] = R"({"temperature":0.5,"top_k":7,"top_p":"?"})";
  model.texts["README.md"] = "not copied";
  model.write(scratch / "in");
  ASSERT_TRUE(write_pack(scratch / "in", scratch / "out", options_for("optimized")));
  const auto files = contents(scratch / "out");
  for (const char* name :
       {"tokenizer.json", "chat_template.jinja", "NOTICE", "LICENSE.txt", "generation_config.json"}) {
    EXPECT_EQ(files.at(name), model.texts.at(name));
  }
  EXPECT_FALSE(files.contains("README.md"));
  const Json config = *parse_json(files.at("config.json"), "config");
  EXPECT_EQ(config["quantization"], config["quantization_config"]);
  EXPECT_EQ(config["quantization"]["language_model.model.layers.1.ple.key_proj"], false);
  EXPECT_EQ(config["text_config"]["ngram_sidecar"], true);
  EXPECT_EQ(config["mtplx_recipe"]["base"]["group"], 32);
  const Json runtime = *parse_json(files.at("mtplx_runtime.json"), "runtime");
  EXPECT_EQ(runtime["sampler"], (Json{{"temperature", 0.5}, {"top_k", 7}}));
}

TEST(Recipe, GroupsThatDoNotDivideFallBack) {
  EXPECT_EQ(fit_group({4, 64}, 640), (Precision{4, 64}));
  EXPECT_EQ(fit_group({4, 64}, 160), (Precision{4, 32}));
  EXPECT_EQ(fit_group({8, 128}, 192), (Precision{8, 64}));
  EXPECT_EQ(fit_group({4, 64}, 48), std::nullopt);
  EXPECT_EQ(find_recipe("best").error().kind, ErrorKind::Usage);
}

TEST(Pack, TheDemonstrationModelOpens) {
  const auto artifact = Artifact::open(LOCKSTEP_SOURCE_DIR "/models/demo");
  ASSERT_TRUE(artifact) << artifact.error().message;
  EXPECT_TRUE(artifact->warnings().empty());
  EXPECT_TRUE(artifact->view().draft);
}

}  // namespace
}  // namespace lockstep::artifact
