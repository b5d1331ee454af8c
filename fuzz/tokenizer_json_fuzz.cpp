// tokenizer.json and tokenizer_config.json as untrusted bytes: the input is both, separated by a zero byte.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/tokenizer.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = input.find('\0');
  const std::string_view config = zero == std::string_view::npos ? std::string_view() : input.substr(zero + 1);
  const auto tokenizer = lockstep::text::Tokenizer::from_json(input.substr(0, zero), config);
  if (!tokenizer) return 0;
  // A pattern may run into its limits, but not take the process with it.
  const auto ids = tokenizer->encode("It's 12 a\xCC\x81  <a>\r\n\xFFz");
  if (ids && !tokenizer->decode_checked(*ids, false)) std::abort();
  return 0;
}
