// Tokens drawn where the logits are: a few bytes a row come to the host instead of the row.
#include <algorithm>

#include "backend/cuda/device_backend.hpp"
#include "kernels/cuda/draw.hpp"

namespace lockstep::backend {
namespace {

namespace cuda = kernels::cuda;

constexpr auto kRowsAtOnce = static_cast<std::size_t>(cuda::kDrawRows);

template <class T>
std::size_t bytes_of(std::int64_t per_row) {
  return kRowsAtOnce * static_cast<std::size_t>(per_row) * sizeof(T);
}

}  // namespace

std::int64_t DeviceBackend::draw_vocabulary() const {
  return options_.draw ? cuda::kMostDrawnVocabulary : 0;
}

DrawRequest* DeviceBackend::use_draw_scratch(std::int64_t width, bool exps, cuda::DrawRows& rows) {
  if (exps) {
    const std::int64_t lanes = 32 * cuda::draw_segments(width);
    rows.exps = static_cast<float*>(draw_exps_.bytes(*this, bytes_of<float>(cuda::draw_padded(width))));
    rows.sums = static_cast<double*>(draw_sums_.bytes(*this, bytes_of<double>(lanes)));
    rows.segments =
        static_cast<kernels::SumSegment*>(draw_segments_.bytes(*this, bytes_of<kernels::SumSegment>(lanes)));
  }
  auto* requests = static_cast<DrawRequest*>(draw_requests_.bytes(*this, bytes_of<DrawRequest>(1)));
  rows.requests = requests;
  rows.heads = static_cast<std::uint64_t*>(draw_heads_.bytes(*this, bytes_of<std::uint64_t>(cuda::draw_chunks(width))));
  rows.drawn = static_cast<Drawn*>(drawn_.bytes(*this, bytes_of<Drawn>(1)));
  return requests;
}

void DeviceBackend::reserve_draws() {
  if (config_.vocab_size <= 0 || config_.vocab_size > draw_vocabulary()) return;
  cuda::DrawRows rows{};
  (void)use_draw_scratch(config_.vocab_size, true, rows);
}

void DeviceBackend::draw(const float* logits, std::int64_t width, std::span<const DrawRequest> requests,
                         std::span<Drawn> out) {
  cuda::DrawRows rows{logits, width};
  bool exps = false;
  for (const DrawRequest& request : requests) {
    rows.vocabulary = std::max<std::int64_t>(rows.vocabulary, request.vocab);
    exps = exps || request.top_k > 0;
  }
  DrawRequest* on_device = use_draw_scratch(width, exps, rows);
  for (std::size_t first = 0; first < requests.size(); first += kRowsAtOnce) {
    const auto some = requests.subspan(first, std::min(kRowsAtOnce, requests.size() - first));
    rows.count = static_cast<std::int64_t>(some.size());
    send(on_device, some.data(), some.size_bytes());
    cuda::draw_rows(queue_, rows);
    queue_.download(out.data() + first, rows.drawn, some.size() * sizeof(Drawn));
  }
  rows_drawn_ += requests.size();
}

}  // namespace lockstep::backend
