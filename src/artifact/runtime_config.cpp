#include "artifact/runtime_config.hpp"

#include "artifact/config_fields.hpp"

namespace lockstep::artifact {
namespace {

Status read_layout(Fields& fields, std::string_view key, bool draft, NormLayout& layout) {
  const Json* value = fields.find(key);
  if (value == nullptr) return {};
  if (*value == "plus_one") {
    layout = NormLayout::PlusOne;
  } else if (*value == "zero_centered") {
    layout = NormLayout::ZeroCentred;
  } else if (draft && *value == "plus_one_except_pre_fc") {
    layout = NormLayout::PlusOneExceptPreFc;
  } else {
    return fail(ErrorKind::Unsupported, "{}: {} {} is not known; a wrong guess would spoil every result silently",
                fields.what(), key, brief(*value));
  }
  return {};
}

}  // namespace

RuntimeConfig default_runtime(bool pack) {
  if (pack) return {NormLayout::PlusOne, NormLayout::PlusOneExceptPreFc, false};
  return {NormLayout::ZeroCentred, NormLayout::ZeroCentred, false};
}

Status apply_runtime(std::string_view text, RuntimeConfig& runtime, const std::string& file) {
  JsonLimits limits;
  limits.max_bytes = std::size_t{1} << 20;
  limits.max_depth = 32;
  limits.unique_keys = true;
  const Json json = LOCKSTEP_TRY(parse_json(text, file, limits));
  Fields fields = LOCKSTEP_TRY(Fields::of(json, file));
  LOCKSTEP_TRY(read_layout(fields, "trunk_norm_layout", false, runtime.trunk_norms));
  LOCKSTEP_TRY(read_layout(fields, "mtp_norm_layout", true, runtime.draft_norms));
  const Json* hidden = fields.find("mtp_hidden_norm");
  if (hidden == nullptr) return {};
  if (*hidden != "joint" && *hidden != "per_stream") {
    return fail(ErrorKind::Unsupported, "{}: mtp_hidden_norm {} is neither \"joint\" nor \"per_stream\"", file,
                brief(*hidden));
  }
  runtime.hidden_norm_per_stream = *hidden == "per_stream";
  return {};
}

}  // namespace lockstep::artifact
