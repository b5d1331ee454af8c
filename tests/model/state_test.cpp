// One property for every part of a sequence's state: whatever was appended, captured, rolled back, saved, restored and
// forked, the part is the one that only ever saw the tokens that count.
//
// A part is driven by the backend's own operations with random weights. Its input rows follow from the tokens alone, so
// the truth is a fresh part that replays the surviving tokens one at a time.
#include "model/state.hpp"

#include "backend/fixture.hpp"
#include "kernels/cpu/kernels.hpp"
#include "support/cases.hpp"

namespace lockstep::model {
namespace {

using backend::Run;
using backend::StateType;
using backend::test::Rig;

using Tokens = std::vector<std::int32_t>;
using Saved = std::vector<std::byte>;

/// Weights and pools that the parts of a test share.
struct World {
  explicit World(unsigned seed) : type(seed % 2 == 0 ? StateType::BF16 : StateType::F32), rig(seed, {}, type) {
    pages = std::make_shared<PagePool>(*rig.backend, 2 * backend::page_layout(rig.config, type).bytes);
  }
  StateType type;
  Rig rig;
  std::shared_ptr<PagePool> pages;
};

/// The input rows that `tokens` make, `width` values each. A row follows from its token alone.
std::vector<float> rows_of(std::span<const std::int32_t> tokens, std::int64_t width) {
  std::vector<float> rows;
  for (const std::int32_t token : tokens) {
    const auto row = backend::test::Source(static_cast<unsigned>(token)).values(width);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

/// K/V and index keys of two attention layers.
class KvPart {
 public:
  static constexpr std::size_t kLongest = 75;  ///< tokens appended at once: more than a page
  static KvPart create(World& world) {
    return {world, KvCache::create(*world.rig.backend, world.pages, world.rig.config, world.type, 2).value()};
  }
  void run(std::span<const std::int32_t> tokens, bool /*capture*/) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    ASSERT_TRUE(cache_.prepare(count));
    auto u = rows_of(tokens, world_->rig.config.hidden_size);
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      const backend::AttentionSlot slot = cache_.slot(layer, {0, count});
      world_->rig.backend->attention_keys(world_->rig.attention, u.data(), {&slot, 1}, count);
      for (float& x : u) x *= 0.5F;  // the second layer sees something else
    }
    cache_.append(count);
  }
  void commit(std::int64_t rows, std::int64_t keep) { cache_.truncate(cache_.length() - rows + keep); }
  [[nodiscard]] Saved save() const {
    Saved out;
    StateWriter writer(*world_->rig.backend, out);
    cache_.save(writer);
    return out;
  }
  void restore(const Saved& saved, std::int64_t length) {
    StateReader reader(*world_->rig.backend, saved);
    ASSERT_TRUE(cache_.restore(reader, length));
    EXPECT_EQ(reader.left(), 0U);
  }
  [[nodiscard]] KvPart fork() const { return {*world_, cache_.fork().value()}; }

 private:
  KvPart(World& world, KvCache cache) : world_(&world), cache_(std::move(cache)) {}
  World* world_;
  KvCache cache_;
};

/// Convolution columns and recurrent matrices of two GDN layers: they share the operation that changes them.
class DeltaPart {
 public:
  static constexpr std::size_t kLongest = 12;
  static DeltaPart create(World& world) {
    const artifact::ModelConfig& c = world.rig.config;
    backend::Backend& backend = *world.rig.backend;
    return {world, ConvState::create(backend, 2, c.conv_kernel - 1, c.conv_channels()).value(),
            DeltaState::create(backend, c, 2).value()};
  }
  void run(std::span<const std::int32_t> tokens, bool capture) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    if (capture) {
      ASSERT_TRUE(conv_.prepare_capture(count));
      ASSERT_TRUE(delta_.prepare_capture(count));
    }
    const auto u = rows_of(tokens, world_->rig.config.hidden_size);
    std::vector<float> y(u.size());
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      backend::DeltaSlot slot = delta_.slot(layer, {0, count}, capture);
      slot.conv = conv_.slot(layer, capture);
      const auto& in = layer == 0 ? u : y;
      std::vector<float> out(u.size());
      world_->rig.backend->delta_net(world_->rig.delta, in.data(), {&slot, 1}, count, out.data());
      y = out;
    }
  }
  void commit(std::int64_t rows, std::int64_t keep) {
    delta_.commit(rows, keep);
    conv_.commit(keep);
  }
  [[nodiscard]] Saved save() const {
    Saved out;
    StateWriter writer(*world_->rig.backend, out);
    conv_.save(writer);
    delta_.save(writer);
    return out;
  }
  void restore(const Saved& saved, std::int64_t /*length*/) {
    StateReader reader(*world_->rig.backend, saved);
    ASSERT_TRUE(conv_.restore(reader));
    ASSERT_TRUE(delta_.restore(reader));
    EXPECT_EQ(reader.left(), 0U);
  }
  [[nodiscard]] DeltaPart fork() const { return {*world_, conv_.fork().value(), delta_.fork().value()}; }

 private:
  DeltaPart(World& world, ConvState conv, DeltaState delta)
      : world_(&world), conv_(std::move(conv)), delta_(std::move(delta)) {}
  World* world_;
  ConvState conv_;
  DeltaState delta_;
};

/// Columns of the n-gram branch's dilated convolution.
class PlePart {
 public:
  static constexpr std::size_t kLongest = 20;
  static PlePart create(World& world) {
    const artifact::ModelConfig& c = world.rig.config;
    const std::int64_t history = (c.ple_conv_kernel - 1) * c.ngram_size;
    return {world, ConvState::create(*world.rig.backend, 1, history, c.wide_size()).value()};
  }
  void run(std::span<const std::int32_t> tokens, bool capture) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    if (capture) {
      ASSERT_TRUE(columns_.prepare_capture(count));
    }
    const auto e = rows_of(tokens, world_->rig.config.ple_dim);
    auto x = rows_of(tokens, world_->rig.config.wide_size());
    const backend::PleSlot slot{{0, count}, columns_.slot(0, capture)};
    world_->rig.backend->ple_inject(world_->rig.ple, e.data(), {&slot, 1}, count, x.data());
  }
  void commit(std::int64_t /*rows*/, std::int64_t keep) { columns_.commit(keep); }
  [[nodiscard]] Saved save() const {
    Saved out;
    StateWriter writer(*world_->rig.backend, out);
    columns_.save(writer);
    return out;
  }
  void restore(const Saved& saved, std::int64_t /*length*/) {
    StateReader reader(*world_->rig.backend, saved);
    ASSERT_TRUE(columns_.restore(reader));
    EXPECT_EQ(reader.left(), 0U);
  }
  [[nodiscard]] PlePart fork() const { return {*world_, columns_.fork().value()}; }

 private:
  PlePart(World& world, ConvState columns) : world_(&world), columns_(std::move(columns)) {}
  World* world_;
  ConvState columns_;
};

/// Token ids behind the n-gram hash.
class HistoryPart {
 public:
  static constexpr std::size_t kLongest = 20;
  static HistoryPart create(World& world) { return HistoryPart(world); }
  void run(std::span<const std::int32_t> tokens, bool /*capture*/) { history_.append(tokens); }
  void commit(std::int64_t rows, std::int64_t keep) {
    history_.truncate(static_cast<std::int64_t>(history_.tokens().size()) - rows + keep);
  }
  [[nodiscard]] Saved save() const {
    Saved saved;
    StateWriter writer(*world_->rig.backend, saved);
    history_.save(writer);
    return saved;
  }
  void restore(const Saved& saved, std::int64_t length) {
    StateReader reader(*world_->rig.backend, saved);
    ASSERT_TRUE(history_.restore(reader, length, 1000));
  }
  [[nodiscard]] HistoryPart fork() const {
    HistoryPart copy(*world_);
    copy.history_ = history_.fork();
    return copy;
  }

 private:
  explicit HistoryPart(World& world) : world_(&world) {}

  World* world_;
  NgramHistory history_;
};

Tokens random_tokens(std::mt19937& random, std::size_t most) {
  Tokens tokens(random() % most + 1);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 1000);
  return tokens;
}

template <class Part>
Saved truth(World& world, const Tokens& tokens) {
  Part part = Part::create(world);
  for (const std::int32_t& token : tokens) part.run({&token, 1}, false);
  return part.save();
}

template <class Part>
class State : public testing::Test {};
using Parts = testing::Types<KvPart, DeltaPart, PlePart, HistoryPart>;
TYPED_TEST_SUITE(State, Parts);

TYPED_TEST(State, AnyHistoryOfOperationsLeavesTheTokensThatCount) {
  for (unsigned seed = 0; seed < test::cases(20); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    World world(seed);
    TypeParam part = TypeParam::create(world);
    Tokens tokens;
    // What was put aside earlier, and must not change with what happens afterwards.
    std::vector<std::pair<Saved, Tokens>> saved{{part.save(), {}}};
    std::vector<std::pair<TypeParam, Tokens>> forks;
    std::string log;
    for (int operation = 0; operation < 20; ++operation) {
      switch (random() % 7) {
        case 0: {
          const Tokens added = random_tokens(random, TypeParam::kLongest);
          log += " append " + std::to_string(added.size());
          part.run(added, false);
          tokens.insert(tokens.end(), added.begin(), added.end());
          break;
        }
        case 1:
        case 2: {  // a verify cycle: at most eight rows are taken back (raw_key_ring)
          const Tokens drafted = random_tokens(random, 9);
          const std::size_t keep = drafted.size() - random() % (std::min<std::size_t>(drafted.size(), 8) + 1);
          log += " capture " + std::to_string(keep) + "/" + std::to_string(drafted.size());
          part.run(drafted, true);
          part.commit(static_cast<std::int64_t>(drafted.size()), static_cast<std::int64_t>(keep));
          tokens.insert(tokens.end(), drafted.begin(), drafted.begin() + static_cast<std::ptrdiff_t>(keep));
          break;
        }
        case 3:
          log += " save";
          saved.emplace_back(part.save(), tokens);
          break;
        case 4: {
          log += " restore";
          const auto& [bytes, at] = saved[random() % saved.size()];
          if (random() % 2 == 0) part = TypeParam::create(world);
          part.restore(bytes, static_cast<std::int64_t>(at.size()));
          tokens = at;
          break;
        }
        default: {
          log += " fork";
          forks.emplace_back(part.fork(), tokens);
          if (random() % 4 != 0) {  // go on with one of the copies and put this one aside
            auto& [other, other_tokens] = forks[random() % forks.size()];
            std::swap(part, other);
            std::swap(tokens, other_tokens);
          }
          break;
        }
      }
      ASSERT_EQ(part.save(), truth<TypeParam>(world, tokens)) << log;
    }
    for (const auto& [fork, at] : forks) EXPECT_EQ(fork.save(), truth<TypeParam>(world, at)) << log;
  }
}

TEST(SavedState, ThatEndsEarlyIsRefused) {
  World world(0);
  KvPart kv = KvPart::create(world);
  DeltaPart delta = DeltaPart::create(world);
  const Tokens tokens{1, 2, 3, 4, 5, 6};
  kv.run(tokens, false);
  delta.run(tokens, false);
  const artifact::ModelConfig& c = world.rig.config;
  backend::Backend& backend = *world.rig.backend;
  const auto reader = [&](const Saved& saved, std::size_t size) {
    return StateReader(backend, std::span(saved).first(size));
  };
  const Saved keys = kv.save();
  KvCache cache = KvCache::create(backend, world.pages, c, world.type, 2).value();
  for (const std::size_t size : {std::size_t{0}, keys.size() / 2, keys.size() - 1, keys.size()}) {
    StateReader in = reader(keys, size);
    EXPECT_EQ(cache.restore(in, 6).has_value(), size == keys.size());
  }
  const Saved both = delta.save();
  ConvState conv = ConvState::create(backend, 2, c.conv_kernel - 1, c.conv_channels()).value();
  DeltaState matrices = DeltaState::create(backend, c, 2).value();
  for (const std::size_t size : {std::size_t{0}, both.size() - matrices.bytes() - 1, both.size() - 1, both.size()}) {
    StateReader in = reader(both, size);
    const bool columns = conv.restore(in).has_value();
    EXPECT_EQ(columns, size >= both.size() - matrices.bytes());
    if (columns) {
      EXPECT_EQ(matrices.restore(in).has_value(), size == both.size());
    }
  }
}

class Pages : public testing::Test {
 protected:
  [[nodiscard]] KvCache cache() {
    return KvCache::create(*world_.rig.backend, world_.pages, world_.rig.config, world_.type, 1).value();
  }
  void grow(KvCache& cache, std::int64_t rows) {
    ASSERT_TRUE(cache.prepare(rows));
    cache.append(rows);
  }
  /// The pages of a cache, by address.
  static std::vector<std::byte*> pages_of(KvCache& cache, std::size_t count) {
    const backend::AttentionSlot slot = cache.slot(0, {});
    return {slot.pages, slot.pages + count};
  }
  [[nodiscard]] std::size_t in_use() const { return world_.pages->in_use(); }

  World world_{0};
};

TEST_F(Pages, AreTakenAsNeededAndGivenBack) {
  EXPECT_EQ(in_use(), 0U);
  {
    KvCache a = cache();
    EXPECT_EQ(in_use(), 0U);
    grow(a, 1);
    EXPECT_EQ(in_use(), 1U);
    grow(a, 63);
    EXPECT_EQ(in_use(), 1U);
    grow(a, 1);
    EXPECT_EQ(in_use(), 2U);
    grow(a, 200);
    EXPECT_EQ(in_use(), 5U);
    a.truncate(64);
    EXPECT_EQ(in_use(), 1U);
    a.truncate(0);
    EXPECT_EQ(in_use(), 0U);
    grow(a, 130);
    EXPECT_EQ(in_use(), 3U);
  }
  EXPECT_EQ(in_use(), 0U);
}

TEST_F(Pages, AreReusedBeforeNewOnesAreMade) {
  std::vector<std::byte*> before;
  {
    KvCache a = cache();
    grow(a, 64 * 4);
    before = pages_of(a, 4);
  }
  KvCache b = cache();
  grow(b, 64 * 3);
  for (std::byte* page : pages_of(b, 3)) EXPECT_NE(std::find(before.begin(), before.end(), page), before.end());
}

TEST_F(Pages, OutliveTheirPool) {
  auto pool = std::make_shared<PagePool>(*world_.rig.backend, 128);
  const PageRef page = pool->acquire().value();
  const std::weak_ptr<PagePool> watched = pool;
  pool.reset();
  EXPECT_FALSE(watched.expired());  // the page keeps the pool alive
  std::memset(page->memory->data(), 1, 128);
}

TEST_F(Pages, ForksShareThemUntilOneSideWrites) {
  KvCache a = cache();
  grow(a, 100);
  std::memset(pages_of(a, 2)[0], 0x11, world_.pages->page_bytes());
  std::memset(pages_of(a, 2)[1], 0x22, world_.pages->page_bytes());
  KvCache b = a.fork().value();
  EXPECT_EQ(in_use(), 2U);
  EXPECT_EQ(pages_of(a, 2), pages_of(b, 2));

  grow(b, 1);  // writes to position 100, on the second page
  EXPECT_EQ(in_use(), 3U);
  EXPECT_EQ(pages_of(a, 1), pages_of(b, 1));
  EXPECT_NE(pages_of(a, 2)[1], pages_of(b, 2)[1]);
  EXPECT_EQ(std::memcmp(pages_of(a, 2)[1], pages_of(b, 2)[1], world_.pages->page_bytes()), 0);

  const std::byte* own = pages_of(a, 2)[1];
  grow(a, 1);  // nobody shares its second page any more
  EXPECT_EQ(in_use(), 3U);
  EXPECT_EQ(pages_of(a, 2)[1], own);

  b.truncate(10);  // back into the shared first page
  EXPECT_EQ(in_use(), 2U);
  grow(b, 1);
  EXPECT_EQ(in_use(), 3U);
  EXPECT_NE(pages_of(a, 1), pages_of(b, 1));
}

TEST_F(Pages, AForkAtAPageBorderCopiesNothing) {
  KvCache a = cache();
  grow(a, 128);
  KvCache b = a.fork().value();
  grow(a, 1);
  grow(b, 1);
  EXPECT_EQ(in_use(), 4U);  // two shared, one new each
  EXPECT_EQ(pages_of(a, 2), pages_of(b, 2));
}

}  // namespace
}  // namespace lockstep::model
