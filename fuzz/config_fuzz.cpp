// Arbitrary bytes as config.json, through everything that reads it before a tensor is looked at.
#include <string_view>

#include "artifact/config.hpp"
#include "artifact/ngram_hash.hpp"
#include "artifact/quantization.hpp"
#include "artifact/runtime_config.hpp"
#include "artifact/tensor_set.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::artifact;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  RuntimeConfig runtime = default_runtime(true);
  static_cast<void>(apply_runtime(text, runtime));
  lockstep::JsonLimits limits;
  limits.max_depth = 32;
  limits.unique_keys = true;
  const auto json = lockstep::parse_json(text, "fuzz", limits);
  if (!json || !json->is_object()) return 0;
  std::vector<std::string> warnings;
  static_cast<void>(QuantizationConfig::parse(*json, warnings));
  static_cast<void>(parse_side_files(*json));
  const auto config = parse_config(*json);
  // A prime search from an arbitrary base is bounded but slow; small bases cover the code.
  if (config && !config->ple_layers.empty() && config->ngram_vocab_base < 100000) {
    static_cast<void>(make_ngram_hash(*config));
  }
  return 0;
}
