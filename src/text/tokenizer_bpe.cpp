#include "text/tokenizer_bpe.hpp"

#include <algorithm>
#include <bit>
#include <functional>

namespace lockstep::text {
namespace {

constexpr std::size_t kMaxRules = std::size_t{1} << 24;
constexpr std::uint32_t kEnd = UINT32_MAX;  // no neighbour
constexpr std::uint32_t kBetweenChecks = 16384;

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
}

}  // namespace

Result<BytePairMerger> BytePairMerger::create(const std::array<std::int32_t, 256>& byte_ids,
                                              const std::vector<MergeRule>& rules) {
  if (rules.size() > kMaxRules) {
    return fail(ErrorKind::Invalid, "merges: {} rules, more than the limit of {}", rules.size(), kMaxRules);
  }
  BytePairMerger merger;
  merger.byte_ids_ = byte_ids;
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(16, 2 * rules.size()));
  merger.table_.resize(size);
  merger.shift_ = 64 - std::countr_zero(size);
  for (std::size_t rank = 0; rank < rules.size(); ++rank) {
    const auto& [left, right, merged] = rules[rank];
    Entry& entry = merger.table_[merger.slot_of(pair_of(left, right))];
    if (entry.rank != kNone) {
      return fail(ErrorKind::Invalid, "merges: rule {} repeats the pair of rule {}", rank, entry.rank);
    }
    entry = {pair_of(left, right), static_cast<std::uint32_t>(rank), merged};
  }
  return merger;
}

std::size_t BytePairMerger::slot_of(std::uint64_t pair) const {
  const std::size_t mask = table_.size() - 1;
  std::size_t slot = (pair * 0x9E3779B97F4A7C15u) >> shift_;
  while (table_[slot].rank != kNone && table_[slot].pair != pair) slot = (slot + 1) & mask;
  return slot;
}

const BytePairMerger::Entry* BytePairMerger::find(std::int32_t left, std::int32_t right) const {
  const Entry& entry = table_[slot_of(pair_of(left, right))];
  return entry.rank == kNone ? nullptr : &entry;
}

/// Queues the merge of the symbol at `position` with its right neighbour, if a rule exists.
void BytePairMerger::enqueue(Scratch& scratch, std::uint32_t position) const {
  const auto& symbol = scratch.symbols[position];
  if (symbol.next == kEnd) return;
  const Entry* entry = find(symbol.id, scratch.symbols[symbol.next].id);
  if (entry == nullptr) return;
  scratch.queue.push_back((std::uint64_t{entry->rank} << 32) | position);
  std::push_heap(scratch.queue.begin(), scratch.queue.end(), std::greater<>());
}

bool BytePairMerger::encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& out,
                            const StopCheck& stop) const {
  std::uint32_t work = 0;
  const auto stopped = [&] { return ++work % kBetweenChecks == 0 && stop && stop(); };
  auto& symbols = scratch.symbols;
  auto& queue = scratch.queue;
  symbols.clear();
  queue.clear();
  const auto count = static_cast<std::uint32_t>(piece.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::int32_t id = byte_ids_[static_cast<unsigned char>(piece[i])];
    symbols.push_back({id, i == 0 ? kEnd : i - 1, i + 1 == count ? kEnd : i + 1});
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    enqueue(scratch, i);
    if (stopped()) return false;
  }
  // Entries are (rank, position). An entry is stale when its symbol or the right neighbour has changed since; then the
  // pair at its position has another rank or none. A symbol that was merged away has id -1, which no rule mentions.
  while (!queue.empty()) {
    if (stopped()) return false;
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const auto rank = static_cast<std::uint32_t>(queue.back() >> 32);
    const auto position = static_cast<std::uint32_t>(queue.back());
    queue.pop_back();
    auto& symbol = symbols[position];
    if (symbol.next == kEnd) continue;
    auto& right = symbols[symbol.next];
    const Entry* entry = find(symbol.id, right.id);
    if (entry == nullptr || entry->rank != rank) continue;
    symbol.id = entry->merged;
    symbol.next = right.next;
    right.id = -1;
    right.next = kEnd;
    if (symbol.next != kEnd) symbols[symbol.next].previous = position;
    enqueue(scratch, position);
    if (symbol.previous != kEnd) enqueue(scratch, symbol.previous);
  }
  for (std::uint32_t i = 0; i != kEnd && i < count; i = symbols[i].next) out.push_back(symbols[i].id);
  return true;
}

}  // namespace lockstep::text
