#pragma once

#include "artifact/model_view.hpp"
#include "kernels/element_type.hpp"

namespace lockstep::backend {

/// The kernels' name of a stored floating-point type; `type` is F32, F16 or BF16 (checked when a model is opened).
[[nodiscard]] inline kernels::ElementType element_type(artifact::DType type) {
  switch (type) {
    case artifact::DType::F32:
      return kernels::ElementType::F32;
    case artifact::DType::F16:
      return kernels::ElementType::F16;
    default:
      return kernels::ElementType::BF16;
  }
}

}  // namespace lockstep::backend
