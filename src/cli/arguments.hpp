// Command line values as the user typed them, and checks for numbers and names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace lockstep::cli {

/// What the user typed, ready for CLI::App::parse(). The library by itself takes the next option for the value of
/// `--name=` and splits a value `[a,b]` into two. Here each value becomes an argument of its own, an empty one
/// included, and those in brackets are marked; unmark_values() takes the mark away again.
[[nodiscard]] std::vector<std::string> literal_arguments(const CLI::App& app, int argc, const char* const* argv);

/// Makes every option of every command take its values without the mark. To be called once, after all options exist.
void unmark_values(CLI::App& app);

/// Whole decimal numbers from `least` to `most`: no sign but '-', no octal or hexadecimal, no wrap-around. For
/// transform(): the text becomes the plain number.
[[nodiscard]] CLI::Validator whole_number(std::int64_t least, std::uint64_t most);

/// Numbers of bytes as parse_bytes() reads them, `least` or more. For transform(): the text becomes the plain number.
[[nodiscard]] CLI::Validator byte_count(std::uint64_t least);

/// Decimal numbers from `least` to `most`; never NaN or infinity. For check().
[[nodiscard]] CLI::Validator finite_number(double least, double most);

/// Any value but the empty one. For check().
[[nodiscard]] CLI::Validator not_empty();

}  // namespace lockstep::cli
