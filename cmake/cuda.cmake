# The CUDA part: kernels by nvcc, linked with the static runtime, so that one program runs with and without a driver.
# Without it backend/cuda_stub is linked instead of backend/cuda; no source asks which.
set(LOCKSTEP_HAS_CUDA FALSE)
if(LOCKSTEP_CUDA STREQUAL "AUTO")
  find_program(LOCKSTEP_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(LOCKSTEP_NVCC AND NOT LOCKSTEP_SANITIZE)
    set(LOCKSTEP_HAS_CUDA TRUE)
    set(CMAKE_CUDA_COMPILER ${LOCKSTEP_NVCC})
  endif()
elseif(LOCKSTEP_CUDA)
  set(LOCKSTEP_HAS_CUDA TRUE)
endif()
if(LOCKSTEP_HAS_CUDA)
  # Machine code for Hopper; later devices compile the PTX when they load it.
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  if(CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
  endif()
  enable_language(CUDA)
  # CMake before 3.26 does not know that newer compilers take C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
  endif()
  find_package(CUDAToolkit REQUIRED)
endif()
message(STATUS "CUDA backend: ${LOCKSTEP_HAS_CUDA}")

function(lockstep_cuda_kernels)
  if(NOT LOCKSTEP_HAS_CUDA)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/cuda/*.cu)
  add_library(lockstep_kernels_cuda OBJECT ${sources})
  target_include_directories(lockstep_kernels_cuda PRIVATE ${PROJECT_SOURCE_DIR}/src)
  # The canon's flags (docs/numerics.md N1).
  target_compile_options(lockstep_kernels_cuda PRIVATE
    -O3 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true --expt-relaxed-constexpr
    -Werror=all-warnings -Xcompiler=-ffp-contract=off,-Wall,-Wextra
    -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_80,code=compute_80)
  target_sources(lockstep_kernels PRIVATE $<TARGET_OBJECTS:lockstep_kernels_cuda>)
  target_link_libraries(lockstep_kernels PRIVATE CUDA::cudart_static)
endfunction()
