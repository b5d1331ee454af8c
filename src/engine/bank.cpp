#include "engine/bank.hpp"

#include <algorithm>

namespace lockstep::engine {
namespace {

using decode::Checkpoint;
using decode::TokenId;

/// Dropped states that a miss can still be explained with.
constexpr std::size_t kRemembered = 1024;

std::size_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  const std::size_t most = std::min(a.size(), b.size());
  return static_cast<std::size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(most), b.begin()).first - a.begin());
}

/// One step of a hash over token ids (FNV-1a on whole ids): for statistics only, never for identity.
std::uint64_t mix(std::uint64_t hash, TokenId id) {
  return (hash ^ static_cast<std::uint32_t>(id)) * 0x100000001b3U;
}
constexpr std::uint64_t kHashStart = 0xcbf29ce484222325U;

/// Whether a state of `length` tokens, all of which the prompt starts with, can serve it.
bool serves(std::size_t length, bool logits, std::size_t prompt) {
  return length < prompt || (length == prompt && logits);
}

}  // namespace

Result<Bank> Bank::create(const model::Model& model, const BankOptions& options, bool drafts,
                          const std::string& identity) {
  Bank bank(model, options, drafts);
  if (options.enabled && !options.directory.empty()) {
    if (identity.empty()) return fail(ErrorKind::Usage, "a bank on disk needs the model's identity");
    // What else decides a state's bytes.
    const std::string whole = fmt::format("{};state={};draft={}", identity,
                                          model.state_type() == backend::StateType::F32 ? "f32" : "bf16", drafts);
    bank.disk_ = LOCKSTEP_TRY(BankDisk::open(options, whole));
  }
  return bank;
}

Bank::Found Bank::find(std::span<const TokenId> prompt) {
  Found found;
  if (!options_.enabled) {
    found.miss = Miss::Disabled;
    return found;
  }
  ++lookups_;
  bool damaged = false;
  auto best = entries_.end();
  std::size_t length = 0;
  std::size_t common = 0;
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    const std::vector<TokenId>& tokens = it->state.sequence.tokens();
    const std::size_t shared = common_prefix(tokens, prompt);
    common = std::max(common, shared);
    if (shared == tokens.size() && shared > length && serves(shared, !it->state.logits.empty(), prompt.size())) {
      best = it;
      length = shared;
    }
  }
  while (disk_) {
    std::size_t longest = length;
    disk_->for_each([&](const BankEntry& entry) {
      const std::size_t shared = common_prefix(entry.tokens, prompt);
      common = std::max(common, shared);
      if (shared == entry.tokens.size() && serves(shared, entry.logits, prompt.size())) {
        longest = std::max(longest, shared);
      }
    });
    if (longest == length) break;
    auto loaded = load(prompt.first(longest));
    if (!loaded) {
      if (loaded.error().kind == ErrorKind::Limit) break;  // no memory for it now
      damaged = true;
      continue;  // the file is gone; a shorter one may do
    }
    length = longest;
    found.from_disk = true;
    ++disk_hits_;
    if (auto copy = loaded->fork(*model_)) put(*std::move(copy), false);
    found.prefix = *std::move(loaded);
    break;
  }
  if (!found.prefix && best != entries_.end()) {
    if (auto copy = best->state.fork(*model_)) {
      found.prefix = *std::move(copy);
      entries_.splice(entries_.begin(), entries_, best);
    } else {
      length = 0;
    }
  }
  found.common = static_cast<std::int64_t>(common);
  if (length > 0) ++hits_;
  tokens_reused_ += length;
  if (damaged) {
    found.miss = Miss::Damaged;
  } else if (length == prompt.size() || (common > 0 && common == length)) {
    found.miss = evicted_beyond(prompt, length) ? Miss::Evicted : Miss::None;
  } else if (evicted_beyond(prompt, length)) {
    found.miss = Miss::Evicted;
  } else {
    found.miss = common == 0 ? Miss::Empty : Miss::Diverged;
  }
  return found;
}

bool Bank::wants(std::span<const TokenId> tokens, bool logits) {
  if (!options_.enabled || tokens.empty()) return false;
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    const std::vector<TokenId>& have = it->state.sequence.tokens();
    if (have.size() != tokens.size() || !std::equal(have.begin(), have.end(), tokens.begin())) continue;
    entries_.splice(entries_.begin(), entries_, it);
    return logits && it->state.logits.empty();
  }
  return true;
}

void Bank::charge(Entry& entry) {
  entry.own_bytes = entry.state.sequence.own_bytes() + (entry.state.hidden ? entry.state.hidden->size() : 0) +
                    entry.state.logits.size() * sizeof(float);
  memory_bytes_ += entry.own_bytes;
  entry.state.sequence.for_each_page([&](const model::Page* page, std::size_t bytes) {
    if (page_uses_[page]++ == 0) memory_bytes_ += bytes;
  });
}

void Bank::drop(Entries::iterator entry) {
  memory_bytes_ -= entry->own_bytes;
  entry->state.sequence.for_each_page([&](const model::Page* page, std::size_t bytes) {
    const auto uses = page_uses_.find(page);
    if (--uses->second > 0) return;
    memory_bytes_ -= bytes;
    page_uses_.erase(uses);
  });
  entries_.erase(entry);
}

void Bank::put(Checkpoint state, bool durable) {
  // A step begun ahead can break a sequence whose request has just ended well: its layers are not all as far as its
  // tokens.
  if (!options_.enabled || state.sequence.broken()) return;
  const std::vector<TokenId>& tokens = state.sequence.tokens();
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (it->state.sequence.tokens() != tokens) continue;
    drop(it);  // the new one knows at least as much
    break;
  }
  if (durable) write(state);
  std::uint64_t bytes = state.sequence.own_bytes();
  state.sequence.for_each_page([&](const model::Page*, std::size_t page) { bytes += page; });
  if (bytes > limit_) return;  // it would push out everything else, and then itself
  ++stored_;
  entries_.push_front({std::move(state), 0});
  charge(entries_.front());
  shrink();
}

void Bank::limit(std::uint64_t bytes) {
  limit_ = bytes;
  shrink();
}

void Bank::shrink() {
  while (!entries_.empty() && memory_bytes_ > limit_) {
    const auto last = std::prev(entries_.end());
    remember_evicted(last->state.sequence.tokens());
    drop(last);
    ++evictions_;
  }
}

void Bank::remember_evicted(std::span<const TokenId> tokens) {
  std::uint64_t hash = kHashStart;
  for (const TokenId id : tokens) hash = mix(hash, id);
  evicted_.emplace_back(tokens.size(), hash);
  if (evicted_.size() > kRemembered) evicted_.pop_front();
}

bool Bank::evicted_beyond(std::span<const TokenId> prompt, std::size_t length) const {
  if (evicted_.empty()) return false;
  std::vector<std::uint64_t> hashes;
  hashes.reserve(prompt.size() + 1);
  hashes.push_back(kHashStart);
  for (const TokenId id : prompt) hashes.push_back(mix(hashes.back(), id));
  return std::any_of(evicted_.begin(), evicted_.end(), [&](const auto& dropped) {
    return dropped.first > length && dropped.first < prompt.size() && hashes[dropped.first] == dropped.second;
  });
}

Result<Checkpoint> Bank::load(std::span<const TokenId> tokens) {
  const auto loaded = LOCKSTEP_TRY(disk_->load(tokens));
  const BankFile& file = loaded->file;
  auto restored = [&]() -> Result<Checkpoint> {
    Checkpoint state{LOCKSTEP_TRY(model::Sequence::create(*model_)), nullptr, {}};
    LOCKSTEP_TRY(state.sequence.restore(file.state));
    if (!std::equal(tokens.begin(), tokens.end(), state.sequence.tokens().begin(), state.sequence.tokens().end())) {
      return fail(ErrorKind::Invalid, "the state's tokens are not those of its head");
    }
    const auto row = static_cast<std::size_t>(model_->config().wide_size()) * sizeof(float);
    const std::int64_t unfed = state.sequence.length() - state.sequence.draft_length();
    const std::size_t hidden = drafts_ && unfed > 0 ? static_cast<std::size_t>(unfed) * row : 0;
    const std::size_t logits = static_cast<std::size_t>(model_->config().vocab_size) * sizeof(float);
    if ((drafts_ && (unfed < 1 || unfed > decode::kMaxDepth + 1)) || file.hidden.size() != hidden ||
        (!file.logits.empty() && file.logits.size() != logits)) {
      return fail(ErrorKind::Invalid, "the state's parts have impossible sizes");
    }
    if (hidden > 0) {
      state.hidden = LOCKSTEP_TRY(model_->backend().allocate(hidden));
      model_->backend().write(state.hidden->data(), file.hidden.data(), hidden);
    }
    state.logits.resize(file.logits.size() / sizeof(float));
    std::copy(file.logits.begin(), file.logits.end(), std::as_writable_bytes(std::span(state.logits)).begin());
    return state;
  }();
  if (!restored) {
    if (restored.error().kind != ErrorKind::Limit) disk_->reject(tokens, restored.error().message);
    return tl::unexpected(restored.error());
  }
  return restored;
}

void Bank::write(const Checkpoint& state) {
  const std::vector<TokenId>& tokens = state.sequence.tokens();
  if (!disk_ || disk_->contains(tokens)) return;
  std::uint64_t bytes = state.sequence.bytes() + state.sequence.own_bytes();
  if (!disk_->wants(bytes)) return;
  std::vector<std::byte> hidden(state.hidden ? state.hidden->size() : 0);
  if (state.hidden) model_->backend().read(hidden.data(), state.hidden->data(), hidden.size());
  const auto logits = std::as_bytes(std::span(state.logits));
  disk_->write(tokens, state.sequence.save(), std::move(hidden), {logits.begin(), logits.end()});
}

void Bank::flush() {
  if (disk_) disk_->flush();
}

void Bank::report(BankStatistics& statistics) const {
  statistics.states = static_cast<std::int64_t>(entries_.size());
  statistics.memory_bytes = memory_bytes_;
  statistics.lookups = lookups_;
  statistics.hits = hits_;
  statistics.disk_hits = disk_hits_;
  statistics.tokens_reused = tokens_reused_;
  statistics.stored = stored_;
  statistics.evicted = evictions_;
  if (disk_) disk_->report(statistics);
}

}  // namespace lockstep::engine
