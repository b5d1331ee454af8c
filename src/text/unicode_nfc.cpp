#include "text/unicode_nfc.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "text/utf8.hpp"

namespace lockstep::text {
namespace {

std::uint8_t combining_class(utf8proc_int32_t code_point) {
  return static_cast<std::uint8_t>(utf8proc_get_property(code_point)->combining_class);
}

/// Canonical decomposition, not yet in canonical order.
Result<std::vector<utf8proc_int32_t>> decompose(std::string_view utf8) {
  constexpr utf8proc_ssize_t kMaxDecomposition = 8;  // canonical decompositions have at most 4 characters
  std::vector<utf8proc_int32_t> out;
  out.reserve(utf8.size());
  int boundary_class = 0;
  while (!utf8.empty()) {
    const Utf8Unit unit = next_utf8(utf8);
    utf8.remove_prefix(unit.length);
    const auto code_point = static_cast<utf8proc_int32_t>(unit.code_point);
    if (code_point < 0x80) {
      out.push_back(code_point);
      continue;
    }
    utf8proc_int32_t parts[kMaxDecomposition];
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(code_point, parts, kMaxDecomposition, UTF8PROC_DECOMPOSE, &boundary_class);
    if (count < 0 || count > kMaxDecomposition) {
      return fail(ErrorKind::Internal, "Unicode normalisation: no decomposition of U+{:04X}", code_point);
    }
    out.insert(out.end(), parts, parts + count);
  }
  return out;
}

/// Sorts every run of combining marks by class. The library's own ordering is quadratic in the length of a run, so that
/// a megabyte of alternating accents would keep a server busy for hours.
void order_marks(std::vector<utf8proc_int32_t>& points) {
  auto begin = points.begin();
  while (begin != points.end()) {
    if (*begin < 0x300 || combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, points.end(), [](auto point) { return combining_class(point) == 0; });
    std::stable_sort(begin, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

}  // namespace

bool is_trivially_nfc(std::string_view utf8) {
  // U+0300 is encoded as CC 80; lead bytes from CC on start the characters from U+0300 on.
  return std::all_of(utf8.begin(), utf8.end(), [](char byte) { return static_cast<unsigned char>(byte) < 0xCC; });
}

Result<std::string> to_nfc(std::string_view utf8) {
  if (is_trivially_nfc(utf8)) return std::string(utf8);
  std::vector<utf8proc_int32_t> points = LOCKSTEP_TRY(decompose(utf8));
  order_marks(points);
  constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t count =
      utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), kCompose);
  if (count < 0) return fail(ErrorKind::Internal, "Unicode normalisation: {}", utf8proc_errmsg(count));
  std::string out;
  out.reserve(utf8.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    append_utf8(static_cast<char32_t>(points[static_cast<std::size_t>(i)]), out);
  }
  return out;
}

}  // namespace lockstep::text
