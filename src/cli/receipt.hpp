// What `lockstep verify` reports: a table for people, a receipt for programs, and the verdict as an exit code.
#pragma once

#include <optional>
#include <string>

#include "artifact/artifact.hpp"
#include "base/json.hpp"
#include "base/result.hpp"
#include "decode/gates.hpp"
#include "text/tokenizer.hpp"

namespace lockstep::cli {

/// The receipt (docs/cli.md, "Verification"). `tokenizer` gives the digests of texts; without one there are none.
[[nodiscard]] OrderedJson verify_receipt(const artifact::Artifact& artifact, const decode::GateOptions& options,
                                         const decode::GateReport& report, const text::Tokenizer* tokenizer);

/// Gates, differences and lanes.
[[nodiscard]] std::string verify_table(const decode::GateReport& report);

/// Success, or an error that becomes exit code 1, with the first difference.
[[nodiscard]] Status verify_verdict(const decode::GateReport& report);

}  // namespace lockstep::cli
