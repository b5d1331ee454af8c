#include "model/page_pool.hpp"

namespace lockstep::model {

Result<PageRef> PagePool::acquire() {
  std::unique_ptr<Page> page;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      page = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (page == nullptr) {
    page = std::make_unique<Page>();
    page->memory = LOCKSTEP_TRY(backend_.allocate(page_bytes_));
  }
  {
    const std::lock_guard lock(mutex_);
    ++in_use_;
  }
  return PageRef(page.release(),
                 [pool = shared_from_this()](Page* freed) { pool->give_back(std::unique_ptr<Page>(freed)); });
}

std::size_t PagePool::in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

void PagePool::give_back(std::unique_ptr<Page> page) {
  const std::lock_guard lock(mutex_);
  --in_use_;
  free_.push_back(std::move(page));
}

}  // namespace lockstep::model
