#include "cli/bench_case.hpp"

#include <fmt/format.h>

namespace lockstep::cli {

std::string table_row(const CaseResult& result, bool prompt) {
  std::string line = fmt::format("{:<30} {:>9.2f} {:>9.2f} {:>9.2f}", result.name, result.rate.median, result.rate.low,
                                 result.rate.high);
  if (result.limit > 0) {
    line += fmt::format("   {:>7.1f} {} {:>4.0f} % of {:.1f}", result.achieved * 1e-9, prompt ? "G/s " : "GB/s",
                        100 * result.achieved / result.limit, result.limit * 1e-9);
  }
  return line + "\n";
}

std::string profile_table(const CaseResult& result) {
  std::string text = fmt::format("\n{}: share of the time by part\n", result.name);
  const double total = result.profile.total();
  for (std::size_t part = 0; part < backend::kParts; ++part) {
    const double share = result.profile.seconds[part] / total;
    if (share > 0.0005) text += fmt::format("  {:<22} {:>5.1f} %\n", backend::kPartNames[part], 100 * share);
  }
  return text;
}

Json to_json(const CaseResult& result, bool prompt, bool profile) {
  Json out = {{"name", result.name},
              {"tokens_per_second", result.rate.median},
              {"lowest", result.rate.low},
              {"highest", result.rate.high}};
  if (!prompt) {
    out["depth"] = result.depth;
    out["width"] = result.width;
    out["streams"] = result.streams;
    out["begun_ahead"] = result.ahead;
  }
  if (result.limit > 0) {
    out[prompt ? "multiply_adds_per_second" : "bytes_per_second"] = result.achieved;
    out["measured_limit"] = result.limit;
  }
  if (!profile) return out;
  for (std::size_t part = 0; part < backend::kParts; ++part) {
    out["seconds"][std::string(backend::kPartNames[part])] = result.profile.seconds[part];
  }
  return out;
}

}  // namespace lockstep::cli
