#include "artifact/ngram_hash.hpp"

#include <gtest/gtest.h>

#include <random>
#include <utility>

namespace lockstep::artifact {
namespace {

using Rows = std::vector<std::vector<std::uint64_t>>;
struct Sequence {
  std::vector<std::int64_t> ids;
  Rows rows;
};

/// Rows of the published geometry: vocabulary 248320, eos 248044, 8 heads for each of two and three tokens.
const std::vector<Sequence>& published() {
  static const std::vector<Sequence> sequences{
      {{248045, 8678, 198},
       {{13981229, 30076798, 49239434, 61315716, 98540601, 111186732, 120378863, 146384625, 173637879, 184336749,
         217808755, 222173721, 249579227, 277180543, 299757935, 312970430},
        {13195481, 23692419, 52825701, 65963205, 92692693, 115764651, 131149483, 159779602, 164082284, 199258323,
         209685996, 226842979, 247008356, 268371579, 282425561, 314691559},
        {6940383, 37862152, 43457155, 63440399, 86422693, 100778760, 132339724, 141137641, 163246354, 189262606,
         201304103, 222875435, 259392262, 276243088, 281934284, 310947174}}},
      {{100, 200, 300, 400},
       {{5727835, 21884476, 43702108, 66434789, 84094509, 104112171, 134886528, 157314943, 162363667, 189466439,
         200618315, 232121522, 258547276, 266199001, 289022207, 305180972},
        {6669481, 25231135, 54517055, 75522994, 90676203, 102395039, 139974376, 143415227, 164675732, 199178354,
         201246635, 232214480, 253236281, 274617176, 281823939, 318456244},
        {6129193, 20484628, 57667260, 77728366, 86357215, 109234597, 123551585, 149309416, 172664702, 184433127,
         201501905, 227445817, 243341740, 279238932, 284538191, 311036336},
        {8950960, 39009892, 54050508, 79119865, 89190879, 119217009, 124258310, 144317584, 174022881, 198810976,
         211076360, 220481091, 242901567, 265324557, 292799606, 310178075}}},
      {{7, 248044, 9, 10, 11},
       {{2927653, 34980843, 54748278, 66612378, 97814964, 109013870, 126560393, 151352333, 167888935, 182235580,
         215170017, 237467519, 247510681, 278779700, 296141806, 304994522},
        {10204458, 27984170, 41283776, 68842151, 85621153, 118821647, 129504214, 158727320, 162716417, 183296409,
         205500418, 223498012, 243883332, 265230110, 285892800, 310808036},
        {18043673, 37626835, 51159316, 78294604, 94015356, 106720349, 136526052, 144330141, 176817901, 186368539,
         203707490, 230017629, 247662678, 266533413, 293096193, 307951937},
        {9058818, 22549699, 59295284, 70739163, 94834058, 109532400, 131579937, 140976624, 161240996, 180399177,
         207901329, 234407067, 257761224, 261474748, 289459362, 309980676},
        {2940504, 22060242, 51620224, 61004244, 80476372, 100300474, 130036651, 149684858, 173362898, 196100904,
         215961922, 238421990, 249791083, 261160182, 298283484, 303898565}}},
      {{248044},
       {{9663979, 26558231, 56120240, 74755659, 80459717, 109265651, 132697467, 151022725, 170054832, 192967038,
         200687722, 225763581, 259275737, 272983544, 297596484, 300986548}}},
      {{248056, 248056, 248056},
       {{10504160, 21882154, 48686244, 67460821, 81855834, 113558801, 131336177, 155455641, 166217823, 180455161,
         211388920, 234217615, 243392706, 272763802, 289264411, 312093393},
        {16982399, 34740182, 54733895, 75973670, 98195745, 119174304, 120865008, 143535541, 167136927, 183395198,
         200019744, 236249698, 256434888, 276815888, 296986508, 318165314},
        {16982399, 34740182, 54733895, 75973670, 98195745, 119174304, 120865008, 143535541, 168080783, 195121389,
         200991716, 226494397, 242070342, 277842220, 296476407, 309972988}}},
  };
  return sequences;
}

ModelConfig published_config() {
  ModelConfig config;
  config.vocab_size = 248320;
  config.ngram_eos = 248044;
  config.ngram_size = 3;
  config.heads_per_ngram = 8;
  config.ple_dim = 2560;
  config.ngram_vocab_base = 20'000'000;
  config.ngram_vocab_multiple = 128;
  return config;
}

ModelConfig tiny_config() {
  ModelConfig config;
  config.vocab_size = 256;
  config.ngram_eos = 2;
  config.ngram_size = 3;
  config.heads_per_ngram = 2;
  config.ple_dim = 64;
  config.ngram_vocab_base = 97;
  config.ngram_vocab_multiple = 8;
  return config;
}

Rows rows_of(const NgramHash& hash, const ModelConfig& config, const std::vector<std::int64_t>& ids) {
  Rows all;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::vector<std::int64_t> window;
    for (std::size_t back = 0; back < static_cast<std::size_t>(config.ngram_size); ++back) {
      window.push_back(back <= i ? ids[i - back] : config.ngram_eos);
    }
    cut_ngram_window(window, config.ngram_eos);
    all.emplace_back(hash.sizes.size());
    ngram_rows(hash, window, all.back());
  }
  return all;
}

TEST(NgramHash, PublishedConstants) {
  const auto hash = make_ngram_hash(published_config());
  ASSERT_TRUE(hash);
  EXPECT_EQ(hash->multipliers, (std::vector<std::uint64_t>{23703573157769, 20109073645365, 8052911324071}));
  EXPECT_EQ(hash->sizes, (std::vector<std::uint64_t>{20000003, 20000023, 20000033, 20000047, 20000059, 20000063,
                                                     20000069, 20000077, 20000081, 20000093, 20000107, 20000147,
                                                     20000153, 20000159, 20000161, 20000171}));
  EXPECT_EQ(hash->offsets, (std::vector<std::uint64_t>{0, 20000003, 40000026, 60000059, 80000106, 100000165, 120000228,
                                                       140000297, 160000374, 180000455, 200000548, 220000655, 240000802,
                                                       260000955, 280001114, 300001275}));
  EXPECT_EQ(ngram_padded_rows(*hash, 128), 320001536U);
}

TEST(NgramHash, PublishedRows) {
  const auto hash = make_ngram_hash(published_config());
  ASSERT_TRUE(hash);
  for (const Sequence& sequence : published()) {
    SCOPED_TRACE(testing::PrintToString(sequence.ids));
    EXPECT_EQ(rows_of(*hash, published_config(), sequence.ids), sequence.rows);
  }
}

TEST(NgramHash, TinyGeometry) {
  const auto hash = make_ngram_hash(tiny_config());
  ASSERT_TRUE(hash);
  EXPECT_EQ(hash->multipliers, (std::vector<std::uint64_t>{4295158889762567, 35454616657218897, 19285316470915801}));
  EXPECT_EQ(hash->sizes, (std::vector<std::uint64_t>{97, 101, 103, 107}));
  EXPECT_EQ(hash->offsets, (std::vector<std::uint64_t>{0, 97, 198, 301}));
  EXPECT_EQ(ngram_padded_rows(*hash, 8), 408U);
  EXPECT_EQ(rows_of(*hash, tiny_config(), {5, 6, 2, 7, 8, 9, 10}), (Rows{{59, 161, 300, 371},
                                                                         {93, 101, 267, 342},
                                                                         {4, 131, 198, 340},
                                                                         {55, 140, 234, 362},
                                                                         {53, 192, 294, 357},
                                                                         {57, 132, 300, 327},
                                                                         {92, 156, 266, 400}}));
}

TEST(NgramHash, TheWindowEndsAtTheFirstEos) {
  std::vector<std::int64_t> window{2, 7, 2, 9, 2};
  cut_ngram_window(window, 2);
  EXPECT_EQ(window, (std::vector<std::int64_t>{2, 7, 2, 2, 2}));
  window = {5, 2, 7};
  cut_ngram_window(window, 2);
  EXPECT_EQ(window, (std::vector<std::int64_t>{5, 2, 2}));
}

TEST(NgramHash, WhatThePastAddsGivesTheSameRows) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    NgramHash hash;
    const std::size_t size = random() % 4 + 2, per = random() % 3 + 1;
    for (std::size_t i = 0; i < size; ++i) hash.multipliers.push_back(random() >> 20 | 1U);
    for (std::size_t head = 0; head < (size - 1) * per; ++head) {
      hash.sizes.push_back(random() % 1000 + 1);
      hash.offsets.push_back(random() % 1000);
    }
    std::vector<std::int64_t> window(size);
    for (std::int64_t& token : window) token = static_cast<std::int64_t>(random() % 250'000);
    std::vector<std::uint64_t> rows(hash.sizes.size()), past(size - 1);
    ngram_rows(hash, window, rows);
    const auto token = static_cast<std::uint64_t>(std::exchange(window[0], -1));  // not looked at
    ngram_past(hash, window, past);
    for (std::size_t head = 0; head < rows.size(); ++head) {
      const std::uint64_t mix = token * hash.multipliers[0] ^ past[head / per];
      ASSERT_EQ(mix % hash.sizes[head] + hash.offsets[head], rows[head]) << "head " << head;
    }
  }
}

TEST(NgramHash, ConstantsOfAFileAreChecked) {
  const ModelConfig config = tiny_config();
  const NgramHash good = *make_ngram_hash(config);
  EXPECT_TRUE(check_ngram_hash(good, config, 408));
  EXPECT_FALSE(check_ngram_hash(good, config, 407));
  const auto broken = [&](auto change) {
    NgramHash hash = good;
    change(hash);
    return !check_ngram_hash(hash, config, 408);
  };
  EXPECT_TRUE(broken([](NgramHash& hash) { hash.sizes[1] = 0; }));
  EXPECT_TRUE(broken([](NgramHash& hash) { hash.sizes[1] = ~std::uint64_t{0}; }));
  EXPECT_TRUE(broken([](NgramHash& hash) { hash.offsets[3] = ~std::uint64_t{0}; }));
  EXPECT_TRUE(broken([](NgramHash& hash) { hash.offsets[3] = 302; }));
  EXPECT_TRUE(broken([](NgramHash& hash) { hash.offsets.pop_back(); }));
  EXPECT_TRUE(broken([](NgramHash& hash) { hash.multipliers.push_back(1); }));
  EXPECT_TRUE(broken([](NgramHash& hash) { hash.multipliers[0] = std::uint64_t{1} << 62; }));
}

TEST(NgramHash, AnAbsurdTableIsRefused) {
  ModelConfig config = published_config();
  config.ngram_vocab_base = std::int64_t{1} << 32;
  config.heads_per_ngram = 64;
  config.ngram_size = 8;
  EXPECT_EQ(make_ngram_hash(config).error().kind, ErrorKind::Limit);
}

}  // namespace
}  // namespace lockstep::artifact
