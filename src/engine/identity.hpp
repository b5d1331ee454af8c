// What kept states belong to.
#pragma once

#include <string>

#include "artifact/artifact.hpp"

namespace lockstep::engine {

/// SHA-256 over the hashes of configuration and inventory and over name, size and time of change of every file with
/// weights. Reading all weights at every start would take minutes, so a file that was changed without any of these
/// changing is not noticed; a copied model with new times starts with an empty bank. Errors: Io.
Result<std::string> model_identity(const artifact::Artifact& artifact);

}  // namespace lockstep::engine
