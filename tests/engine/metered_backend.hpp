// A backend that counts the bytes it has handed out and can be told to have no more.
#pragma once

#include <atomic>
#include <memory>

#include "support/forwarding_backend.hpp"

namespace lockstep::engine {

/// Shared between a backend inside a model and the test.
struct Meter {
  std::atomic<std::uint64_t> used{0}, peak{0};
  std::atomic<std::uint64_t> limit{UINT64_MAX};
};

class MeteredBackend final : public test::ForwardingBackend {
 public:
  MeteredBackend(std::unique_ptr<backend::Backend> inner, std::shared_ptr<Meter> meter)
      : ForwardingBackend(std::move(inner)), meter_(std::move(meter)) {}

  Result<backend::BufferPtr> allocate(std::size_t bytes) override {
    if (meter_->used + bytes > meter_->limit) return fail(ErrorKind::Limit, "the device has no {} bytes left", bytes);
    backend::BufferPtr buffer = LOCKSTEP_TRY(inner_->allocate(bytes));
    meter_->used += bytes;
    meter_->peak = std::max(meter_->peak.load(), meter_->used.load());
    return std::make_unique<Metered>(std::move(buffer), meter_);
  }

 private:
  class Metered final : public backend::Buffer {
   public:
    Metered(backend::BufferPtr inner, std::shared_ptr<Meter> meter)
        : inner_(std::move(inner)), meter_(std::move(meter)) {}
    Metered(const Metered&) = delete;
    Metered& operator=(const Metered&) = delete;
    ~Metered() override { meter_->used -= inner_->size(); }
    [[nodiscard]] std::byte* data() override { return inner_->data(); }
    [[nodiscard]] std::size_t size() const override { return inner_->size(); }

   private:
    backend::BufferPtr inner_;
    std::shared_ptr<Meter> meter_;
  };

  std::shared_ptr<Meter> meter_;
};

}  // namespace lockstep::engine
