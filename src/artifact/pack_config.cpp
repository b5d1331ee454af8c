#include "artifact/pack_config.hpp"

#include <algorithm>
#include <array>

#include "base/file.hpp"

namespace lockstep::artifact {
namespace {

constexpr std::uint64_t kMaxTextBytes = std::uint64_t{16} << 20;

std::string dump(const OrderedJson& json) {
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

OrderedJson entry_json(Precision precision) {
  return {{"bits", precision.bits}, {"group_size", precision.group}, {"mode", "affine"}};
}

/// Every module with its precision, false for those kept dense. The n-gram table describes itself.
OrderedJson quantization_json(const Recipe& recipe, const PackPlan& plan) {
  OrderedJson json = entry_json(recipe.base);
  for (const PlannedFile& file : plan.files) {
    for (const PlannedMatrix& matrix : file.matrices) {
      if (!matrix.parts.empty()) continue;
      json[matrix.module] = matrix.precision ? entry_json(*matrix.precision) : OrderedJson(false);
    }
  }
  return json;
}

bool has_file(const PackPlan& plan, std::string_view name) {
  return std::any_of(plan.files.begin(), plan.files.end(), [&](const PlannedFile& file) { return file.name == name; });
}

/// temperature, top_p and top_k of generation_config.json, where they are numbers.
OrderedJson sampler_json(const std::filesystem::path& directory) {
  OrderedJson sampler = OrderedJson::object();
  const auto text = read_file(directory / "generation_config.json", std::uint64_t{1} << 20);
  const auto json = text ? parse_json(*text, "generation_config.json") : fail(ErrorKind::NotFound, "absent");
  if (!json || !json->is_object()) return sampler;
  for (const char* key : {"temperature", "top_p", "top_k"}) {
    const auto found = json->find(key);
    if (found != json->end() && found->is_number()) sampler[key] = *found;
  }
  return sampler;
}

}  // namespace

std::string pack_config_text(OrderedJson config, const Recipe& recipe, const PackPlan& plan) {
  OrderedJson& inner = config.contains("text_config") ? config["text_config"] : config;
  OrderedJson extra = OrderedJson::object();
  if (has_file(plan, "mtp.safetensors")) extra["mtp_file"] = "mtp.safetensors";
  if (has_file(plan, "ngram-table.safetensors")) {
    extra["ngram_file"] = "ngram-table.safetensors";
    inner["ngram_sidecar"] = true;
  }
  config["quantization"] = quantization_json(recipe, plan);
  config["quantization_config"] = config["quantization"];
  config["mlx_lm_extra_tensors"] = extra;
  config["mtplx_recipe"] = recipe_json(recipe);
  return dump(config);
}

Result<std::string> pack_config_text(const Artifact& source, const Recipe& recipe, const PackPlan& plan) {
  const std::string text = LOCKSTEP_TRY(read_file(source.directory() / "config.json", kMaxTextBytes));
  OrderedJson config = LOCKSTEP_TRY(parse_ordered_json(text, (source.directory() / "config.json").string()));
  return pack_config_text(std::move(config), recipe, plan);
}

std::string pack_index_text(const PackPlan& plan) {
  std::map<std::string, std::string> map;
  std::uint64_t total = 0;
  for (const PlannedFile& file : plan.files) {
    if (!file.indexed) continue;
    total += file.data_bytes();
    for (const SafetensorsWriter::Entry& entry : file.entries()) map[entry.name] = file.name;
  }
  return dump({{"metadata", {{"total_size", total}}}, {"weight_map", map}});
}

std::string pack_runtime_text(const Artifact& source, const Recipe& recipe) {
  const ModelView& view = source.view();
  OrderedJson json{{"arch_id", "qwen4-exp-mtp"},
                   {"recommended_generation_mode", view.draft ? "mtp" : "ar"},
                   {"sampler", sampler_json(source.directory())},
                   {"trunk_norm_layout", "plus_one"},
                   {"mtp_norm_layout", "plus_one_except_pre_fc"}};
  if (view.draft) {
    json["mtp_depth_max"] = 3;
    json["mtp_hidden_norm"] = view.draft->norm_hidden_groups == 1 ? "joint" : "per_stream";
  }
  json["forge_provenance"] = {{"source_format", "hf-bf16"},
                              {"source_config_sha256", source.identity().config_sha256},
                              {"source_inventory_sha256", source.identity().inventory_sha256},
                              {"forge_recipe", recipe.name}};
  return dump(json);
}

Result<std::vector<std::string>> copied_files(const std::filesystem::path& directory) {
  constexpr std::array<std::string_view, 11> kNames{"tokenizer.json",
                                                    "tokenizer_config.json",
                                                    "generation_config.json",
                                                    "chat_template.jinja",
                                                    "chat_template.json",
                                                    "merges.txt",
                                                    "vocab.json",
                                                    "special_tokens_map.json",
                                                    "added_tokens.json",
                                                    "preprocessor_config.json",
                                                    "video_preprocessor_config.json"};
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    const bool wanted = std::find(kNames.begin(), kNames.end(), name) != kNames.end() || name.starts_with("LICENSE") ||
                        name.starts_with("NOTICE");
    std::error_code kind_error;
    if (!wanted) continue;
    LOCKSTEP_TRY(file_present(it->path()));  // no link that leads nowhere
    if (it->is_regular_file(kind_error)) names.push_back(std::move(name));
  }
  if (error) return fail(ErrorKind::Io, "{}: cannot list: {}", directory.string(), error.message());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace lockstep::artifact
