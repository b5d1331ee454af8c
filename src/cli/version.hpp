// What program this is.
#pragma once

namespace lockstep::cli {

/// "0.1.0".
[[nodiscard]] const char* version();

/// The commit that the program was built from, as `git describe --always --dirty` names it: a hash or a tag, "-dirty"
/// behind it when files were changed since. "unknown" when it was not built from a repository.
[[nodiscard]] const char* commit();

}  // namespace lockstep::cli
