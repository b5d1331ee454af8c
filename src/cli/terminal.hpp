// Standard output and standard error: whether they are terminals, colours, and writes whose failure is noticed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace lockstep::cli {

enum class Stream : std::uint8_t { Out, Err };
enum class Style : std::uint8_t { Bold, Dim, Red, Green, Yellow, Cyan };

[[nodiscard]] bool is_terminal(Stream stream);
[[nodiscard]] bool stdin_is_terminal();

/// True on a terminal that is not "dumb", unless NO_COLOR is set to anything but the empty string.
[[nodiscard]] bool use_colour(Stream stream);

/// The text in that style where use_colour(stream), else unchanged.
[[nodiscard]] std::string styled(std::string_view text, Style style, Stream stream);

/// Columns of the terminal behind standard output, or 80.
[[nodiscard]] int terminal_width();

/// Appends to standard output, which may be kept for a while. Errors: Io; the error stays: later calls fail too, and
/// the program ends with a failure (quietly with 141 when the reader has gone), so a command only has to stop early.
/// Cancelled when the reader takes nothing and the user has interrupted; what was not taken by then is dropped.
Status write_stdout(std::string_view text);

/// Hands kept output to the system: after each piece of streamed text and at the end. Errors: as write_stdout().
Status flush_stdout();

/// Writes to standard error at once. A failure is ignored: a full log must not cost the answer. What a reader does not
/// take is dropped once the user has interrupted.
void write_stderr(std::string_view text);

/// Reports a failure or a warning: "lockstep: MESSAGE" as one printable line (base/printable.hpp) on standard error,
/// which is not waited for longer than a second. From any thread.
void complain(std::string_view message);

/// errno of the first failed write to standard output, 0 when there was none.
[[nodiscard]] int stdout_error();

/// Occupies descriptors 0, 1 and 2 if the caller closed them, so that no file opened later becomes "standard output".
/// A closed stdin then fails to read and a closed stdout fails to write, as they should.
void reserve_standard_streams();

}  // namespace lockstep::cli
