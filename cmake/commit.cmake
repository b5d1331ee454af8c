# Writes OUT, the one source file that knows the commit, when it is not what it would say now. Run at every build, so
# that a program never names an older commit than its own; nothing but OUT is compiled again.
#   cmake -DSOURCE=DIRECTORY -DOUT=FILE -DGIVEN=TEXT -DVERSION=TEXT -P commit.cmake
set(commit "${GIVEN}")
if(NOT commit AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND git --no-optional-locks -C ${SOURCE} describe --always --dirty --abbrev=12 OUTPUT_VARIABLE commit
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
endif()
if(failed OR NOT commit MATCHES "^[A-Za-z0-9._+/-]+$")
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [[
#include "cli/version.hpp"

namespace lockstep::cli {

const char* version() {
  return "@VERSION@";
}

const char* commit() {
  return "@commit@";
}

}  // namespace lockstep::cli
]])
