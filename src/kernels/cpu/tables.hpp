// The tables that are compiled in, by namespace; dispatch.cpp knows which of them this machine can run.
#pragma once

#include "kernels/cpu/kernels.hpp"

namespace lockstep::kernels {

namespace scalar {
const Kernels& table();
}
namespace scalar_v3 {
const Kernels& table();
}
namespace scalar_v4 {
const Kernels& table();
}
namespace avx2 {
const Kernels& table();
}
namespace avx512 {
const Kernels& table();
}
namespace amx {
const Kernels& table();
}

}  // namespace lockstep::kernels
