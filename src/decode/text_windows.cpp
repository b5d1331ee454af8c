#include "decode/text_windows.hpp"

#include <algorithm>

namespace lockstep::decode {

std::vector<TextWindow> text_windows(std::size_t tokens, std::size_t context, std::size_t stride) {
  std::vector<TextWindow> windows;
  std::size_t done = 0;
  for (std::size_t begin = 0; begin < tokens && done < tokens; begin += stride) {
    const std::size_t end = begin + std::min(context, tokens - begin);
    const std::size_t scored = std::max(done, begin + 1);
    if (scored < end) windows.push_back({begin, end, scored});
    done = end;
  }
  return windows;
}

}  // namespace lockstep::decode
