#include "artifact/quantization.hpp"

#include "artifact/config_fields.hpp"

namespace lockstep::artifact {
namespace {

Result<Precision> read_precision(Fields& fields) {
  Precision precision;
  precision.bits = static_cast<int>(LOCKSTEP_TRY(fields.integer("bits", 1, 32)));
  precision.group = static_cast<int>(LOCKSTEP_TRY(fields.integer("group_size", 1, 65536)));
  LOCKSTEP_TRY(fields.expect("mode", "affine"));
  if (!supported_bits(precision.bits) || !supported_group(precision.group)) {
    return fail(ErrorKind::Unsupported,
                "{}: {} bits in groups of {}; supported are 2, 3, 4, 5, 6, 8 bits in 32, 64, 128", fields.what(),
                precision.bits, precision.group);
  }
  return precision;
}

std::string describe(std::optional<Precision> precision) {
  return precision ? fmt::format("{}-bit group {}", precision->bits, precision->group) : "dense";
}

}  // namespace

bool supported_bits(std::int64_t bits) {
  return (bits >= 2 && bits <= 6) || bits == 8;
}
bool supported_group(std::int64_t group) {
  return group == 32 || group == 64 || group == 128;
}

Result<QuantizationConfig> QuantizationConfig::parse(const Json& config, std::vector<std::string>& warnings,
                                                     const std::string& file) {
  QuantizationConfig result;
  result.file_ = file;
  const Json* section = nullptr;
  std::string what;
  for (const char* key : {"quantization", "quantization_config"}) {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null()) continue;
    if (section == nullptr) {
      section = &*found;
      what = fmt::format("{}: {}", file, key);
    } else if (*section != *found) {
      warnings.push_back(fmt::format("{}: quantization and quantization_config differ; quantization is used", file));
    }
  }
  if (section == nullptr) return result;
  Fields fields = LOCKSTEP_TRY(Fields::of(*section, what));
  if (const Json* method = fields.find("quant_method")) {
    return fail(ErrorKind::Unsupported, "{}: method {} is not supported; use the BF16 release or a pack", what,
                brief(*method));
  }
  result.present_ = true;
  result.default_ = LOCKSTEP_TRY(read_precision(fields));
  for (const std::string& module : fields.unknown()) {
    const Json& entry = fields.object().at(module);
    std::optional<Precision> precision;
    if (entry.is_object()) {
      Fields own = LOCKSTEP_TRY(Fields::of(entry, fmt::format("{}: {}", what, module)));
      precision = LOCKSTEP_TRY(read_precision(own));
    } else if (entry.is_boolean()) {
      if (entry.get<bool>()) precision = result.default_;
    } else {
      return fail(ErrorKind::Invalid, "{}: {} is {}, neither an object nor false", what, module, brief(entry));
    }
    result.entries_.emplace(module, precision);
  }
  return result;
}

std::vector<std::string> QuantizationConfig::modules() const {
  std::vector<std::string> names;
  for (const auto& [name, ignored] : entries_) names.push_back(name);
  return names;
}

Status QuantizationConfig::check(std::string_view module, std::optional<Precision> real,
                                 std::vector<std::string>& unlisted) const {
  const auto entry = entries_.find(module);
  if (entry != entries_.end()) {
    if (entry->second == real) return {};
    return fail(ErrorKind::Invalid, "{}: quantization: module '{}' is {} here and {} by its tensors", file_, module,
                describe(entry->second), describe(real));
  }
  if (real && (!present_ || *real != default_)) unlisted.emplace_back(module);
  return {};
}

}  // namespace lockstep::artifact
