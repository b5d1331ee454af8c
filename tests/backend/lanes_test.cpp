// The parts that the lanes inside the CPU backend are made of, against plain containers.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <list>
#include <random>

#include "backend/cpu/ple_aux.hpp"
#include "backend/cpu/pooled_rowsel.hpp"
#include "kernels/cpu/kernels.hpp"

namespace lockstep::backend {
namespace {

/// Random scores with many ties, both zeros, infinities and the odd NaN.
std::vector<float> random_scores(std::mt19937& random, std::size_t count) {
  std::vector<float> scores(count);
  const unsigned kind = random() % 4;
  for (float& score : scores) {
    score = kind == 0 ? static_cast<float>(random() % 5) : static_cast<float>(random() % 100000) * 0.01F - 300.0F;
    if (kind == 1 && random() % 3 == 0) score = random() % 2 == 0 ? 0.0F : -0.0F;
    if (kind == 2 && random() % 20 == 0) {
      const float odd[] = {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()};
      score = odd[random() % 4];
    }
  }
  if (kind == 3) std::sort(scores.begin(), scores.end());  // every score beats all before it
  return scores;
}

TEST(TopGroups, AreThoseOfTheSelectionKernelHoweverTheStreamIsCut) {
  const kernels::Kernels& kernels = *kernels::find_kernels("scalar");
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::size_t count = random() % 700 + 1;
    const std::size_t budget = random() % 4 == 0 ? count : random() % count + 1;
    const std::vector<float> scores = random_scores(random, count);
    std::vector<std::int32_t> expected(budget);
    std::vector<std::uint64_t> scratch(count);
    kernels.top_k(scores.data(), static_cast<std::int64_t>(count), static_cast<std::int64_t>(budget), expected.data(),
                  scratch.data());
    std::sort(expected.begin(), expected.end());

    std::vector<TopGroups> parts(random() % 4 + 1);
    for (TopGroups& part : parts) part.start(static_cast<std::int64_t>(budget));
    for (std::size_t first = 0; first < count;) {
      const std::size_t piece = std::min<std::size_t>(count - first, random() % 80 + 1);
      parts[random() % parts.size()].add(scores.data() + first, static_cast<std::int64_t>(first),
                                         static_cast<std::int64_t>(piece));
      first += piece;
    }
    for (std::size_t i = 1; i < parts.size(); ++i) parts[0].merge(parts[i]);
    ASSERT_EQ(parts[0].finish(), expected);
  }
}

TEST(TopGroups, FewerGroupsThanTheBudgetAreAllTaken) {
  TopGroups top;
  top.start(8);
  const float scores[] = {-1.0F, 5.0F, -std::numeric_limits<float>::infinity()};
  top.add(scores, 40, 3);
  EXPECT_EQ(top.finish(), (std::vector<std::int32_t>{40, 41, 42}));
  EXPECT_EQ(top.kept(), 3U);
  top.start(1);
  EXPECT_TRUE(top.finish().empty());
}

struct Products {
  std::vector<std::int64_t> ids;
  std::vector<float> key, value;
};

TEST(PleAux, KeepsTheLatestEntriesOfItsSize) {
  constexpr std::int64_t kHeads = 3, kWide = 8, kHidden = 2;
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::size_t entry = RowCache::slot_bytes(kHeads * 8 + (kWide + kHidden) * 4);
    const std::size_t capacity = random() % 12 + 1;
    PleAux aux = PleAux::create(kHeads, kWide, kHidden, entry * capacity).value();
    ASSERT_EQ(aux.capacity(), capacity);
    std::list<Products> model;  // the newest first
    for (int step = 0; step < 400; ++step) {
      const std::vector<std::int64_t> ids{static_cast<std::int64_t>(random() % 4),
                                          static_cast<std::int64_t>(random() % 3), 7};
      const auto known = std::find_if(model.begin(), model.end(), [&](const Products& p) { return p.ids == ids; });
      std::vector<float> key(kWide), value(kHidden);
      ASSERT_EQ(aux.take(ids.data(), key.data(), value.data()), known != model.end());
      if (known != model.end()) {
        EXPECT_EQ(key, known->key);
        EXPECT_EQ(value, known->value);
        model.splice(model.begin(), model, known);
        continue;
      }
      if (random() % 4 == 0) continue;
      for (float& x : key) x = static_cast<float>(random());
      for (float& x : value) x = static_cast<float>(random());
      EXPECT_EQ(aux.put(ids.data(), key.data(), value.data()), model.size() == capacity);
      if (model.size() == capacity) model.pop_back();
      model.push_front({ids, key, value});
      if (random() % 5 == 0) {  // again, as when a step has a token twice
        model.front().key[0] += 1;
        EXPECT_FALSE(aux.put(ids.data(), model.front().key.data(), value.data()));
      }
    }
  }
}

TEST(PleAux, HasRoomForOneEntryAtLeast) {
  PleAux aux = PleAux::create(16, 10240, 2560, 1).value();
  EXPECT_EQ(aux.capacity(), 1U);
  EXPECT_GT(PleAux::create(16, 10240, 2560, 32 << 20).value().capacity(), 600U);
}

}  // namespace
}  // namespace lockstep::backend
