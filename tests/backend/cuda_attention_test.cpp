// Attention of the CUDA backend against the processor's in long contexts: the choice among up to 70,000 groups with
// equal scores, scores that are no numbers, and every way in which rows come.
#include "backend/cuda_fixture.hpp"
#include "numerics/bits.hpp"

namespace lockstep::backend {
namespace {

enum class IndexKeys { Random, NotNumbers, FewValues, Zero };

artifact::ModelConfig long_config() {
  artifact::ModelConfig c = test::tiny_config();
  c.attention_heads = 8;
  c.kv_heads = 2;
  c.head_dim = 64;
  c.rotary_dim = 16;
  c.indexer_heads = 4;
  c.indexer_dim = 128;
  c.indexer_budget = 256;
  c.max_positions = 300'000;
  return c;
}

constexpr std::int64_t kShared = 41;  ///< pages that repeat themselves before the newest ones: their groups tie

/// Sequences of one backend whose contexts share their older pages; `own`: how many newer ones each has.
class Contexts {
 public:
  Contexts(Rig& rig, std::int64_t sequences, std::int64_t own, std::int64_t position, IndexKeys kind, unsigned seed)
      : rig_(rig) {
    Source source(seed);
    const PageLayout layout = page_layout(rig.config, StateType::BF16);
    for (std::int64_t i = 0; i < kShared + own * sequences; ++i) {
      std::vector<std::uint16_t> bits(layout.bytes / 2);
      for (std::uint16_t& b : bits) b = numerics::float_to_bf16(source.value());
      for (std::size_t k = layout.index / 2; k < bits.size(); ++k) {
        if (kind == IndexKeys::NotNumbers && source.below(4000) == 0) bits[k] = 0x7fc0;
        if (kind == IndexKeys::FewValues && source.below(2) == 0) bits[k] = bits[k % 3];
        if (kind == IndexKeys::Zero) bits[k] = 0;
      }
      pages_.push_back(rig.backend->allocate(layout.bytes).value());
      rig.backend->write(pages_.back()->data(), bits.data(), layout.bytes);
    }
    const std::int64_t older = position / 64;
    for (std::int64_t s = 0; s < sequences; ++s) {
      std::vector<std::byte*>& table = tables_.emplace_back();
      for (std::int64_t i = 0; i < older; ++i) table.push_back(page(i * 29 % kShared));
      for (std::int64_t i = 0; i < own; ++i) table.push_back(page(kShared + own * s + i));
      raw_.emplace_back(*rig.backend, source.values(raw_key_ring(rig.config.indexer_ratio) * rig.config.indexer_dim));
    }
  }

  std::vector<float> attend(std::span<const float> u, std::int64_t rows_each, std::int64_t position) {
    std::vector<AttentionSlot> slots;
    std::int64_t rows = 0;
    auto raw = raw_.begin();
    for (const std::vector<std::byte*>& table : tables_) {
      slots.push_back({{rows, rows_each}, position, table.data(), 0, (raw++)->data()});
      rows += rows_each;
    }
    Array in(*rig_.backend, u);
    Array out(*rig_.backend, std::ssize(u));
    rig_.backend->attention(rig_.attention, in.data(), slots, rows, out.data());
    return out.values();
  }

  /// What the sequences' newest pages and rings hold.
  std::vector<float> state() {
    std::vector<float> all;
    for (Array& raw : raw_) {
      for (const float x : raw.values()) all.push_back(x);
    }
    for (std::size_t i = kShared; i < pages_.size(); ++i) {
      std::vector<std::uint16_t> bits(pages_[i]->size() / 2);
      rig_.backend->read(bits.data(), pages_[i]->data(), bits.size() * 2);
      for (const std::uint16_t b : bits) all.push_back(b);
    }
    return all;
  }

 private:
  std::byte* page(std::int64_t i) { return pages_[static_cast<std::size_t>(i)]->data(); }

  Rig& rig_;
  std::vector<BufferPtr> pages_;
  std::vector<std::vector<std::byte*>> tables_;
  std::list<Array> raw_;
};

struct Sides {
  explicit Sides(std::unique_ptr<Backend> cuda, const artifact::ModelConfig& config = long_config())
      : cpu(50, open_cpu(), StateType::BF16, config), device(50, std::move(cuda), StateType::BF16, config) {
    EXPECT_TRUE(cpu.backend->prepare_positions(cpu.config.max_positions));
    EXPECT_TRUE(device.backend->prepare_positions(cpu.config.max_positions));
  }
  void compare(std::int64_t sequences, std::int64_t rows_each, std::int64_t position, IndexKeys kind, unsigned seed) {
    const std::int64_t own = (2 * rows_each + 63) / 64 + 1;
    Contexts a(cpu, sequences, own, position, kind, seed);
    Contexts b(device, sequences, own, position, kind, seed);
    Source source(seed + 1);
    for (int step = 0; step < 2; ++step) {
      const std::string name = fmt::format("seed {}, {} sequences of {} rows at {}, keys {}, step {}", seed, sequences,
                                           rows_each, position, static_cast<int>(kind), step);
      const auto u = source.values(sequences * rows_each * cpu.config.hidden_size);
      expect_same(name, a.attend(u, rows_each, position), b.attend(u, rows_each, position));
      expect_same(name + ", state", a.state(), b.state());
      position += rows_each;
    }
    EXPECT_TRUE(device.backend->status());
  }
  Rig cpu, device;
};

TEST_F(Cuda, AttentionOfEveryNumberOfRows) {
  Sides sides(next());
  for (std::int64_t rows = 1; rows <= 17; ++rows) {
    const auto seed = static_cast<unsigned>(100 * rows);
    Source source(seed);
    sides.compare(rows, 1, 250 + source.below(20), IndexKeys::Random, seed);
    sides.compare(rows, 1, 1000 + source.below(6000), IndexKeys::Random, seed + 1);
    sides.compare(1, rows, 240 + source.below(30), IndexKeys::FewValues, seed + 2);
    sides.compare(1, rows, 1000 + source.below(6000), IndexKeys::Random, seed + 3);
    if (rows <= 5) sides.compare(3, rows, 4090 + source.below(10), IndexKeys::FewValues, seed + 4);
  }
}

/// Rows whose positions are chosen by a block each, and that are attended to by a few warps each.
TEST_F(Cuda, AttentionOfManyRows) {
  artifact::ModelConfig config = long_config();
  config.attention_heads = 16;
  config.head_dim = 256;
  Sides sides(next(), config);
  unsigned seed = 500;
  sides.compare(1, 200, 0, IndexKeys::Random, ++seed);
  sides.compare(1, 70, 1010, IndexKeys::FewValues, ++seed);
  sides.compare(1, 130, 1010, IndexKeys::NotNumbers, ++seed);
  sides.compare(1, 131, 3000, IndexKeys::Zero, ++seed);
  sides.compare(3, 50, 5000, IndexKeys::Random, ++seed);
}

/// The borders between one kernel, clusters of blocks, and contexts that are too long for those.
TEST_F(Cuda, AttentionInLongContexts) {
  Sides sides(next());
  unsigned seed = 0;
  for (const std::int64_t position : {16'383, 16'388, 30'001, 65'530, 65'540, 131'071, 262'100, 270'003}) {
    sides.compare(1, 1, position, IndexKeys::Random, ++seed);
    sides.compare(1, 3, position, IndexKeys::Random, ++seed);
    sides.compare(2, 1, position, IndexKeys::FewValues, ++seed);
  }
  sides.compare(16, 1, 70'001, IndexKeys::Random, ++seed);
  sides.compare(1, 16, 131'050, IndexKeys::Random, ++seed);
}

TEST_F(Cuda, AttentionWithEqualScoresAndNotANumber) {
  Sides sides(next());
  unsigned seed = 0;
  for (const std::int64_t position : {1022, 5000, 60'001, 200'001}) {
    for (const IndexKeys kind : {IndexKeys::NotNumbers, IndexKeys::FewValues, IndexKeys::Zero}) {
      sides.compare(1, 1, position, kind, ++seed);
      sides.compare(1, 4, position, kind, ++seed);
    }
  }
}

}  // namespace
}  // namespace lockstep::backend
