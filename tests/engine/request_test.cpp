#include "engine/request.hpp"

#include <gtest/gtest.h>

#include <set>

namespace lockstep::engine {
namespace {

TEST(ChoiceSeed, IsTheRequestsOwnForTheFirstAndTheDocumentedOneForOthers) {
  EXPECT_EQ(choice_seed(7, 0), 7U);
  EXPECT_EQ(choice_seed(7, 1), 0xb6e2509787f0ee11U);  // the example of docs/sampling.md
}

TEST(ChoiceSeed, DiffersBetweenChoicesAndSeeds) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (std::uint64_t i = 0; i < 20; ++i) seen.insert(choice_seed(seed, i));
  }
  EXPECT_EQ(seen.size(), 400U);
}

}  // namespace
}  // namespace lockstep::engine
