// Drawing a token from a row of logits on a device (docs/numerics.md N9): what is asked for, and the last part of it,
// in phases that the 32 lanes of a warp take together. On a host a loop over the lanes does the same.
#pragma once

#include <cstdint>

#include "numerics/portable.hpp"

namespace lockstep::kernels {

/// Most candidates of a draw, so the largest top-k.
inline constexpr int kMostCandidates = 64;
inline constexpr int kDrawLanes = 32;

/// How one row becomes a token: no mask, no bias, no penalties.
struct DrawRequest {
  double top_p = 1, min_p = 0;
  double uniform = 0;      ///< in [0, 1): the double of the request's generator
  float scale = 1;         ///< float(1 / temperature); 1 for the argmax
  std::int32_t vocab = 0;  ///< usable vocabulary, at least 1
  std::int32_t top_k = 0;  ///< 1..kMostCandidates; 0: the argmax, without a random number
  std::int32_t row = 0;    ///< of the logits
};

/// What came out. An id of -1: nothing can be drawn from this row (a logit or the largest value is not finite), and
/// whoever looks at its logits finds out why.
struct Drawn {
  double probability = 0;  ///< of the id in the distribution that it was drawn from
  std::int32_t id = -1;
  std::int32_t unused = 0;
};

/// The candidates of one row on their way to a token. Between the phases, which come in the order of their declaration,
/// all lanes wait for each other. "One lane": that phase is sequential by its nature. Trivial, so that it can lie in
/// shared memory.
struct DrawTable {
  std::int32_t count;                 ///< candidates, in the canon's order: value descending, id ascending
  std::int32_t ids[kMostCandidates];  ///< of them
  float exps[kMostCandidates];        ///< e_i
  double p[kMostCandidates];          ///< e_i / Z
  std::int32_t kept;                  ///< of them, after top-p
  std::int32_t listed;                ///< tokens that can be drawn, by ascending id
  std::int32_t listed_ids[kMostCandidates];
  double listed_p[kMostCandidates];
  double sum;                          ///< of listed_p before it is divided
  double cumulative[kMostCandidates];  ///< sums of listed_p afterwards

  LOCKSTEP_INLINE void divide(double z, int lane) {
    for (int i = lane; i < count; i += kDrawLanes) p[i] = static_cast<double>(exps[i]) / z;
  }

  /// Top-p and the number of tokens that stay. One lane.
  LOCKSTEP_INLINE void cut(double top_p, double min_p) {
    double before = 0;
    int rank = 0;
    listed = 0;
    for (; rank < count; ++rank) {
      if (top_p < 1 && rank > 0 && !(before < top_p)) break;
      before += p[rank];
      if (has_mass(rank, min_p)) ++listed;
    }
    kept = rank;
  }

  /// Min-p, and the order of ids.
  LOCKSTEP_INLINE void list(double min_p, int lane) {
    for (int i = lane; i < kept; i += kDrawLanes) {
      if (!has_mass(i, min_p)) continue;
      int place = 0;
      for (int j = 0; j < kept; ++j) {
        if (ids[j] < ids[i] && has_mass(j, min_p)) ++place;
      }
      listed_ids[place] = ids[i];
      listed_p[place] = p[i];
    }
  }

  /// One lane.
  LOCKSTEP_INLINE void add() {
    sum = 0;
    for (int i = 0; i < listed; ++i) sum += listed_p[i];
  }

  LOCKSTEP_INLINE void normalise(int lane) {
    for (int i = lane; i < listed; i += kDrawLanes) listed_p[i] /= sum;
  }

  /// One lane.
  LOCKSTEP_INLINE void accumulate() {
    double total = 0;
    for (int i = 0; i < listed; ++i) cumulative[i] = total += listed_p[i];
  }

  /// The first of this lane's places whose share of the whole is above u, or the last place of all. The token is that
  /// of the smallest place of any lane.
  LOCKSTEP_INLINE int find(double u, int lane) const {
    const double total = cumulative[listed - 1];
    for (int i = lane; i < listed; i += kDrawLanes) {
      if (cumulative[i] / total > u) return i;
    }
    return listed - 1;  // of the whole: reached for no u < 1, the last quotient is 1
  }

 private:
  LOCKSTEP_INLINE bool has_mass(int i, double min_p) const {
    const double e = exps[i];
    return !(e == 0 || e < min_p);
  }
};

}  // namespace lockstep::kernels
