# Warnings, arithmetic flags and sanitizers common to every target.
function(lockstep_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast
                                           -Woverloaded-virtual -Werror)
  # The canon (docs/numerics.md N1): no contraction that the source does not write, no fast-math. Nothing
  # reads errno or the exception flags; without the latter's semantics, loops with comparisons can be vectorised.
  target_compile_options(${target} PRIVATE -ffp-contract=off -fno-math-errno -fno-trapping-math)
  if(LOCKSTEP_SANITIZE)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # g++ 12 sees uninitialised reads in instrumented library headers (std::regex, std::function) that are none.
      target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
      # Boost.Asio's fences, which the thread sanitizer does not model.
      if(LOCKSTEP_SANITIZE MATCHES thread)
        target_compile_options(${target} PRIVATE -Wno-tsan)
      endif()
    endif()
    target_compile_options(${target} PRIVATE -fsanitize=${LOCKSTEP_SANITIZE} -fno-sanitize-recover=all
                                             -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${LOCKSTEP_SANITIZE})
  endif()
endfunction()

# lockstep_headers_once(TARGET FIRST HEADER...): with LOCKSTEP_PCH, parses what nearly every file includes once. Targets that
# name the same FIRST, which must have called this before, share what was parsed for it. Half of the time of a test's file
# goes into these headers.
function(lockstep_headers_once target first)
  if(NOT LOCKSTEP_PCH)
    return()
  endif()
  if(NOT target STREQUAL first)
    target_precompile_headers(${target} REUSE_FROM ${first})
    return()
  endif()
  target_precompile_headers(${target} PRIVATE <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <cstdint>
    <cstring> <filesystem> <fstream> <functional> <map> <memory> <mutex> <optional> <random> <set> <span> <string>
    <string_view> <thread> <utility> <vector> <fmt/format.h> <nlohmann/json.hpp> <tl/expected.hpp> ${ARGN})
endfunction()

# lockstep_layer(NAME DEPENDS ...): the static library lockstep_NAME from every .cpp under src/NAME.
function(lockstep_layer name)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/src/kernels/cpu/(scalar|avx2|avx512|amx)/")
  if(LOCKSTEP_HAS_CUDA)
    list(FILTER sources EXCLUDE REGEX "/src/backend/cuda_stub/")
  else()
    list(FILTER sources EXCLUDE REGEX "/src/backend/cuda/")
  endif()
  if(sources)
    add_library(lockstep_${name} STATIC ${sources})
    target_include_directories(lockstep_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(lockstep_${name} PUBLIC ${ARG_DEPENDS})
    lockstep_warnings(lockstep_${name})
    if(name STREQUAL "cli")
      lockstep_headers_once(lockstep_cli lockstep_cli <CLI/App.hpp>)
    else()
      lockstep_headers_once(lockstep_${name} lockstep_base)
    endif()
    # Not the commands: each has an Options of its own.
    if(LOCKSTEP_UNITY AND NOT name STREQUAL "cli")
      set_target_properties(lockstep_${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
      # What is private to one file may carry a name of another; the usual build looks at each alone.
      target_compile_options(lockstep_${name} PRIVATE -Wno-shadow)
      # Each lane names its parts alike.
      list(FILTER sources INCLUDE REGEX "/src/decode/lanes/")
      set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  else()
    add_library(lockstep_${name} INTERFACE)
    target_include_directories(lockstep_${name} INTERFACE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(lockstep_${name} INTERFACE ${ARG_DEPENDS})
  endif()
endfunction()

# Sources that are compiled for one instruction set, as objects of the kernels' library.
function(lockstep_kernel_objects name options)
  add_library(lockstep_kernels_${name} OBJECT ${ARGN})
  target_include_directories(lockstep_kernels_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(lockstep_kernels_${name} PRIVATE ${options})
  lockstep_warnings(lockstep_kernels_${name})
  if(LOCKSTEP_SANITIZE)
    target_compile_options(lockstep_kernels_${name} PRIVATE -O2)
  endif()
  target_sources(lockstep_kernels PRIVATE $<TARGET_OBJECTS:lockstep_kernels_${name}>)
endfunction()

# The scalar kernels are compiled once per instruction set, each into its own namespace: `scalar` for every x86-64
# machine, `scalar_v3` and `scalar_v4` with the compiler's vectors. All perform the same operations in the same order.
# The folders of the vector kernels replace what the compiler does not vectorise well.
function(lockstep_kernel_variants)
  set(v3 -march=x86-64-v3)
  set(v4 -march=x86-64-v4 -mprefer-vector-width=512)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/cpu/scalar/*.cpp)
  foreach(variant scalar scalar_v3 scalar_v4)
    string(REGEX MATCH "v[34]" level ${variant})
    lockstep_kernel_objects(${variant} "${${level}}" ${sources})
    target_compile_definitions(lockstep_kernels_${variant} PRIVATE
      LOCKSTEP_VARIANT=${variant} LOCKSTEP_VARIANT_NAME="${variant}")
  endforeach()
  set(avx2 ${v3})
  set(avx512 ${v4} -mavx512vnni)
  set(amx ${avx512} -mamx-tile -mamx-int8)
  foreach(folder avx2 avx512 amx)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/cpu/${folder}/*.cpp)
    lockstep_kernel_objects(${folder} "${${folder}}" ${sources})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # g++ 12 takes the undefined operands inside its own intrinsics for uninitialised variables, and would rearrange
      # sums of integers into trees that keep more numbers than there are registers.
      target_compile_options(lockstep_kernels_${folder} PRIVATE -Wno-uninitialized -Wno-maybe-uninitialized -fno-tree-reassoc)
    endif()
  endforeach()
endfunction()

# cli/version.hpp: what program this is. Every build looks at the commit; only the one file is compiled again. It is also
# written here, for tools that read sources without a build.
function(lockstep_version)
  set(source ${PROJECT_BINARY_DIR}/version.cpp)
  set(command ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DOUT=${source} -DGIVEN=${LOCKSTEP_COMMIT}
              -DVERSION=${PROJECT_VERSION} -P ${PROJECT_SOURCE_DIR}/cmake/commit.cmake)
  execute_process(COMMAND ${command} COMMAND_ERROR_IS_FATAL ANY)
  add_custom_target(lockstep_commit BYPRODUCTS ${source} VERBATIM COMMENT "Looking up the commit" COMMAND ${command})
  target_sources(lockstep_cli PRIVATE ${source})
  set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  add_dependencies(lockstep_cli lockstep_commit)
endfunction()
