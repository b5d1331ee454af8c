// Geometries of synthetic models: config.json documents that no checkpoint has to exist for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"
#include "base/result.hpp"

namespace lockstep::artifact {

/// The named geometries:
///   toy         4 layers of width 128 with the demo tokenizer's vocabulary; about 5 MB
///   mid         the published layers, 12 of them (9 GDN, 3 attention), 64 experts, a small n-gram table; about 4 GB
///   flash-next  the published model
[[nodiscard]] const std::vector<std::string>& synth_geometry_names();

/// The config.json of a named geometry, or that of a file when `name` is none of them. Errors: Usage (neither a name
/// nor a file), and those of reading a JSON file.
Result<OrderedJson> synth_geometry(const std::string& name);

}  // namespace lockstep::artifact
