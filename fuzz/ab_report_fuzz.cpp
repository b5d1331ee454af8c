// Stored receipts of `lockstep ab --report`: refused, or rendered, and what is written can be read again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/json.hpp"
#include "report/report.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  const auto json = parse_ordered_json({reinterpret_cast<const char*>(data), size}, "input");
  if (!json) return 0;
  const auto run = report::run_of_json(*json);
  if (!run) return 0;
  const OrderedJson written = report::to_json(*run);
  const auto again = report::run_of_json(written);
  if (!again || report::to_json(*again).dump() != written.dump()) __builtin_trap();
  if (report::to_markdown(*again) != report::to_markdown(*run)) __builtin_trap();
  if (report::to_csv(*again) != report::to_csv(*run)) __builtin_trap();
  if (report::to_svg(*again) != report::to_svg(*run)) __builtin_trap();
  return 0;
}
