// The pieces of a synthetic model, built from a geometry alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "artifact/model_view.hpp"
#include "base/result.hpp"

namespace lockstep::artifact {

/// Makes the stack of `count` matrices [rows, cols] that has this module name in a pack. The n-gram table is "ngram".
using MatrixMaker = std::function<Result<MatrixView>(const std::string& module, std::int64_t count, std::int64_t rows,
                                                     std::int64_t cols)>;

/// The matrix as a dense bf16 shape without data: enough to plan files.
Result<MatrixView> matrix_shape(const std::string& module, std::int64_t count, std::int64_t rows, std::int64_t cols);

/// A whole model: matrices from `maker`, vectors from (seed, name) with values that a pack stores without loss, hash
/// constants as computed. Norm multipliers lie within 1 +- 12/128, convolutions have unit gain, GDN heads forget within
/// a few to some thousand tokens. Errors: those of `maker`, Limit (n-gram table).
Result<ModelView> synth_view(const ModelConfig& config, std::uint64_t seed, const MatrixMaker& maker);

}  // namespace lockstep::artifact
