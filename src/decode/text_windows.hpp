// How a long text is cut into windows when every token is to be scored once.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::decode {

/// Tokens [begin, end) go through a model that knows nothing before `begin`; of them, [scored, end) are scored.
struct TextWindow {
  std::size_t begin = 0, end = 0, scored = 0;
  bool operator==(const TextWindow&) const = default;
};

/// Windows of `context` tokens (at least 2) that start every `stride` tokens (1..context) of a text of `tokens`. A
/// token is scored in the first window that holds it, so with `stride` < `context` it has at least `context` - `stride`
/// tokens before it, but for those of the first window. The first token of the text, and with `stride` == `context` of
/// every window, has nothing before it and is not scored. Windows without a scored token are left out.
[[nodiscard]] std::vector<TextWindow> text_windows(std::size_t tokens, std::size_t context, std::size_t stride);

}  // namespace lockstep::decode
