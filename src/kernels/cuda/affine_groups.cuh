// What the blocks of affine_groups.cu multiply: each has its share of all the work, one item after the other.
#pragma once

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/linear.hpp"

namespace lockstep::kernels::cuda {

constexpr int kGroups = 4;          ///< groups of four warps that multiply, 64 weight rows each
constexpr int kGroupTiles = 4;      ///< of 16 weight rows
constexpr int kItemTokens = 64;     ///< most activation rows of an item
constexpr int kFetchThreads = 128;  ///< the warps that fetch, and find out what
constexpr int kMostGroupJobs = 6;
/// What an item costs beside its activation rows, in activation rows: codes are unpacked once for all of them.
constexpr int kItemCost = 8;

/// One matrix, or one of a stack for each run.
struct GroupJob {
  const uint4 *codes, *pairs;
  float* out;
  std::int64_t out_stride, matrix_codes, matrix_pairs;  ///< strides of matrices in 16 bytes
  int rows, tiles;
  int first_unit;  ///< units of 64 weight rows in front of it in its set
};

/// Jobs of the same activation rows: their units of 64 weight rows follow each other, four make a quad.
struct GroupSet {
  const uint4* digits;
  const float2* steps;
  const ExpertRun* runs;
  const std::int32_t *run_count, *in_rows, *out_rows;
  int tokens, width;  ///< width: most activation rows of an item
  int first_job, jobs, units, quads;

  [[nodiscard]] __device__ __forceinline__ int run_total() const { return runs != nullptr ? *run_count : 1; }
  /// The job that unit `unit` belongs to.
  [[nodiscard]] __device__ __forceinline__ int job_of(const GroupJob* all, int unit) const {
    int job = first_job;
    while (job + 1 < first_job + jobs && unit >= all[job + 1].first_unit) ++job;
    return job;
  }
};

struct GroupParams {
  GroupJob jobs[kMostGroupJobs];
  GroupSet sets[kMostGroupJobs];
  int set_count, chunks;
  int scale;  ///< 256, see Dots
};

/// Up to 64 activation rows and a quad: written by the warps that fetch, read by all.
struct GroupItem {
  int set, expert, unit;  ///< unit: the first of the quad
  int first, live;        ///< rows of the list, or of the activations; no rows: the end
  int out_rows[kItemTokens];
};

/// The rows of a run in equal passes.
struct RunWork {
  ExpertRun run;
  int passes, width;

  __device__ __forceinline__ RunWork(const GroupSet& set, int index) {
    run = set.runs != nullptr ? set.runs[index] : ExpertRun{0, 0, set.tokens};
    passes = run.count > 0 ? 1 : 0;
    int largest = run.count;
    if (run.count > set.width) {
      passes = (run.count + set.width - 1) / set.width;
      largest = (run.count + passes - 1) / passes;
    }
    width = (largest + 7) / 8 * 8;
  }
  [[nodiscard]] __device__ __forceinline__ int cost() const { return width + kItemCost; }
};

/// Where a block is in its share: items whose place in the row of all costs is before `end`.
struct GroupShare {
  int set, run, item, place, end;
  int sums[kFetchThreads / 32];

  /// Finds the share of this block; by all fetching threads. A list of runs is the device's own: every block adds up
  /// what all of them cost, each thread some that follow each other.
  __device__ __forceinline__ void find(const GroupParams& p, int thread) {
    int total_runs = 0;
    for (int s = 0; s < p.set_count; ++s) total_runs += p.sets[s].run_total();
    const int each = (total_runs + kFetchThreads - 1) / kFetchThreads;
    int first_set = 0;
    int first_run = thread * each;
    while (first_set < p.set_count && first_run >= p.sets[first_set].run_total()) {
      first_run -= p.sets[first_set++].run_total();
    }
    const auto walk = [&](const auto& visit) {
      int s = first_set;
      int r = first_run;
      for (int i = 0; i < each && s < p.set_count; ++i) {
        const RunWork work(p.sets[s], r);
        visit(s, r, work.cost(), work.passes * p.sets[s].quads);
        if (++r < p.sets[s].run_total()) continue;
        r = 0;
        ++s;
        while (s < p.set_count && p.sets[s].run_total() == 0) ++s;
      }
    };
    int own = 0;
    walk([&](int, int, int cost, int items) { own += cost * items; });
    int before = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, before, step);
      if (thread % 32 >= step) before += other;
    }
    if (thread % 32 == 31) sums[thread / 32] = before;
    if (thread == 0) set = p.set_count;
    part_sync(1, kFetchThreads);
    before -= own;
    int total = 0;
#pragma unroll
    for (int i = 0; i < kFetchThreads / 32; ++i) {
      if (i < thread / 32) before += sums[i];
      total += sums[i];
    }
    const auto border = [&](unsigned block) {
      return static_cast<int>(static_cast<std::int64_t>(total) * block / gridDim.x);
    };
    const int begin = border(blockIdx.x);
    walk([&](int s, int r, int cost, int items) {
      if (begin >= before && begin < before + cost * items) {
        set = s;
        run = r;
        item = (begin - before + cost - 1) / cost;
        place = before + item * cost;
        end = border(blockIdx.x + 1);
      }
      before += cost * items;
    });
    part_sync(1, kFetchThreads);
  }

  /// The next item; by one thread.
  __device__ __forceinline__ void next(const GroupParams& p, GroupItem& to) {
    to.live = 0;
    while (set < p.set_count && place < end) {
      const GroupSet& now = p.sets[set];
      if (run >= now.run_total()) {
        ++set;
        run = 0;
        continue;
      }
      const RunWork work(now, run);
      if (item >= work.passes * now.quads) {
        ++run;
        item = 0;
        continue;
      }
      const int quad = work.passes == 1 ? item : item / work.passes;
      const int start = (item - quad * work.passes) * work.width;
      to.set = set;
      to.expert = work.run.expert;
      to.unit = quad * kGroups;
      to.first = work.run.first + start;
      to.live = work.run.count - start < work.width ? work.run.count - start : work.width;
      place += work.cost();
      ++item;
      return;
    }
  }
};

}  // namespace lockstep::kernels::cuda
