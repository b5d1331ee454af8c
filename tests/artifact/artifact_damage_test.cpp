// Model directories that are wrong in one place each.
#include <gtest/gtest.h>

#include <cstring>

#include "artifact/artifact.hpp"
#include "toy_model.hpp"

namespace lockstep::artifact {
namespace {

const std::string kHfLayer = "model.language_model.layers.";

std::string message(const Result<Artifact>& artifact) {
  return artifact ? "opened" : artifact.error().message;
}

struct Damage {
  const char* name;
  const char* model;
  void (*apply)(ToyModel&);
  const char* message;
};

class ArtifactDamage : public testing::TestWithParam<Damage> {};

TEST_P(ArtifactDamage, IsRefusedWithReason) {
  ToyModel model = ToyModel::load(GetParam().model);
  GetParam().apply(model);
  const Scratch scratch;
  const auto artifact = model.open(scratch);
  ASSERT_FALSE(artifact);
  EXPECT_NE(message(artifact).find(GetParam().message), std::string::npos) << message(artifact);
}

void set_index(ToyModel& model, const std::string& tensor, const Json& file) {
  Json index = *parse_json(model.texts.at("model.safetensors.index.json"), "index");
  if (file.is_null()) {
    index["weight_map"].erase(tensor);
  } else {
    index["weight_map"][tensor] = file;
  }
  model.texts["model.safetensors.index.json"] = index.dump();
}

void set_index_metadata(ToyModel& model, const Json& metadata) {
  Json index = *parse_json(model.texts.at("model.safetensors.index.json"), "index");
  index["metadata"] = metadata;
  model.texts["model.safetensors.index.json"] = index.dump();
}

void set_i64(ToyTensor& tensor, std::size_t index, std::int64_t value) {
  std::memcpy(tensor.bytes.data() + 8 * index, &value, 8);
}

const std::vector<Damage>& damages() {
  static const std::vector<Damage> list{
      Damage{"WrongShape", "toy-hf",
             [](ToyModel& m) {
               m.at("lm_head.weight").shape = {128, 512};
             },
             "expected [512, 128]"},
      Damage{"WrongRank", "toy-hf", [](ToyModel& m) { m.at("lm_head.weight").shape = {65536}; }, "expected [512, 128]"},
      Damage{"WrongType", "toy-hf",
             [](ToyModel& m) {
               auto& tensor = m.at("lm_head.weight");
               tensor.dtype = DType::U8;
               tensor.bytes.resize(512 * 128);
             },
             "element type U8"},
      Damage{"Fp8Weight", "toy-hf",
             [](ToyModel& m) {
               auto& tensor = m.at("lm_head.weight");
               tensor.dtype = DType::F8E4M3;
               tensor.bytes.resize(512 * 128);
             },
             "BF16 release"},
      Damage{"IntegerNorm", "toy-hf",
             [](ToyModel& m) {
               auto& tensor = m.at("mtp.pre_fc_norm_embedding.weight");
               tensor.dtype = DType::I32;
               tensor.bytes.resize(512);
             },
             "element type I32"},
      Damage{"InfiniteNorm", "toy-hf",
             [](ToyModel& m) {
               m.at("mtp.pre_fc_norm_embedding.weight").bytes[1] = '\x7f';
               m.at("mtp.pre_fc_norm_embedding.weight").bytes[0] = '\x80';
             },
             "not finite"},
      Damage{"HashOfWrongType", "toy-hf",
             [](ToyModel& m) {
               auto& tensor = m.at(kHfLayer + "1.ple.ple_embedding.layer_multipliers");
               tensor.dtype = DType::F32;
               tensor.bytes.resize(12);
             },
             "expected I64 [3]"},
      Damage{"HashNegative", "toy-hf",
             [](ToyModel& m) { set_i64(m.at(kHfLayer + "1.ple.ple_embedding.layer_multipliers"), 0, -1); }, "negative"},
      Damage{"HashBeyondTheTable", "toy-hf",
             [](ToyModel& m) { set_i64(m.at(kHfLayer + "1.ple.ple_embedding.ngram_heads_offsets"), 3, 4039); },
             "addresses rows"},
      Damage{"HashPartlyMissing", "toy-hf",
             [](ToyModel& m) { m.erase(kHfLayer + "1.ple.ple_embedding.ngram_heads_offsets"); }, "ngram_heads_offsets"},
      Damage{"ShardShape", "toy-hf",
             [](ToyModel& m) {
               m.at(kHfLayer + "1.ple.ple_embedding.ngram_embedding.shard_2.weight").shape = {505, 64};
             },
             "shard_2"},
      Damage{"ExpertsShape", "toy-hf",
             [](ToyModel& m) {
               m.at(kHfLayer + "0.mlp.experts.down_proj").shape = {16, 64, 64};
             },
             "experts.down_proj"},
      Damage{"NoLayout", "toy-hf", [](ToyModel& m) { m.erase("model.language_model.embed_tokens.weight"); },
             "neither the official layout"},
      Damage{"CodesNotU32", "toy-pack", [](ToyModel& m) { m.at("language_model.lm_head.weight").dtype = DType::I32; },
             "expected U32"},
      Damage{"CodeShape", "toy-pack",
             [](ToyModel& m) {
               m.at("language_model.lm_head.weight").shape = {16, 512};
             },
             "does not hold"},
      Damage{"CodeBits", "toy-pack",
             [](ToyModel& m) {
               auto& tensor = m.at("language_model.lm_head.weight");
               tensor.shape = {512, 28};
               tensor.bytes.resize(512 * 28 * 4);
             },
             "does not hold"},
      Damage{"ScaleShape", "toy-pack",
             [](ToyModel& m) {
               m.at("language_model.lm_head.scales").shape = {1024, 1};
             },
             "does not divide"},
      Damage{"ScaleGroup", "toy-pack",
             [](ToyModel& m) {
               for (const char* n : {"scales", "biases"}) {
                 auto& tensor = m.at(std::string("language_model.lm_head.") + n);
                 tensor.shape = {512, 8};
                 tensor.bytes.resize(512 * 16);
               }
             },
             "does not divide"},
      Damage{"ScaleType", "toy-pack",
             [](ToyModel& m) {
               auto& tensor = m.at("language_model.lm_head.scales");
               tensor.dtype = DType::U8;
               tensor.bytes.resize(1024);
             },
             "no float"},
      Damage{"BiasType", "toy-pack",
             [](ToyModel& m) {
               auto& tensor = m.at("language_model.lm_head.biases");
               tensor.dtype = DType::F16;
             },
             "differs from the scales"},
      Damage{"ConfigSaysOtherBits", "toy-pack",
             [](ToyModel& m) {
               m.config["quantization"]["language_model.lm_head"]["bits"] = 8;
               m.config["quantization_config"] = m.config["quantization"];
             },
             "is 8-bit group 64 here"},
      Damage{"ConfigSaysDense", "toy-pack",
             [](ToyModel& m) { m.config["quantization"]["language_model.lm_head"] = false; }, "is dense here"},
      Damage{"ConfigSaysQuantised", "toy-pack",
             [](ToyModel& m) {
               m.config["quantization"]["language_model.model.layers.1.ple.key_proj"] =
                   Json{{"bits", 4}, {"group_size", 64}};
             },
             "here and dense by its tensors"},
      Damage{"ConfigMode", "toy-pack", [](ToyModel& m) { m.config["quantization"]["mode"] = "mxfp4"; },
             "only \"affine\""},
      Damage{"ConfigEntryIsText", "toy-pack", [](ToyModel& m) { m.config["quantization"]["x"] = "y"; },
             "neither an object"},
      Damage{"ConfigEntryIsNull", "toy-pack", [](ToyModel& m) { m.config["quantization"]["x"] = nullptr; },
             "neither an object"},
      Damage{"ConfigSevenBits", "toy-pack", [](ToyModel& m) { m.config["quantization"]["bits"] = 7; }, "supported are"},
      Damage{"Fp8Config", "toy-hf",
             [](ToyModel& m) {
               m.config["quantization_config"] = {{"quant_method", "fp8"}};
             },
             "\"fp8\" is not supported"},
      Damage{"SideFileEscapes", "toy-pack",
             [](ToyModel& m) { m.config["mlx_lm_extra_tensors"]["mtp_file"] = "../mtp.safetensors"; },
             "plain .safetensors file name"},
      Damage{"SideFileIsHidden", "toy-pack",
             [](ToyModel& m) { m.config["mlx_lm_extra_tensors"]["mtp_file"] = ".safetensors"; },
             "plain .safetensors file name"},
      Damage{"SideFileUnknown", "toy-pack",
             [](ToyModel& m) { m.config["mlx_lm_extra_tensors"]["x"] = "y.safetensors"; }, "unknown field"},
      Damage{"SideFileMissing", "toy-pack",
             [](ToyModel& m) { m.config["mlx_lm_extra_tensors"]["mtp_file"] = "other.safetensors"; },
             "other.safetensors"},
      Damage{"NgramMetadataLies", "toy-pack",
             [](ToyModel& m) { m.files.at("ngram-table.safetensors").metadata["rows"] = "4041"; }, "metadata rows"},
      Damage{"IndexEscapes", "toy-pack",
             [](ToyModel& m) { set_index(m, "language_model.lm_head.weight", "../x.safetensors"); },
             "plain .safetensors file name"},
      Damage{"IndexNamesNoFile", "toy-pack",
             [](ToyModel& m) { set_index(m, "language_model.lm_head.weight", "x.safetensors"); }, "x.safetensors"},
      Damage{"IndexNamesOtherFile", "toy-pack",
             [](ToyModel& m) { set_index(m, "language_model.lm_head.weight", "model-00002-of-00002.safetensors"); },
             "as the index says"},
      Damage{"IndexNamesNoTensor", "toy-pack",
             [](ToyModel& m) { set_index(m, "ghost", "model-00002-of-00002.safetensors"); }, "'ghost'"},
      Damage{"IndexLacksATensor", "toy-pack",
             [](ToyModel& m) { set_index(m, "language_model.lm_head.weight", nullptr); },
             "is missing in model.safetensors.index.json"},
      Damage{"IndexSizeIsNegative", "toy-pack",
             [](ToyModel& m) {
               set_index_metadata(m, {{"total_size", -5}});
             },
             "metadata.total_size is -5, not a number of bytes"},
      Damage{"IndexSizeIsHuge", "toy-pack",
             [](ToyModel& m) {
               set_index_metadata(m, {{"total_size", 1e300}});
             },
             "metadata.total_size is 1e+300, not a number of bytes"},
      Damage{"IndexMetadataIsText", "toy-pack", [](ToyModel& m) { set_index_metadata(m, "x"); },
             "metadata is \"x\", no object"},
      Damage{"IndexIsList", "toy-pack", [](ToyModel& m) { m.texts["model.safetensors.index.json"] = "[]"; },
             "weight_map"},
      Damage{"TensorInTwoFiles", "toy-pack",
             [](ToyModel& m) {
               m.texts.erase("model.safetensors.index.json");
               m.files.at("mtp.safetensors").tensors["language_model.lm_head.weight"] =
                   m.at("language_model.lm_head.weight");
             },
             "is also in"},
      Damage{"NoModelFiles", "toy-hf", [](ToyModel& m) { m.files.clear(); }, "is this a model directory"}};
  return list;
}

INSTANTIATE_TEST_SUITE_P(All, ArtifactDamage, testing::ValuesIn(damages()),
                         [](const testing::TestParamInfo<Damage>& damage) { return std::string(damage.param.name); });

}  // namespace
}  // namespace lockstep::artifact
