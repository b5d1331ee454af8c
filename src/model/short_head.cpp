// The short draft head: some rows of the output projection, in the head's own format, so that every row gives the bits
// that the whole head gives for its token.
#include <algorithm>
#include <cstring>

#include "model/weights.hpp"

namespace lockstep::model {
namespace {

/// Kernels may load whole vectors at the end of the last row.
constexpr std::size_t kTailBytes = 64;

/// Copies rows of `bytes` bytes each.
void copy_rows(const std::byte* from, std::size_t bytes, std::span<const std::int32_t> rows, std::byte* to) {
  for (const std::int32_t row : rows) {
    std::memcpy(to, from + static_cast<std::size_t>(row) * bytes, bytes);
    to += bytes;
  }
}

}  // namespace

Result<ShortHead> upload_short_head(const artifact::MatrixView& head, std::vector<std::int32_t> tokens,
                                    backend::Backend& backend) {
  std::sort(tokens.begin(), tokens.end());
  if (tokens.empty() || tokens.front() < 0 || tokens.back() >= head.rows) {
    return fail(ErrorKind::Invalid, "the list of draft tokens is empty or has ids outside the vocabulary of {}",
                head.rows);
  }
  if (std::adjacent_find(tokens.begin(), tokens.end()) != tokens.end()) {
    return fail(ErrorKind::Invalid, "the list of draft tokens has an id twice");
  }
  const std::size_t count = tokens.size();
  const auto padded = [](std::size_t bytes) { return (bytes + kTailBytes - 1) / kTailBytes * kTailBytes + kTailBytes; };
  artifact::MatrixView view = head;
  view.name = head.name + " (draft tokens)";
  view.rows = static_cast<std::int64_t>(count);
  ShortHead made;
  if (head.quantised) {
    const std::size_t codes = padded(count * head.code_row_bytes());
    const std::size_t scales = padded(count * head.scale_row_bytes());
    made.storage.resize(codes + 2 * scales);
    copy_rows(head.codes, head.code_row_bytes(), tokens, made.storage.data());
    copy_rows(head.scales, head.scale_row_bytes(), tokens, made.storage.data() + codes);
    copy_rows(head.biases, head.scale_row_bytes(), tokens, made.storage.data() + codes + scales);
    view.codes = made.storage.data();
    view.scales = view.codes + codes;
    view.biases = view.scales + scales;
  } else {
    const std::size_t row = static_cast<std::size_t>(head.cols) * artifact::dtype_size(head.dtype);
    made.storage.resize(padded(count * row));
    copy_rows(head.data, row, tokens, made.storage.data());
    view.data = made.storage.data();
    view.matrix_stride = count * row;
  }
  made.tokens = std::move(tokens);
  made.head = LOCKSTEP_TRY(backend.upload(view));
  return made;
}

}  // namespace lockstep::model
