#include "engine/bank_file.hpp"

#include <gtest/gtest.h>

#include <random>

namespace lockstep::engine {
namespace {

std::vector<std::byte> random_bytes(std::mt19937& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::vector<std::byte> example(std::mt19937& random) {
  BankFileHead head;
  head.identity = "model " + std::to_string(random() % 100);
  for (std::size_t i = random() % 20; i-- > 0;) head.tokens.push_back(static_cast<std::int32_t>(random()));
  return write_bank_file(head, random_bytes(random, random() % 300), random_bytes(random, random() % 50),
                         random_bytes(random, random() % 50));
}

TEST(BankFile, ReadsWhatItWrote) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    BankFileHead head;
    head.identity = "m";
    head.tokens = {1, -1, 0, INT32_MAX, INT32_MIN};
    const auto state = random_bytes(random, random() % 500);
    const auto hidden = random_bytes(random, random() % 50);
    const auto logits = random_bytes(random, random() % 50);
    const auto bytes = write_bank_file(head, state, hidden, logits);
    const auto file = parse_bank_file(bytes);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->head.identity, "m");
    EXPECT_EQ(file->head.tokens, head.tokens);
    EXPECT_TRUE(std::equal(state.begin(), state.end(), file->state.begin(), file->state.end()));
    EXPECT_TRUE(std::equal(hidden.begin(), hidden.end(), file->hidden.begin(), file->hidden.end()));
    EXPECT_TRUE(std::equal(logits.begin(), logits.end(), file->logits.begin(), file->logits.end()));
  }
}

TEST(BankFile, EveryChangedByteAndEveryCutIsFound) {
  std::mt19937 random(1);
  const auto bytes = example(random);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    auto changed = bytes;
    changed[at] ^= static_cast<std::byte>(1 << random() % 8);
    EXPECT_FALSE(parse_bank_file(changed)) << at;
    EXPECT_FALSE(parse_bank_file(std::span(bytes).first(at))) << at;
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(parse_bank_file(longer));
}

TEST(BankFile, AbsurdCountsAreErrors) {
  std::mt19937 random(2);
  const auto bytes = example(random);
  for (const std::size_t at : {8U, 12U, 16U, 24U, 32U}) {
    for (const std::size_t width : {1U, 2U, 4U}) {
      auto changed = bytes;
      for (std::size_t i = 0; i < width; ++i) changed[at + i] = std::byte{0xff};
      if (changed == bytes) continue;
      EXPECT_FALSE(parse_bank_head(changed));
      EXPECT_FALSE(parse_bank_file(changed));
    }
  }
}

}  // namespace
}  // namespace lockstep::engine
