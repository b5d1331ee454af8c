#include "numerics/pcg64.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/file.hpp"
#include "base/json.hpp"

namespace lockstep::numerics {
namespace {

// "0x..." of up to 128 bits.
Uint128 wide(const Json& text) {
  Uint128 value = 0;
  for (const char digit : text.get<std::string>().substr(2)) {
    value = value * 16 + static_cast<unsigned>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
  }
  return value;
}

std::uint64_t narrow(const Json& text) {
  return static_cast<std::uint64_t>(wide(text));
}

Json vectors() {
  const auto text = read_file(LOCKSTEP_TEST_DATA "/sampler/vectors.json", 1 << 20);
  EXPECT_TRUE(text.has_value());
  const auto json = parse_json(text.value_or("{}"), "vectors.json");
  EXPECT_TRUE(json.has_value());
  return json.value_or(Json());
}

TEST(Pcg64, PublishedFirstDoubles) {
  struct Row {
    std::uint64_t seed;
    double first, second, third;
  };
  for (const Row& row : {Row{0, 0.6369616873214543, 0.2697867137638703, 0.04097352393619469},
                         Row{42, 0.7739560485559633, 0.4388784397520523, 0.8585979199113825},
                         Row{12345, 0.22733602246716966, 0.31675833970975287, 0.7973654573327341},
                         Row{20260829, 0.6552478973615384, 0.47276084874219415, 0.4360943054386007},
                         Row{20260830, 0.16272330056498718, 0.4724872090472101, 0.34775772908097347},
                         Row{20260831, 0.16195510615213327, 0.6435210415106607, 0.9070350071981683}}) {
    SCOPED_TRACE(row.seed);
    Pcg64 generator(row.seed);
    EXPECT_EQ(generator.next_double(), row.first);
    EXPECT_EQ(generator.next_double(), row.second);
    EXPECT_EQ(generator.next_double(), row.third);
  }
}

TEST(Pcg64, PublishedInitialState) {
  const Pcg64 generator(12345);
  EXPECT_TRUE(generator.state() == wide("0x1905e0335aae96349199b0d09775add5"));
  EXPECT_TRUE(generator.increment() == wide("0xc9c7353e6e2b1f287d761f2d4027fae7"));
}

TEST(Pcg64, EqualsNumpy) {
  const Json data = vectors();
  ASSERT_EQ(data["generators"].size(), 12U);
  for (const Json& row : data["generators"]) {
    SCOPED_TRACE(row["seed"].get<std::string>());
    const std::uint64_t seed = narrow(row["seed"]);
    std::vector<std::uint64_t> words(row["sequence"].size());
    seed_sequence(seed, words);
    for (std::size_t i = 0; i < words.size(); ++i) EXPECT_EQ(words[i], narrow(row["sequence"][i]));

    Pcg64 generator(seed);
    EXPECT_TRUE(generator.state() == wide(row["state"]));
    EXPECT_TRUE(generator.increment() == wide(row["increment"]));
    Pcg64 raw = generator;
    for (const Json& value : row["raw"]) EXPECT_EQ(raw.next(), narrow(value));
    EXPECT_EQ(generator.uniform_at(1000), row["double_1000"].get<double>());
    for (const Json& value : row["doubles"]) EXPECT_EQ(generator.next_double(), value.get<double>());
  }
}

TEST(Pcg64, SkipsLikeNumpyAdvance) {
  const Json data = vectors();
  ASSERT_EQ(data["skips"].size(), 4U);
  for (const Json& row : data["skips"]) {
    Pcg64 generator(narrow(row["seed"]));
    generator.skip(narrow(row["count"]));
    EXPECT_EQ(generator.next(), narrow(row["next"])) << row;
  }
}

TEST(Pcg64, RandomAccessEqualsTheSequence) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 20; ++round) {
    const std::uint64_t seed = random();
    SCOPED_TRACE(seed);
    const Pcg64 start(seed);
    Pcg64 generator = start;
    for (std::uint64_t n = 0; n < 300; ++n) {
      EXPECT_EQ(start.uniform_at(n), generator.next_double());
      Pcg64 jumped = start;
      jumped.skip(n + 1);
      EXPECT_TRUE(jumped == generator);
    }
    EXPECT_FALSE(generator == start);
  }
}

}  // namespace
}  // namespace lockstep::numerics
