// A look at the numbers of a quantised matrix before it is used.
#pragma once

#include "artifact/model_view.hpp"
#include "base/result.hpp"

namespace lockstep::artifact {

/// Checks that every scale and bias of an affine matrix is finite: one sequential pass over those two planes, a
/// fraction of the matrix. One that is not would make every product with its row NaN. Dense matrices are not looked at:
/// their numbers are all there is to read, and a wrong one shows as logits that are not finite. Errors: Invalid, naming
/// tensor and position.
Status check_finite(const MatrixView& matrix);

}  // namespace lockstep::artifact
