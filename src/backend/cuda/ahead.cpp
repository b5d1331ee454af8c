// Steps over tokens that the host does not know yet (backend/draws_ahead.hpp). What such a step takes from the host
// goes through a half of a page-locked block that belongs to its slot, so no step waits for another one to have read
// it. The kernel that draws writes the token for the next step, and for the host, which looks at a word of the same
// half.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "backend/cuda/device_backend.hpp"
#include "backend/cuda/pinned_buffer.hpp"
#include "kernels/cuda/draw.hpp"
#include "kernels/cuda/fetch.hpp"

namespace lockstep::backend {
namespace {

namespace cuda = kernels::cuda;
using Clock = std::chrono::steady_clock;

/// The beginning of a half: what comes back.
struct Mail {
  Drawn drawn;
  std::uint32_t told = 0;  ///< 1: `drawn` is there
};
constexpr std::size_t kMailBytes = 64;
static_assert(sizeof(Mail) <= kMailBytes);

/// Positions and pages of a long sequence are tens of KiB.
constexpr std::size_t kHalfBytes = std::size_t{1} << 20;
/// Of it, for what the tokens in front add to a hash.
constexpr std::size_t kPastBytes = std::size_t{4} << 10;
/// A token that takes longer may never come: the queue is asked, and knows the device's error.
constexpr auto kPatience = std::chrono::milliseconds(250);

Mail& mail_of(Buffer& memory, std::size_t slot) {
  return *reinterpret_cast<Mail*>(memory.data() + slot * kHalfBytes);
}

}  // namespace

void DeviceBackend::reserve_ahead() {
  if (ahead_ != nullptr || config_.vocab_size <= 0 || config_.vocab_size > draw_vocabulary()) return;
  Result<BufferPtr> tokens = allocate(kSlots * sizeof(std::int32_t));
  void* memory = queue_.allocate_pinned(kSlots * kHalfBytes);
  if (memory == nullptr) return;  // every step waits for its token then
  BufferPtr pinned = std::make_unique<PinnedBuffer>(queue_, memory, kSlots * kHalfBytes);
  if (!tokens) return;
  ahead_ = std::move(pinned);
  ahead_tokens_ = std::move(*tokens);
}

void DeviceBackend::send(void* to, const void* host, std::size_t bytes) {
  const std::size_t end = ahead_used_ + (bytes + 63) / 64 * 64;
  if (!ahead_slot_ || end > kHalfBytes - kPastBytes) return queue_.upload_soon(to, host, bytes);
  std::byte* at = ahead_->data() + *ahead_slot_ * kHalfBytes + ahead_used_;
  ahead_used_ = end;
  std::memcpy(at, host, bytes);
  if (cuda::fetch_takes(bytes)) {
    cuda::fetch(queue_, to, at, bytes);
  } else {
    queue_.copy(to, at, bytes);
  }
}

void DeviceBackend::begin_step(std::size_t slot) {
  if (ahead_slot_) queue_.wait();  // that step failed in the middle: nobody is going to wait for it
  (void)drawn(slot);               // the device has done with the slot's half
  ahead_slot_ = slot;
  ahead_used_ = kMailBytes;
}

void DeviceBackend::draw_soon(const float* logits, std::int64_t width, const DrawRequest& request, std::size_t slot) {
  Mail& mail = mail_of(*ahead_, slot);
  cuda::DrawRows rows{logits, width};
  rows.vocabulary = request.vocab;
  rows.count = 1;
  send(use_draw_scratch(width, request.top_k > 0, rows), &request, sizeof(request));
  rows.drawn = &mail.drawn;
  rows.token = ahead_token(slot);
  rows.told = &mail.told;
  mail.drawn = {};
  std::atomic_ref(mail.told).store(0, std::memory_order_release);
  cuda::draw_rows(queue_, rows);
  queue_.flush();
  awaited_.at(slot) = true;
  ahead_slot_.reset();
  ++rows_drawn_;
}

Drawn DeviceBackend::drawn(std::size_t slot) {
  Mail& mail = mail_of(*ahead_, slot);
  const std::atomic_ref<std::uint32_t> told(mail.told);
  const auto there = [&] { return told.load(std::memory_order_acquire) != 0; };
  if (awaited_.at(slot)) {
    const Clock::time_point begin = Clock::now();
    while (!there() && !queue_.failed()) {
      if (Clock::now() - begin < kPatience) continue;
      queue_.wait();
      break;
    }
    awaited_.at(slot) = false;
  }
  return there() ? mail.drawn : Drawn{};
}

void DeviceBackend::embed_drawn(const Matrix& embedding, std::size_t slot, float* x) {
  lookup_ids(embedding, ahead_token(slot), 1, config_.streams, x);
}

bool DeviceBackend::finds_rows() const {
  const auto past = static_cast<std::size_t>(config_.ngram_size) * sizeof(std::uint64_t);
  return ngram_ == nullptr || (table_ != nullptr && past <= kPastBytes);
}

void DeviceBackend::ngram_lookup_drawn(const artifact::NgramHash& hash, std::span<const std::uint64_t> past,
                                       std::size_t slot, float* e) {
  const std::size_t heads = hash.sizes.size();
  auto* sizes = static_cast<std::uint64_t*>(hash_.bytes(*this, 2 * heads * sizeof(std::uint64_t)));
  if (hash_of_ != &hash) {
    hash_of_ = &hash;
    std::vector<std::uint64_t> both = hash.sizes;
    both.insert(both.end(), hash.offsets.begin(), hash.offsets.end());
    send(sizes, both.data(), both.size() * sizeof(both.front()));
  }
  std::byte* at = ahead_->data() + (*ahead_slot_ + 1) * kHalfBytes - kPastBytes;
  std::memcpy(at, past.data(), past.size_bytes());
  cuda::HashedRows rows;
  rows.multiplier = hash.multipliers.front();
  rows.sizes = sizes;
  rows.offsets = sizes + heads;
  rows.heads = static_cast<std::int64_t>(heads);
  rows.per = rows.heads / std::ssize(past);
  rows.past = reinterpret_cast<const std::uint64_t*>(at);
  rows.token = ahead_token(slot);
  table_->lookup(rows, e);
}

}  // namespace lockstep::backend
