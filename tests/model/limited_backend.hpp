// A CPU backend that refuses memory when a test says so.
#pragma once

#include <functional>

#include "support/forwarding_backend.hpp"

namespace lockstep::model {

class LimitedBackend final : public test::ForwardingBackend {
 public:
  /// `refuse` is asked for every piece of memory.
  LimitedBackend(std::unique_ptr<Backend> inner, std::function<bool(std::size_t bytes)> refuse)
      : ForwardingBackend(std::move(inner)), refuse_(std::move(refuse)) {}

  Result<backend::BufferPtr> allocate(std::size_t bytes) override {
    if (refuse_(bytes)) return fail(ErrorKind::Limit, "the test refuses {} bytes", bytes);
    return inner_->allocate(bytes);
  }

 private:
  std::function<bool(std::size_t bytes)> refuse_;
};

}  // namespace lockstep::model
