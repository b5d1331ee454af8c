#include "artifact/artifact.hpp"

#include <algorithm>
#include <array>

#include "artifact/config_fields.hpp"
#include "artifact/identity.hpp"
#include "artifact/view_builder.hpp"
#include "base/printable.hpp"
#include "base/sha256.hpp"

namespace lockstep::artifact {

struct Artifact::State {
  std::filesystem::path directory;
  Layout layout = Layout::Official;
  std::optional<TensorSet> tensors;
  std::deque<std::vector<std::byte>> memory;  // transposed experts, a table made on demand
  std::shared_ptr<const void> owner;          // of weights that lie in no file
  MatrixFill fill;                            // of weights that are made on demand
  BuildOutput built;
  std::vector<TensorRecord> inventory;
  std::vector<std::string> ignored, warnings;
  Identity identity;
};

namespace {

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{16} << 20;
constexpr const char* kRuntimeName = "mtplx_runtime.json";

struct Names {
  Layout layout;
  std::string prefix, head;
};

/// The layout is told by the tensors' names, not by config.json.
Result<Names> detect_names(const TensorSet& tensors, bool quantised, const std::filesystem::path& directory) {
  if (tensors.contains("language_model.model.embed_tokens.weight")) {
    return Names{Layout::Pack, "language_model.model.", "language_model.lm_head"};
  }
  if (tensors.contains("model.language_model.embed_tokens.weight")) {
    return Names{Layout::Official, "model.language_model.", "lm_head"};
  }
  // A text-only export. Quantised ones differ in how they store norms, and nothing in the file says how.
  if (tensors.contains("model.embed_tokens.weight") && !quantised) return Names{Layout::Official, "model.", "lm_head"};
  return fail(ErrorKind::Unsupported,
              "{}: neither the official layout (model.language_model.embed_tokens.weight) nor a pack "
              "(language_model.model.embed_tokens.weight)",
              directory.string());
}

/// Tensors that are known not to take part in text inference.
bool ignorable(std::string_view name, bool draft_wanted) {
  constexpr std::array<std::string_view, 4> kVision{"model.visual.", "visual.", "vision_tower.", "model.vision_tower."};
  for (const std::string_view prefix : kVision) {
    if (name.starts_with(prefix)) return true;
  }
  if (!draft_wanted && name.starts_with("mtp.")) return true;
  return name.starts_with("hashstats_") || name.find(".hashstats_") != std::string_view::npos;
}

Status refuse_unused(const TensorSet& tensors, const std::filesystem::path& directory, bool draft_wanted,
                     std::vector<std::string>& ignored) {
  constexpr std::size_t kShown = 4;
  std::vector<std::string> unknown;
  for (std::string& name : tensors.unused()) {
    (ignorable(name, draft_wanted) ? ignored : unknown).push_back(std::move(name));
  }
  if (unknown.empty()) return {};
  std::string list;
  for (std::size_t i = 0; i < std::min(kShown, unknown.size()); ++i) {
    list += fmt::format("{}'{}' in {}", i == 0 ? "" : ", ", unknown[i], tensors.file_of(unknown[i]));
  }
  return fail(ErrorKind::Invalid, "{}: {} tensor{} with no place in the model, so the model is refused: {}{}",
              directory.string(), unknown.size(), unknown.size() == 1 ? "" : "s", list,
              unknown.size() > kShown ? ", ..." : "");
}

Result<Json> read_config(const std::string& file, std::string& sha256) {
  const std::string text = LOCKSTEP_TRY(read_file(file, kMaxConfigBytes));
  sha256 = sha256_hex(text);
  JsonLimits limits;
  limits.max_bytes = kMaxConfigBytes;
  limits.max_depth = 32;
  limits.unique_keys = true;
  Json config = LOCKSTEP_TRY(parse_json(text, file, limits));
  if (!config.is_object()) return fail(ErrorKind::Invalid, "{}: not a JSON object", file);
  return config;
}

/// Side files that config.json does not name, under their usual names.
Status find_side_files(const std::filesystem::path& directory, SideFiles& side) {
  const auto find = [&](std::optional<std::string>& file, const char* name) -> Status {
    if (!file && LOCKSTEP_TRY(file_present(directory / name))) file = name;
    return {};
  };
  LOCKSTEP_TRY(find(side.draft, "mtp.safetensors"));
  LOCKSTEP_TRY(find(side.ngram, "ngram-table.safetensors"));
  return find(side.vision, "model-vision.safetensors");
}

Result<RuntimeConfig> read_runtime(const std::filesystem::path& directory, Layout layout, std::string& sha256) {
  RuntimeConfig runtime = default_runtime(layout == Layout::Pack);
  const auto text = read_file(directory / kRuntimeName, std::uint64_t{1} << 20);
  if (!text) {
    if (text.error().kind == ErrorKind::NotFound) return runtime;
    return tl::unexpected(text.error());
  }
  sha256 = sha256_hex(*text);
  LOCKSTEP_TRY(apply_runtime(*text, runtime, (directory / kRuntimeName).string()));
  return runtime;
}

/// Entries of `quantization` for modules that have no tensor here, as a misspelt name gives.
void note_absent(const QuantizationConfig& quantization, const TensorSet& tensors, const std::string& file,
                 bool draft_wanted, std::vector<std::string>& warnings) {
  std::vector<std::string> absent = quantization.modules();
  std::erase_if(absent, [&](const std::string& module) {
    return tensors.contains(module) || tensors.any_with_prefix(module + ".") || ignorable(module + ".", draft_wanted);
  });
  if (absent.empty()) return;
  warnings.push_back(fmt::format("{}: quantization has entries for {} modules that are not there (first: {})", file,
                                 absent.size(), printable(absent.front(), 100)));
}

void note_oddities(const ModelConfig& config, const std::vector<std::string>& unlisted,
                   std::vector<std::string>& warnings) {
  for (const std::string& field : config.ignored_fields) {
    warnings.push_back(fmt::format("{}: field {} is not known and was ignored", config.file, brief(field)));
  }
  if (!unlisted.empty()) {
    warnings.push_back(
        fmt::format("{}: quantization has no entry for {} quantised modules (first: {}); their precision was read from "
                    "the tensors' shapes",
                    config.file, unlisted.size(), unlisted.front()));
  }
}

}  // namespace

Artifact::Artifact(std::unique_ptr<State> state) : state_(std::move(state)) {}
Artifact::Artifact(Artifact&&) noexcept = default;
Artifact& Artifact::operator=(Artifact&&) noexcept = default;
Artifact::~Artifact() = default;

Result<Artifact> Artifact::open(const std::filesystem::path& directory) {
  Artifact artifact = LOCKSTEP_TRY(open_shapes(directory));
  artifact.make_ready();
  return artifact;
}

Result<Artifact> Artifact::open_shapes(const std::filesystem::path& directory) {
  auto state = std::make_unique<State>();
  state->directory = directory;
  const std::string file = (directory / "config.json").string();
  const Json config = LOCKSTEP_TRY(read_config(file, state->identity.config_sha256));
  state->built.view.config = LOCKSTEP_TRY(parse_config(config, file));
  const QuantizationConfig quantization = LOCKSTEP_TRY(QuantizationConfig::parse(config, state->warnings, file));
  SideFiles side = LOCKSTEP_TRY(parse_side_files(config, file));
  LOCKSTEP_TRY(find_side_files(directory, side));
  state->tensors = LOCKSTEP_TRY(TensorSet::open(directory, side, state->warnings));
  const Names names = LOCKSTEP_TRY(detect_names(*state->tensors, quantization.present(), directory));
  state->layout = names.layout;
  const RuntimeConfig runtime = LOCKSTEP_TRY(read_runtime(directory, names.layout, state->identity.runtime_sha256));

  ModuleReader reader(*state->tensors, quantization);
  const bool draft_wanted = state->built.view.config.draft_layers > 0;
  const Status built = build_view({reader, names.layout, names.prefix, names.head, runtime, side}, state->built);
  LOCKSTEP_TRY(state->tensors->intact());  // vectors have been read
  LOCKSTEP_TRY(built);
  LOCKSTEP_TRY(refuse_unused(*state->tensors, directory, draft_wanted, state->ignored));
  note_absent(quantization, *state->tensors, file, draft_wanted, state->warnings);
  note_oddities(state->built.view.config, reader.unlisted(), state->warnings);
  state->warnings.insert(state->warnings.end(), state->built.warnings.begin(), state->built.warnings.end());
  state->inventory = state->tensors->inventory();
  state->identity.inventory_sha256 = inventory_sha256(state->inventory);
  return Artifact(std::move(state));
}

Artifact Artifact::from_memory(ModelView view, std::shared_ptr<const void> owner, const std::string& name) {
  auto state = std::make_unique<State>();
  state->directory = name;
  state->layout = Layout::Pack;
  state->owner = std::move(owner);
  state->built.view = std::move(view);
  state->identity.config_sha256 = sha256_hex(name);
  state->identity.inventory_sha256 = inventory_sha256(state->inventory);
  return Artifact(std::move(state));
}

Artifact Artifact::on_demand(ModelView shapes, MatrixFill fill, const std::string& name) {
  Artifact artifact = from_memory(std::move(shapes), nullptr, name);
  artifact.state_->fill = std::move(fill);
  return artifact;
}

void Artifact::make_ready() {
  transpose_experts(state_->built.transposed, state_->memory);
  state_->built.transposed.clear();
  if (!state_->fill) return;
  for (LayerView& layer : state_->built.view.layers) {
    if (!layer.ple || !layer.ple->table.table) continue;
    MatrixView& table = *layer.ple->table.table;
    if (!table.has_data()) table = state_->fill(table, state_->memory.emplace_back());
  }
}

MatrixView Artifact::readable(const MatrixView& view, std::vector<std::byte>& memory) const {
  if (state_->fill && !view.has_data()) return state_->fill(view, memory);
  for (const TransposedExperts& job : state_->built.transposed) {
    const auto at = std::find(job.views.begin(), job.views.end(), &view);
    if (at == job.views.end()) continue;
    MatrixView copy = view;
    memory = transpose_part(job, static_cast<std::size_t>(at - job.views.begin()), copy);
    copy.data = memory.data();
    return copy;
  }
  return view;
}

std::uint64_t Artifact::transposed_bytes() const {
  std::uint64_t bytes = 0;
  for (const std::vector<std::byte>& copy : state_->memory) bytes += copy.size();
  for (const TransposedExperts& job : state_->built.transposed) {
    bytes += static_cast<std::uint64_t>(job.count * job.in * job.out) * dtype_size(job.dtype);
  }
  return bytes;
}

std::string Artifact::file_of(std::string_view tensor) const {
  return state_->tensors ? state_->tensors->file_of(tensor) : "";
}

const std::filesystem::path& Artifact::directory() const {
  return state_->directory;
}
Layout Artifact::layout() const {
  return state_->layout;
}
Status Artifact::intact() const {
  return watch()();
}
std::function<Status()> Artifact::watch() const {
  return [state = state_.get()]() -> Status { return state->tensors ? state->tensors->intact() : Status{}; };
}
void Artifact::release_pages() const noexcept {
  if (state_->tensors) state_->tensors->release_pages();
}
const ModelView& Artifact::view() const {
  return state_->built.view;
}
const std::vector<TensorRecord>& Artifact::inventory() const {
  return state_->inventory;
}
const std::vector<std::string>& Artifact::ignored() const {
  return state_->ignored;
}
const std::vector<std::string>& Artifact::warnings() const {
  return state_->warnings;
}
const Identity& Artifact::identity() const {
  return state_->identity;
}

}  // namespace lockstep::artifact
