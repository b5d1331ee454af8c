// Fixed pages of 64 positions that hold keys, values and pooled index keys of all layers of one kind.
//
// Pages are shared by reference count: forks and restored prefixes point to the same pages until one of them writes.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "backend/backend.hpp"

namespace lockstep::model {

/// One page. Shared ownership is the share count: a page with one owner may be written.
struct Page {
  backend::BufferPtr memory;
};
using PageRef = std::shared_ptr<Page>;

/// Makes pages and takes freed ones back for reuse. Thread safe. Outlived by no page (pages keep it alive).
class PagePool : public std::enable_shared_from_this<PagePool> {
 public:
  PagePool(backend::Backend& backend, std::size_t page_bytes) : backend_(backend), page_bytes_(page_bytes) {}

  /// A page with undefined content. Error: Limit when the device is out of memory.
  Result<PageRef> acquire();
  [[nodiscard]] std::size_t page_bytes() const { return page_bytes_; }
  /// Pages in use now.
  [[nodiscard]] std::size_t in_use() const;

 private:
  void give_back(std::unique_ptr<Page> page);

  backend::Backend& backend_;
  std::size_t page_bytes_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Page>> free_;
  std::size_t in_use_ = 0;
};

}  // namespace lockstep::model
