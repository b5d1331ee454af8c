// A look at the numbers of a quantised matrix before it is used.
#pragma once

#include "artifact/model_view.hpp"
#include "base/result.hpp"

namespace lockstep::artifact {

/// 2^(128 - bits): a finite scale below it gives finite weights with every code of so many bits.
[[nodiscard]] float scale_limit(int bits);

/// Check that every scale of an affine matrix is finite and below its scale_limit(), and that every bias is finite: one
/// sequential pass over that plane, a fraction of the matrix. One that is not would make every product with its row
/// NaN. Dense matrices are not looked at: their numbers are all there is to read, and a wrong one shows as logits that
/// are not finite. Errors: Invalid, naming tensor and position.
Status check_scales(const MatrixView& matrix);
Status check_biases(const MatrixView& matrix);

}  // namespace lockstep::artifact
