#include "artifact/artifact.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "artifact/identity.hpp"
#include "artifact/module_reader.hpp"
#include "base/sha256.hpp"
#include "numerics/bits.hpp"
#include "toy_model.hpp"

namespace lockstep::artifact {
namespace {

const std::string kHfLayer = "model.language_model.layers.";
const std::string kPackLayer = "language_model.model.layers.";

std::string message(const Result<Artifact>& artifact) {
  return artifact ? "opened" : artifact.error().message;
}

bool has_warning(const Artifact& artifact, std::string_view part) {
  return std::any_of(artifact.warnings().begin(), artifact.warnings().end(),
                     [&](const std::string& warning) { return warning.find(part) != std::string::npos; });
}

float bf16_at(const std::string& bytes, std::size_t index) {
  std::uint16_t value = 0;
  std::memcpy(&value, bytes.data() + 2 * index, 2);
  return numerics::bf16_to_float(value);
}

TEST(Artifact, OpensTheOfficialLayout) {
  const auto artifact = Artifact::open(LOCKSTEP_TEST_DATA "/toy-hf");
  ASSERT_TRUE(artifact) << message(artifact);
  EXPECT_EQ(artifact->layout(), Layout::Official);
  EXPECT_TRUE(artifact->warnings().empty()) << testing::PrintToString(artifact->warnings());
  EXPECT_TRUE(artifact->ignored().empty());
  const ModelView& view = artifact->view();
  ASSERT_EQ(view.layers.size(), 4U);
  EXPECT_FALSE(view.embedding.quantised);
  EXPECT_EQ(view.embedding.rows, 512);
  EXPECT_TRUE(view.layers[1].ple && view.layers[1].linear && view.layers[3].attention && view.draft);
  EXPECT_FALSE(view.layers[0].ple || view.layers[0].attention || view.layers[3].linear);
  EXPECT_FALSE(view.mixer.inject);
  const MoeView& moe = view.layers[0].moe;
  EXPECT_EQ(moe.gate.count, 8);
  EXPECT_EQ(moe.gate.matrix_stride, 2U * 64 * 128 * 2);
  EXPECT_EQ(moe.up.data, moe.gate.data + 64 * 128 * 2);
  EXPECT_EQ(moe.down.matrix_stride, 128U * 64 * 2);
  const NgramTableView& table = view.layers[1].ple->table;
  EXPECT_FALSE(table.table);
  EXPECT_EQ(table.shards.size(), 4U);
  EXPECT_EQ(table.rows, 4040);
  EXPECT_EQ(table.rows_per_shard, 1010);
  EXPECT_EQ(table.dim, 32);
}

TEST(Artifact, WarnsOfWhatDoesNotFitButDoesNoHarm) {
  ToyModel model = ToyModel::load("toy-pack");
  Json index = *parse_json(model.texts.at("model.safetensors.index.json"), "index");
  index["metadata"]["total_size"] = 17;
  model.texts["model.safetensors.index.json"] = index.dump();
  for (const char* section : {"quantization", "quantization_config"}) {
    model.config[section]["language_model.model.layers.0.mlp.switch_mpl.up_proj"] = {{"bits", 4}, {"group_size", 64}};
    model.config[section]["language_model.model.layers.99.mlp.gate"] = false;
    model.config[section]["vision_tower.blocks.0.attn.qkv"] = false;
  }
  const Scratch scratch;
  model.write(scratch.path());
  const auto artifact = Artifact::open(scratch.path());
  ASSERT_TRUE(artifact) << message(artifact);
  EXPECT_EQ(artifact->warnings().size(), 2U) << testing::PrintToString(artifact->warnings());
  EXPECT_TRUE(has_warning(*artifact, "metadata.total_size is 17, but the tensors have "));
  EXPECT_TRUE(has_warning(*artifact,
                          "config.json: quantization has entries for 2 modules that are not there (first: "
                          "language_model.model.layers.0.mlp.switch_mpl.up_proj)"))
      << testing::PrintToString(artifact->warnings());
}

TEST(Artifact, OpensAPack) {
  const auto artifact = Artifact::open(LOCKSTEP_TEST_DATA "/toy-pack");
  ASSERT_TRUE(artifact) << message(artifact);
  EXPECT_EQ(artifact->layout(), Layout::Pack);
  EXPECT_TRUE(artifact->warnings().empty()) << testing::PrintToString(artifact->warnings());
  const ModelView& view = artifact->view();
  EXPECT_TRUE(view.embedding.quantised);
  EXPECT_EQ(view.embedding.bits, 4);
  EXPECT_EQ(view.embedding.group, 64);
  EXPECT_EQ(view.layers[0].moe.router.bits, 8);
  EXPECT_EQ(view.layers[0].moe.down.count, 8);
  EXPECT_EQ(view.layers[3].attention->index_qk.bits, 8);
  EXPECT_EQ(view.draft->layer.moe.gate.group, 32);
  EXPECT_EQ(view.draft->layer.moe.down.bits, 2);
  EXPECT_EQ(view.draft->norm_hidden_groups, 1);
  EXPECT_FALSE(view.layers[0].attention_site.down.quantised);
  EXPECT_EQ(view.layers[2].linear->conv.size(), 320U * 4);
}

TEST(Artifact, NormsAreEffectiveMultipliers) {
  ToyModel hf = ToyModel::load("toy-hf"), pack = ToyModel::load("toy-pack");
  const auto official = Artifact::open(LOCKSTEP_TEST_DATA "/toy-hf"),
             packed = Artifact::open(LOCKSTEP_TEST_DATA "/toy-pack");
  ASSERT_TRUE(official && packed);
  const std::string norm = "3.self_attn.q_norm.weight", plain = "0.linear_attn.norm.weight";
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(official->view().layers[3].attention->q_norm[i], 1.0F + bf16_at(hf.at(kHfLayer + norm).bytes, i));
    EXPECT_EQ(packed->view().layers[3].attention->q_norm[i], bf16_at(pack.at(kPackLayer + norm).bytes, i));
    EXPECT_EQ(official->view().layers[0].linear->norm[i], bf16_at(hf.at(kHfLayer + plain).bytes, i));
    EXPECT_EQ(packed->view().layers[0].linear->norm[i], bf16_at(pack.at(kPackLayer + plain).bytes, i));
    EXPECT_EQ(official->view().draft->norm_hidden[i], 1.0F + bf16_at(hf.at("mtp.pre_fc_norm_hidden.weight").bytes, i));
    EXPECT_EQ(packed->view().draft->norm_hidden[i], 1.0F + bf16_at(pack.at("mtp.pre_fc_norm_hidden.weight").bytes, i));
    EXPECT_EQ(packed->view().draft->mixer.norm[i],
              bf16_at(pack.at("mtp.hyper_connection_mixer.hc_norm.weight").bytes, i));
  }
}

TEST(Artifact, RuntimeFileSaysHowNormsAreStored) {
  ToyModel pack = ToyModel::load("toy-pack");
  const auto open_with = [&](const std::string& runtime) {
    const Scratch scratch;
    pack.texts["mtplx_runtime.json"] = runtime;
    return pack.open(scratch);
  };
  const float stored = bf16_at(pack.at(kPackLayer + "3.self_attn.q_norm.weight").bytes, 0);
  const float hidden = bf16_at(pack.at("mtp.pre_fc_norm_hidden.weight").bytes, 0);
  const auto zero =
      open_with(R"({"trunk_norm_layout":"zero_centered","mtp_norm_layout":"plus_one","mtp_hidden_norm":"per_stream"})");
  ASSERT_TRUE(zero) << message(zero);
  EXPECT_EQ(zero->view().layers[3].attention->q_norm[0], 1.0F + stored);
  EXPECT_EQ(zero->view().draft->norm_hidden[0], hidden);
  EXPECT_EQ(zero->view().draft->norm_hidden_groups, 4);
  EXPECT_FALSE(open_with(R"({"trunk_norm_layout":"other"})"));
  EXPECT_FALSE(open_with(R"({"trunk_norm_layout":"plus_one_except_pre_fc"})"));
  EXPECT_FALSE(open_with(R"({"mtp_norm_layout":7})"));
  EXPECT_FALSE(open_with(R"({"mtp_hidden_norm":true})"));
  EXPECT_FALSE(open_with("[]"));
  EXPECT_FALSE(open_with("{"));
  pack.texts.erase("mtplx_runtime.json");
  const Scratch scratch;
  const auto none = pack.open(scratch);
  ASSERT_TRUE(none) << message(none);
  EXPECT_TRUE(none->identity().runtime_sha256.empty());
}

TEST(Artifact, PlanesOfTheNgramTableCanBeReadFromItsFile) {
  const auto artifact = Artifact::open(LOCKSTEP_TEST_DATA "/toy-pack");
  ASSERT_TRUE(artifact);
  const NgramTableView& table = artifact->view().layers[1].ple->table;
  ASSERT_TRUE(table.table);
  EXPECT_TRUE(table.shards.empty());
  const auto bytes = read_file(table.files.at(0).path, 1 << 24);
  ASSERT_TRUE(bytes);
  const MatrixView& view = *table.table;
  const auto same = [&](std::uint64_t offset, const std::byte* plane, std::size_t row_bytes) {
    return std::memcmp(bytes->data() + offset, plane, row_bytes * static_cast<std::size_t>(table.rows)) == 0;
  };
  EXPECT_TRUE(same(table.files[0].codes, view.codes, view.code_row_bytes()));
  EXPECT_TRUE(same(table.files[0].scales, view.scales, view.scale_row_bytes()));
  EXPECT_TRUE(same(table.files[0].biases, view.biases, view.scale_row_bytes()));
}

TEST(Artifact, ShardsOfTheNgramTableCanBeReadFromTheirFiles) {
  const auto artifact = Artifact::open(LOCKSTEP_TEST_DATA "/toy-hf");
  ASSERT_TRUE(artifact);
  const NgramTableView& table = artifact->view().layers[1].ple->table;
  ASSERT_EQ(table.files.size(), table.shards.size());
  for (std::size_t i = 0; i < table.shards.size(); ++i) {
    const auto bytes = read_file(table.files[i].path, 1 << 24);
    ASSERT_TRUE(bytes);
    const std::size_t size = static_cast<std::size_t>(table.rows_per_shard * table.dim) * 2;
    EXPECT_EQ(std::memcmp(bytes->data() + table.files[i].codes, table.shards[i].data, size), 0) << "shard " << i;
  }
}

TEST(Artifact, DenseNgramTableInASideFile) {
  ToyModel pack = ToyModel::load("toy-pack");
  ToyFile& file = pack.files.at("ngram-table.safetensors");
  file.tensors = {{"ngram.weight", {DType::BF16, {4040, 32}, std::string(4040 * 64, '\1')}}};
  file.metadata["ngram_bits"] = "0";
  const Scratch scratch;
  const auto artifact = pack.open(scratch);
  ASSERT_TRUE(artifact) << message(artifact);
  EXPECT_FALSE(artifact->view().layers[1].ple->table.table->quantised);
}

TEST(Artifact, EveryMissingTensorIsNamed) {
  for (const std::string model_name : {"toy-hf", "toy-pack"}) {
    ToyModel model = ToyModel::load(model_name);
    model.texts.erase("model.safetensors.index.json");
    const Scratch scratch;
    model.write(scratch.path());
    for (auto& [file_name, file] : model.files) {
      for (const auto& [name, tensor] : ToyFile(file).tensors) {
        // Without scales a module is dense, without codes it is missing: either way the open must fail.
        SCOPED_TRACE(name);
        ToyModel changed;
        changed.config = model.config;
        changed.files[file_name] = file;
        changed.files[file_name].tensors.erase(name);
        changed.write(scratch.path());
        const auto artifact = Artifact::open(scratch.path());
        EXPECT_FALSE(artifact);
        if (artifact) continue;
        const std::string module = name.substr(0, name.rfind('.'));
        EXPECT_NE(artifact.error().message.find(module), std::string::npos) << artifact.error().message;
      }
      ToyModel restored;
      restored.config = model.config;
      restored.files[file_name] = file;
      restored.write(scratch.path());
    }
    ASSERT_TRUE(Artifact::open(scratch.path()));
  }
}

TEST(Artifact, UnknownTensorsAreRefusedAndKnownStrangersIgnored) {
  ToyModel model = ToyModel::load("toy-hf");
  const ToyTensor small{DType::F32, {1}, std::string(4, '\0')};
  auto& tensors = model.files.at("model.safetensors").tensors;
  tensors["model.visual.blocks.0.attn.qkv.weight"] = small;
  tensors[kHfLayer + "1.ple.ple_embedding.hashstats_hits"] = small;
  {
    const Scratch scratch;
    const auto artifact = model.open(scratch);
    ASSERT_TRUE(artifact) << message(artifact);
    EXPECT_EQ(artifact->ignored().size(), 2U);
  }
  tensors["model.language_model.norm.weight"] = small;
  const Scratch scratch;
  const auto artifact = model.open(scratch);
  ASSERT_FALSE(artifact);
  EXPECT_NE(message(artifact).find("model.language_model.norm.weight"), std::string::npos) << message(artifact);
}

void set_i64(ToyTensor& tensor, std::size_t index, std::int64_t value) {
  std::memcpy(tensor.bytes.data() + 8 * index, &value, 8);
}

TEST(Artifact, MissingPartsThatAreFine) {
  {
    ToyModel model = ToyModel::load("toy-hf");
    std::erase_if(model.files.at("model.safetensors").tensors,
                  [](const auto& entry) { return entry.first.starts_with("mtp."); });
    const Scratch scratch;
    const auto artifact = model.open(scratch);
    ASSERT_TRUE(artifact) << message(artifact);
    EXPECT_FALSE(artifact->view().draft);
    EXPECT_EQ(artifact->config().draft_layers, 0);
    EXPECT_TRUE(has_warning(*artifact, "drafting is not available"));
  }
  {
    ToyModel model = ToyModel::load("toy-hf");
    model.config["text_config"]["mtp_num_hidden_layers"] = 0;
    model.config["text_config"].erase("mtp");
    const Scratch scratch;
    const auto artifact = model.open(scratch);
    ASSERT_TRUE(artifact) << message(artifact);
    EXPECT_FALSE(artifact->view().draft);
    EXPECT_FALSE(artifact->ignored().empty());
  }
  {
    ToyModel model = ToyModel::load("toy-hf");
    for (const char* name : {"layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"}) {
      model.erase(kHfLayer + "1.ple.ple_embedding." + name);
    }
    const Scratch scratch;
    const auto artifact = model.open(scratch), stored = Artifact::open(LOCKSTEP_TEST_DATA "/toy-hf");
    ASSERT_TRUE(artifact && stored) << message(artifact);
    EXPECT_EQ(artifact->view().layers[1].ple->hash.multipliers, stored->view().layers[1].ple->hash.multipliers);
    EXPECT_EQ(artifact->view().layers[1].ple->hash.offsets, stored->view().layers[1].ple->hash.offsets);
  }
}

TEST(Artifact, StoredHashConstantsWinWithAWarning) {
  ToyModel model = ToyModel::load("toy-hf");
  set_i64(model.at(kHfLayer + "1.ple.ple_embedding.layer_multipliers"), 1, 12345);
  const Scratch scratch;
  const auto artifact = model.open(scratch);
  ASSERT_TRUE(artifact) << message(artifact);
  EXPECT_EQ(artifact->view().layers[1].ple->hash.multipliers[1], 12345U);
  EXPECT_TRUE(has_warning(*artifact, "layer_multipliers"));
}

TEST(Artifact, ModulesWithoutAnEntryFollowTheirShapes) {
  ToyModel model = ToyModel::load("toy-pack");
  for (const char* key : {"quantization", "quantization_config"}) {
    std::erase_if(model.config[key].get_ref<Json::object_t&>(),
                  [](const auto& entry) { return entry.first.starts_with("mtp."); });
  }
  const Scratch scratch;
  const auto artifact = model.open(scratch);
  ASSERT_TRUE(artifact) << message(artifact);
  EXPECT_TRUE(has_warning(*artifact, "read from the tensors' shapes"));
  EXPECT_EQ(artifact->view().draft->layer.moe.down.bits, 2);
}

/// Every supported precision of one module, in a pack whose config.json does not list it.
TEST(Artifact, EveryPrecisionIsToldByItsShapes) {
  ToyModel model = ToyModel::load("toy-pack");
  const std::string module = "language_model.lm_head";
  for (const char* key : {"quantization", "quantization_config"}) model.config[key].erase(module);
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group : {32, 64, 128}) {
      SCOPED_TRACE(testing::Message() << bits << " bits, group " << group);
      const std::int64_t words = 128 * bits / 32, groups = 128 / group;
      model.at(module + ".weight") = {
          DType::U32, {512, words}, std::string(static_cast<std::size_t>(512 * words * 4), '\1')};
      for (const char* plane : {".scales", ".biases"}) {
        model.at(module + plane) = {
            DType::BF16, {512, groups}, std::string(static_cast<std::size_t>(512 * groups * 2), '\1')};
      }
      const Scratch scratch;
      const auto artifact = model.open(scratch);
      ASSERT_TRUE(artifact) << message(artifact);
      EXPECT_EQ(artifact->view().head.bits, bits);
      EXPECT_EQ(artifact->view().head.group, group);
    }
  }
}

/// Experts stored as [E, in, out] must give the same matrices as [E, out, in].
TEST(Artifact, TransposedExpertsAreRecognised) {
  ToyModel model = ToyModel::load("toy-hf");
  model.transpose_experts({kHfLayer + "2.", "mtp.layers.0."});
  const Scratch scratch;
  const auto changed = model.open(scratch), original = Artifact::open(LOCKSTEP_TEST_DATA "/toy-hf");
  const auto shapes = Artifact::open_shapes(scratch.path());
  ASSERT_TRUE(shapes);
  ASSERT_TRUE(changed && original) << message(changed);
  const auto same = [](const MatrixView& a, const MatrixView& b) {
    bool equal = a.count == b.count && a.rows == b.rows && a.cols == b.cols;
    for (std::int64_t e = 0; equal && e < a.count; ++e) {
      const auto i = static_cast<std::size_t>(e);
      equal = std::memcmp(a.data + i * a.matrix_stride, b.data + i * b.matrix_stride,
                          static_cast<std::size_t>(a.rows * a.cols) * 2) == 0;
    }
    return equal;
  };
  for (const auto& [a, b] : {std::pair(&changed->view().layers[2].moe, &original->view().layers[2].moe),
                             std::pair(&changed->view().draft->layer.moe, &original->view().draft->layer.moe)}) {
    EXPECT_TRUE(same(a->gate, b->gate));
    EXPECT_TRUE(same(a->up, b->up));
    EXPECT_TRUE(same(a->down, b->down));
  }
  // One matrix at a time, for those that read each once.
  const MoeView &bare = shapes->view().layers[2].moe, &full = original->view().layers[2].moe;
  for (const auto& [a, b] : {std::pair(&bare.gate, &full.gate), {&bare.up, &full.up}, {&bare.down, &full.down}}) {
    std::vector<std::byte> memory;
    EXPECT_TRUE(same(shapes->readable(*a, memory), *b));
    EXPECT_FALSE(memory.empty());
  }
}

TEST(Artifact, TextOnlyExportsAreOfficial) {
  ToyModel model = ToyModel::load("toy-hf");
  ToyFile& file = model.files.at("model.safetensors");
  std::map<std::string, ToyTensor> renamed;
  const std::string prefix = "model.language_model.";
  for (auto& [name, tensor] : file.tensors) {
    renamed[name.starts_with(prefix) ? "model." + name.substr(prefix.size()) : name] = tensor;
  }
  file.tensors = std::move(renamed);
  Json text = model.config["text_config"];
  text["architectures"] = {"Qwen4ExpForCausalLM"};
  model.config = text;
  const Scratch scratch;
  const auto artifact = model.open(scratch);
  ASSERT_TRUE(artifact) << message(artifact);
  EXPECT_EQ(artifact->layout(), Layout::Official);
}

TEST(Artifact, IdentityIsAFunctionOfTheFiles) {
  const auto artifact = Artifact::open(LOCKSTEP_TEST_DATA "/toy-pack");
  ASSERT_TRUE(artifact);
  EXPECT_EQ(artifact->identity().config_sha256,
            sha256_hex(*read_file(LOCKSTEP_TEST_DATA "/toy-pack/config.json", 1 << 20)));
  EXPECT_EQ(artifact->identity().runtime_sha256,
            sha256_hex(*read_file(LOCKSTEP_TEST_DATA "/toy-pack/mtplx_runtime.json", 1 << 20)));
  std::string lines;
  for (const TensorRecord& record : artifact->inventory()) {
    lines += record.name + " " + dtype_name(record.dtype) + " " + shape_text(record.shape) + "\n";
  }
  EXPECT_NE(lines.find("ngram.scales BF16 [4040, 1]\n"), std::string::npos);
  EXPECT_EQ(artifact->identity().inventory_sha256, sha256_hex(lines));
  std::uint64_t progress = 0;
  const auto hashes = hash_files(*artifact, [&](std::uint64_t bytes) {
    progress += bytes;
    return true;
  });
  ASSERT_TRUE(hashes);
  const auto ended = hash_files(*artifact, [](std::uint64_t) { return false; });
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().kind, ErrorKind::Cancelled);
  EXPECT_EQ(hashes->size(), 9U);  // every file of the directory
  EXPECT_EQ(progress, *hashed_bytes(*artifact));
  for (const FileHash& hash : *hashes) {
    EXPECT_EQ(hash.sha256, sha256_hex(*read_file(artifact->directory() / hash.file, 1 << 24))) << hash.file;
  }
}

TEST(Artifact, MissingDirectoryAndConfig) {
  EXPECT_EQ(Artifact::open("/nonexistent").error().kind, ErrorKind::NotFound);
  const Scratch scratch;
  EXPECT_EQ(Artifact::open(scratch.path()).error().kind, ErrorKind::NotFound);
  write_bytes(scratch / "config.json", "[1]");
  EXPECT_EQ(Artifact::open(scratch.path()).error().kind, ErrorKind::Invalid);
}

}  // namespace
}  // namespace lockstep::artifact
