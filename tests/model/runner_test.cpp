// Steps that cannot run are errors, and leave every sequence as it was.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "model/fixture.hpp"

namespace lockstep::model {
namespace {

class RunnerTest : public testing::Test {
 protected:
  /// Expects that `step` fails with a message containing `part` and changes nothing.
  void expect_refused(const std::function<Status()>& step, const std::string& part) {
    const auto before = sequence_.save();
    const Status status = step();
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
    EXPECT_EQ(sequence_.save(), before);
  }
  [[nodiscard]] Status forward(std::span<const std::int32_t> tokens, bool capture) {
    const Segment segment{&sequence_, tokens, LogitsWanted::Last, capture};
    return runner_.forward({&segment, 1});
  }

  Loaded loaded_ = load(std::string(LOCKSTEP_TEST_DATA) + "/toy-pack", backend::StateType::BF16);
  Runner runner_ = Runner::create(*loaded_.model, 16).value();
  Sequence sequence_ = Sequence::create(*loaded_.model).value();
};

TEST_F(RunnerTest, SegmentsWithoutTokens) {
  const std::vector<std::int32_t> tokens{1, 2, 3};
  ASSERT_TRUE(forward(tokens, false));
  expect_refused([&] { return forward({}, false); }, "no tokens");
  expect_refused([&] { return forward({}, true); }, "no tokens");
  Sequence other = Sequence::create(*loaded_.model).value();
  const std::array segments{Segment{&sequence_, tokens, LogitsWanted::All, false},
                            Segment{&other, {}, LogitsWanted::Last, false}};
  expect_refused([&] { return runner_.forward(segments); }, "no tokens");
  const DraftSegment draft{&sequence_, {}, runner_.wide(0), LogitsWanted::Last};
  expect_refused([&] { return runner_.draft({&draft, 1}); }, "no tokens");
  expect_refused([&] { return runner_.draft_fill({&draft, 1}); }, "no tokens");
}

TEST_F(RunnerTest, MoreRowsThanFit) {
  const std::vector<std::int32_t> tokens(17, 5);
  expect_refused([&] { return forward(tokens, false); }, "17 rows");
  const std::array segments{Segment{&sequence_, std::span(tokens).first(16), LogitsWanted::Last, false},
                            Segment{&sequence_, std::span(tokens).first(1), LogitsWanted::Last, false}};
  expect_refused([&] { return runner_.forward(segments); }, "17 rows");
}

// All captured rows may be rejected, so there can be only as many as the ring of raw index keys lets be taken back.
TEST_F(RunnerTest, CapturedRowsAreAsManyAsCanBeTakenBack) {
  std::mt19937 random(1);
  const auto most = static_cast<std::size_t>(backend::raw_key_ring(4) - 4);
  const std::vector<std::int32_t> tokens(most + 1, 9);
  expect_refused([&] { return forward(tokens, true); }, "captured");
  for (std::size_t start = 0; start < 8; ++start) {
    if (start > 0) {
      const auto token = static_cast<std::int32_t>(random() % 512);
      ASSERT_TRUE(forward({&token, 1}, false));
    }
    const auto before = sequence_.save();
    ASSERT_TRUE(forward(std::span(tokens).first(most), true));
    sequence_.commit(static_cast<std::int64_t>(most), 0);
    EXPECT_EQ(sequence_.save(), before) << start;
  }
}

}  // namespace
}  // namespace lockstep::model
