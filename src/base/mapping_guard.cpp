#include "base/mapping_guard.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <utility>

namespace lockstep {

/// The signal handler reads it at any time, so it is made of lock-free atomics. `begin` is kFree or kTaken while the
/// rest changes.
struct WatchedRange {
  std::atomic<std::uintptr_t> begin{0}, end{0};
  std::atomic<bool> lost{false};
};

namespace {

constexpr std::size_t kMaxRanges = 16384;
constexpr std::uintptr_t kFree = 0, kTaken = 1;  // no map begins there
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "the handler may only touch lock-free atomics");

// Zero from the beginning: pages of ranges that nobody takes are never touched.
constinit std::array<WatchedRange, kMaxRanges> ranges{};
constinit std::atomic<std::size_t> used{0};  // ranges that have ever been taken
constinit std::atomic<std::uintptr_t> page_bytes{4096};
struct sigaction previous {};

/// Zeros from the page of `address` to the end of its range. False when it lies in none.
bool replace(std::uintptr_t address) {
  const std::size_t count = used.load();
  for (std::size_t i = 0; i < count; ++i) {
    WatchedRange& range = ranges[i];
    const std::uintptr_t begin = range.begin.load(), end = range.end.load();
    if (begin <= kTaken || address < begin || address >= end || range.begin.load() != begin) continue;
    // Marked first: who finds zeros there finds the mark, too.
    range.lost.store(true);
    const std::uintptr_t page = address - address % page_bytes.load();
    const long made = ::syscall(SYS_mmap, page, end - page, PROT_READ,
                                MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0L);
    return made == static_cast<long>(page);
  }
  return false;
}

/// All that happens here is safe in a signal handler: atomics, and the system calls mmap, sigaction and raise.
void on_bus_error(int signal, siginfo_t* info, void* /*context*/) {
  const int error = errno;
  const bool fault = info->si_code == BUS_ADRERR;  // not kill(), and not memory that is broken
  if (!fault || !replace(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
    // A fault comes again when the handler returns, and meets the action of before; a sent signal is sent again.
    ::sigaction(signal, &previous, nullptr);
    if (info->si_code <= 0) ::raise(signal);
  }
  errno = error;
}

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    page_bytes.store(static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE)));
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &previous);
  });
}

}  // namespace

Result<MappingGuard> MappingGuard::watch(std::span<const std::byte> map) {
  install();
  for (std::size_t i = 0; i < kMaxRanges; ++i) {
    WatchedRange& range = ranges[i];
    std::uintptr_t expected = kFree;
    if (!range.begin.compare_exchange_strong(expected, kTaken)) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(map.data());
    const std::uintptr_t page = page_bytes.load();
    range.lost.store(false);
    range.end.store((begin + map.size() + page - 1) / page * page);
    std::size_t known = used.load();
    while (known <= i && !used.compare_exchange_weak(known, i + 1)) {
    }
    range.begin.store(begin);
    return MappingGuard(&range);
  }
  return fail(ErrorKind::Limit, "more than {} files are mapped at the same time", kMaxRanges);
}

MappingGuard::MappingGuard(MappingGuard&& other) noexcept : range_(std::exchange(other.range_, nullptr)) {}

MappingGuard& MappingGuard::operator=(MappingGuard&& other) noexcept {
  std::swap(range_, other.range_);
  return *this;
}

void MappingGuard::release() noexcept {
  if (range_ != nullptr) std::exchange(range_, nullptr)->begin.store(kFree);
}

bool MappingGuard::lost() const {
  return range_ != nullptr && range_->lost.load(std::memory_order_relaxed);
}

void MappingGuard::mark_lost() const {
  if (range_ != nullptr) range_->lost.store(true);
}

}  // namespace lockstep
