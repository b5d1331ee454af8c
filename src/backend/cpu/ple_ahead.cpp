#include "backend/cpu/ple_ahead.hpp"

#include <algorithm>
#include <system_error>

namespace lockstep::backend {
namespace {

void grow(std::vector<float>& floats, std::int64_t n) {
  if (floats.size() < static_cast<std::size_t>(n)) floats.resize(static_cast<std::size_t>(n));
}

}  // namespace

Result<std::unique_ptr<PleAhead>> PleAhead::create(const kernels::Kernels& kernels, bool unquantised,
                                                   const Geometry& geometry, std::uint64_t bytes) {
  PleAux cache = LOCKSTEP_TRY(PleAux::create(geometry.heads, geometry.wide, geometry.hidden, bytes));
  std::unique_ptr<PleAhead> made(new PleAhead(kernels, unquantised, geometry, std::move(cache)));
  try {
    made->thread_ = std::thread([job = made.get()] { job->work(); });
  } catch (const std::system_error& error) {
    return fail(ErrorKind::Limit, "cannot start a thread for the n-gram layer's projections: {}", error.what());
  }
  return made;
}

PleAhead::~PleAhead() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void PleAhead::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closing_ || stage_ == Stage::Posted; });
    if (closing_) return;
    stage_ = Stage::Rows;
    lock.unlock();
    find_kept();
    outcome_ = take_rows(*store_);
    if (outcome_) prepare_products();
    lock.lock();
    if (outcome_) {
      stage_ = Stage::Products;
      changed_.notify_all();
      lock.unlock();
      run_blocks();
      lock.lock();
    }
    stage_ = Stage::Done;
    changed_.notify_all();
  }
}

void PleAhead::begin(const PleWeights& weights, std::span<const std::int64_t> row_ids, NgramStore& store) {
  weights_ = &weights;
  row_ids_ = row_ids;
  store_ = &store;
  rows_ = static_cast<std::int64_t>(row_ids.size()) / geometry_.heads;
  begun_ = true;
  {
    const std::lock_guard lock(mutex_);
    stage_ = Stage::Posted;
  }
  changed_.notify_all();
}

Status PleAhead::collect(ThreadPool& pool, std::int64_t least) {
  begun_ = false;
  std::unique_lock lock(mutex_);
  if (stage_ == Stage::Posted) {  // the other thread has had no processor yet: nobody waits for it
    stage_ = Stage::Idle;
    lock.unlock();
    find_kept();
    LOCKSTEP_TRY(take_rows(*store_));
    prepare_products();
    share_blocks(pool, least);
  } else {
    changed_.wait(lock, [this] { return stage_ == Stage::Products || stage_ == Stage::Done; });
    lock.unlock();
    if (outcome_) share_blocks(pool, least);
    lock.lock();
    changed_.wait(lock, [this] { return stage_ == Stage::Done; });
    stage_ = Stage::Idle;
    lock.unlock();
    LOCKSTEP_TRY(Status(outcome_));
    counters_.ahead += static_cast<std::uint64_t>(rows_);
  }
  keep(pool, least);
  return {};
}

/// Copies what is kept from before; the other rows are missing.
void PleAhead::find_kept() {
  grow(keys_, rows_ * geometry_.wide);
  grow(values_, rows_ * geometry_.hidden);
  missing_.clear();
  missing_ids_.clear();
  for (std::int64_t row = 0; row < rows_; ++row) {
    const std::int64_t* ids = ids_of(row);
    if (cache_.take(ids, keys_.data() + row * geometry_.wide, values_.data() + row * geometry_.hidden)) continue;
    missing_.push_back(row);
    missing_ids_.insert(missing_ids_.end(), ids, ids + geometry_.heads);
  }
}

/// The table rows of all tokens: what is kept does not hide a table that cannot be read. Those of the missing ones move
/// next to one another, so that the matrices are read once.
Status PleAhead::take_rows(NgramStore& store) {
  const std::int64_t dim = geometry_.dim;
  grow(input_, rows_ * dim);
  LOCKSTEP_TRY(store.gather(row_ids_, input_.data()));
  for (std::size_t i = 0; i < missing_.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    if (missing_[i] != at) std::copy_n(input_.data() + missing_[i] * dim, dim, input_.data() + at * dim);
  }
  return {};
}

void PleAhead::prepare_products() {
  grow(new_keys_, misses() * geometry_.wide);
  grow(new_values_, misses() * geometry_.hidden);
  activations_.emplace(kernels_, alone_, storage_, input_.data(), misses(), geometry_.dim);
  for (const MatrixPtr* matrix : {&weights_->key, &weights_->value}) {
    const auto& cpu = static_cast<const CpuMatrix&>(**matrix);
    if (!missing_.empty() && cpu.quantised() && !unquantised_) activations_->quantised(cpu.group());
  }
  next_block_.store(0, std::memory_order_relaxed);
}

/// Computes blocks of both projections until none is left.
void PleAhead::run_blocks() {
  if (missing_.empty()) return;
  const auto& key = static_cast<const CpuMatrix&>(*weights_->key);
  const auto& value = static_cast<const CpuMatrix&>(*weights_->value);
  for (;;) {
    const std::int64_t block = next_block_.fetch_add(1, std::memory_order_relaxed);
    if (block >= key.blocks() + value.blocks()) return;
    const bool of_key = block < key.blocks();
    const std::int64_t first = of_key ? block : block - key.blocks();
    product_blocks(kernels_, unquantised_, of_key ? key : value, 0, *activations_, first, first + 1,
                   of_key ? new_keys_.data() : new_values_.data());
  }
}

void PleAhead::share_blocks(ThreadPool& pool, std::int64_t least) {
  const std::int64_t work = misses() * geometry_.dim * (geometry_.wide + geometry_.hidden);
  if (work < 2 * least) return run_blocks();
  pool.parallel_for(pool.threads(), 1, [this](std::size_t, std::size_t) { run_blocks(); });
}

/// Norms the new keys, puts the new products in their places and keeps them for later steps.
void PleAhead::keep(ThreadPool& pool, std::int64_t least) {
  const std::int64_t wide = geometry_.wide, hidden = geometry_.hidden;
  counters_.misses += missing_.size();
  counters_.hits += static_cast<std::uint64_t>(rows_) - missing_.size();
  const auto grain = static_cast<std::size_t>(std::max<std::int64_t>(1, least / (2 * wide)));
  pool.parallel_for(missing_.size(), grain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const auto at = static_cast<std::int64_t>(i);
      float* key = keys_.data() + missing_[i] * wide;
      kernels_.rms_norm(new_keys_.data() + at * wide, weights_->norm_key->floats(), geometry_.streams,
                        wide / geometry_.streams, geometry_.eps, key);
      std::copy_n(new_values_.data() + at * hidden, hidden, values_.data() + missing_[i] * hidden);
    }
  });
  for (std::size_t i = 0; i < missing_.size(); ++i) {
    const std::int64_t* ids = missing_ids_.data() + static_cast<std::int64_t>(i) * geometry_.heads;
    if (cache_.put(ids, keys_.data() + missing_[i] * wide, values_.data() + missing_[i] * hidden))
      ++counters_.evictions;
  }
}

}  // namespace lockstep::backend
