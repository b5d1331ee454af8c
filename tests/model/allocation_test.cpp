// Decoding steps allocate nothing once everything has its size.
#include <atomic>
#include <cstdlib>
#include <new>

#include "model/fixture.hpp"

namespace {

std::atomic<std::uint64_t> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}

namespace lockstep::model {
namespace {

TEST(Allocations, StepsMakeNone) {
  for (const std::size_t threads : {1U, 3U}) {
    SCOPED_TRACE(threads);
    backend::CpuOptions options;
    options.threads = threads;
    options.min_work = 1;  // every loop uses the threads
    const Loaded loaded = load(std::string(LOCKSTEP_TEST_DATA) + "/toy-pack", backend::StateType::BF16, options);
    auto runner = Runner::create(*loaded.model, 70);
    auto sequence = Sequence::create(*loaded.model);
    ASSERT_TRUE(runner && sequence);
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i < 70; ++i) tokens.push_back(i % 50);
    const auto step = [&](std::span<const std::int32_t> ids) {
      const Segment segment{&*sequence, ids, LogitsWanted::Last, false};
      ASSERT_TRUE(runner->forward({&segment, 1}));
    };
    const std::uint64_t before_prompt = allocations.load();
    step(tokens);
    EXPECT_GT(allocations.load(), before_prompt);  // the counter counts
    for (std::size_t i = 0; i < 8; ++i) step({tokens.data() + i, 1});
    // Positions 78 to 117: no new page of 64 positions, no growth of the list of tokens.
    const std::uint64_t before = allocations.load();
    for (std::size_t i = 0; i < 40; ++i) step({tokens.data() + i, 1});
    EXPECT_EQ(allocations.load() - before, 0U);
  }
}

}  // namespace
}  // namespace lockstep::model
