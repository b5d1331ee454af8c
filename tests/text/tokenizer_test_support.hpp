// Helpers shared by the tests of the tokenizer.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "text/tokenizer.hpp"

namespace lockstep::text {

/// The demo model's tokenizer, opened once.
inline const Tokenizer& demo_tokenizer() {
  static const Result<Tokenizer> tokenizer = Tokenizer::open(LOCKSTEP_SOURCE_DIR "/models/demo");
  if (!tokenizer) {
    std::cerr << tokenizer.error().message << '\n';
    std::abort();
  }
  return *tokenizer;
}

/// splitmix64, as in tools/tokenizer_vectors.mjs; the call gives a number below `bound`.
class SplitMix {
 public:
  explicit SplitMix(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()(std::uint64_t bound) {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (z ^ (z >> 31)) % bound;
  }

 private:
  std::uint64_t state_;
};

/// `text` in random pieces, some of them empty.
inline std::vector<std::string> random_cuts(const std::string& text, SplitMix& next, std::size_t longest) {
  std::vector<std::string> pieces;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = next(longest + 1);
    pieces.push_back(text.substr(at, length));
    at += pieces.back().size();
  }
  return pieces;
}

}  // namespace lockstep::text
