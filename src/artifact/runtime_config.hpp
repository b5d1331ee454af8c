// What mtplx_runtime.json says about how the tensors are to be read. docs/artifact.md lists the fields.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace lockstep::artifact {

enum class NormLayout : std::uint8_t {
  ZeroCentred,         ///< files store w, the multiplier is 1 + w
  PlusOne,             ///< files store 1 + w
  PlusOneExceptPreFc,  ///< 1 + w, but mtp.pre_fc_norm_* store w
};

struct RuntimeConfig {
  NormLayout trunk_norms, draft_norms;
  bool hidden_norm_per_stream = false;
};

/// Defaults of the official layout (everything zero-centred) and of a pack.
[[nodiscard]] RuntimeConfig default_runtime(bool pack);

/// Applies trunk_norm_layout, mtp_norm_layout and mtp_hidden_norm; other fields describe other programs and are
/// ignored. `text` is the whole file. Errors: Invalid, Unsupported for an unknown value.
/// `file` is the path that errors name.
Status apply_runtime(std::string_view text, RuntimeConfig& runtime, const std::string& file = "mtplx_runtime.json");

}  // namespace lockstep::artifact
