#include "backend/copy_rate.hpp"

#include <chrono>

namespace lockstep::backend {
namespace {

constexpr int kCopies = 8;

}  // namespace

Result<CopyTest> CopyTest::create(Backend& backend, std::size_t bytes) {
  BufferPtr from = LOCKSTEP_TRY(backend.allocate(bytes));
  BufferPtr to = LOCKSTEP_TRY(backend.allocate(bytes));
  return CopyTest(backend, std::move(from), std::move(to));
}

Result<double> CopyTest::run() {
  std::byte last{};
  backend_->read(&last, to_->data(), 1);  // waits for everything before
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCopies; ++i) backend_->copy(to_->data(), from_->data(), from_->size());
  backend_->read(&last, to_->data(), 1);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  LOCKSTEP_TRY(backend_->status());
  return 2.0 * kCopies * static_cast<double>(from_->size()) / seconds;
}

}  // namespace lockstep::backend
