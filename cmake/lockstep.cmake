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
    endif()
    target_compile_options(${target} PRIVATE -fsanitize=${LOCKSTEP_SANITIZE} -fno-sanitize-recover=all
                                             -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${LOCKSTEP_SANITIZE})
  endif()
endfunction()

# lockstep_layer(NAME DEPENDS ...): the static library lockstep_NAME from every .cpp under src/NAME.
function(lockstep_layer name)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/variants/")
  if(sources)
    add_library(lockstep_${name} STATIC ${sources})
    target_include_directories(lockstep_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(lockstep_${name} PUBLIC ${ARG_DEPENDS})
    lockstep_warnings(lockstep_${name})
  else()
    add_library(lockstep_${name} INTERFACE)
    target_include_directories(lockstep_${name} INTERFACE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(lockstep_${name} INTERFACE ${ARG_DEPENDS})
  endif()
endfunction()

# The kernel sources under src/kernels/cpu/variants are compiled once per instruction set.
function(lockstep_kernel_variants)
endfunction()
