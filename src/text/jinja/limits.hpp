// What a chat template may use. A template comes with a model file and is not trusted: each of these limits ends it
// with an error of kind Limit, whatever it does.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::text {

struct TemplateLimits {
  std::size_t max_source_bytes = std::size_t{1} << 20;
  /// Blocks, parentheses and chained operators that may be nested in the source.
  std::size_t max_nesting = 200;
  /// Statements and expressions that may be in evaluation at once, macro calls included. Bounds the stack.
  std::size_t max_depth = 500;
  /// Nodes evaluated, plus one for each 64 bytes copied or searched and each list element touched.
  std::uint64_t max_steps = 20'000'000;
  std::size_t max_output_bytes = std::size_t{64} << 20;
  /// Strings, lists and dictionaries alive at once, the converted messages included.
  std::size_t max_memory_bytes = std::size_t{256} << 20;
  /// Elements of a range(), as the sandbox of Jinja2 has it.
  std::int64_t max_range = 100'000;
};

}  // namespace lockstep::text
