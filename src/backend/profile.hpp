// Where the time of a forward pass goes: wall time by part of the layers.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::backend {

enum class Part : std::uint8_t {
  Embedding,
  NgramRows,
  NgramInjection,
  HyperNorm,
  HyperMix,
  HyperGate,
  HyperWrite,
  DeltaProjections,
  DeltaConvolution,
  DeltaRecurrence,
  DeltaOutput,
  AttentionProjections,
  AttentionKeys,
  AttentionSelection,
  Attention,
  AttentionOutput,
  Router,
  RoutedGateUp,
  RoutedDown,
  SharedExpert,
  Combine,
  Head,
};
inline constexpr std::size_t kParts = static_cast<std::size_t>(Part::Head) + 1;

inline constexpr std::array<std::string_view, kParts> kPartNames = {"embedding",        "n-gram rows",
                                                                    "n-gram injection", "hyper norm",
                                                                    "hyper mixes",      "hyper gates",
                                                                    "hyper write",      "GDN projections",
                                                                    "GDN convolution",  "GDN recurrence",
                                                                    "GDN output",       "attention projections",
                                                                    "keys and values",  "position selection",
                                                                    "attention",        "attention output",
                                                                    "router",           "experts gate, up",
                                                                    "experts down",     "shared expert",
                                                                    "experts combined", "head"};

/// Seconds by part. Not thread safe: the thread that calls the backend fills it.
struct Profile {
  std::array<double, kParts> seconds{};

  void clear() { seconds.fill(0); }
  [[nodiscard]] double total() const {
    double sum = 0;
    for (const double s : seconds) sum += s;
    return sum;
  }
};

/// Times one part after the other from construction to destruction. Costs nothing without a profile.
class ProfileScope {
 public:
  ProfileScope(Profile* profile, Part part) : profile_(profile), part_(part) {
    if (profile_ != nullptr) start_ = Clock::now();
  }
  ProfileScope(const ProfileScope&) = delete;
  ProfileScope& operator=(const ProfileScope&) = delete;
  ~ProfileScope() { next(part_); }

  /// What ran since the last call belongs to the part before; what follows belongs to `part`.
  void next(Part part) {
    if (profile_ == nullptr) return;
    const Clock::time_point now = Clock::now();
    profile_->seconds[static_cast<std::size_t>(part_)] += std::chrono::duration<double>(now - start_).count();
    start_ = now;
    part_ = part;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Profile* profile_;
  Part part_;
  Clock::time_point start_;
};

}  // namespace lockstep::backend
