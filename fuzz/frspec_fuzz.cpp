// Arbitrary bytes as a list of draft tokens; what is accepted must survive its own text.
#include <cstdlib>
#include <string_view>

#include "artifact/draft_vocabulary.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::artifact;
  const auto list = parse_draft_vocabulary({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!list) return 0;
  const auto again = parse_draft_vocabulary(draft_vocabulary_text(*list), "again");
  if (!again || again->ids != list->ids || again->vocab_size != list->vocab_size) std::abort();
  return 0;
}
