// E2: restored == cold, from memory and from disk, and what the bank keeps, drops and says about it.
#include "engine/bank.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <fstream>

#include "base/file.hpp"
#include "engine/fixture.hpp"
#include "engine/memory_plan.hpp"
#include "support/cases.hpp"
#include "support/scratch.hpp"

namespace lockstep::engine {
namespace {

namespace fs = std::filesystem;

const model::Model& toy() {
  return shared_model(kToyPack);
}

Request chat(std::vector<TokenId> prompt, std::vector<std::int64_t> boundaries, std::int64_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.boundaries = std::move(boundaries);
  request.sampler.temperature = 0.8;
  request.sampler.seed = 5;
  request.max_tokens = max_tokens;
  return request;
}

/// Runs one request and returns its answer; how it started is in `start`.
Answer ask(Engine& engine, const Request& request, Start* start = nullptr) {
  const auto sink = std::make_shared<Recorder>(request.n);
  const auto ticket = engine.submit(request, sink);
  EXPECT_TRUE(ticket) << (ticket ? "" : ticket.error().message);
  if (!ticket) return {};
  sink->wait();
  EXPECT_FALSE(sink->choice().error) << sink->choice().error->message;
  if (start != nullptr && sink->started()) *start = *sink->started();
  EXPECT_TRUE(engine.wait_idle(60));  // the states are in the bank
  return sink->choice().answer;
}

std::vector<fs::path> states_in(const fs::path& directory) {
  std::vector<fs::path> states;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ".state") states.push_back(entry.path());
  }
  return states;
}

class BankEquality : public testing::TestWithParam<std::string> {};

TEST_P(BankEquality, RestoredEqualsCold) {
  const model::Model& model = shared_model(GetParam());
  const std::int64_t vocab = model.config().vocab_size;
  const bool demo = GetParam() == kDemo;
  for (unsigned seed = 0; seed < (demo ? 2U : 6U); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const test::ScratchDirectory directory;
    Options options;
    options.depth = seed % 3 == 0 ? 0 : 3;
    options.prefill_chunk = static_cast<std::int64_t>(random() % 60 + 1);
    options.bank.interval = std::array<std::int64_t, 4>{0, 1, 7, 32}[random() % 4];
    options.identity = "toy";
    if (seed % 2 == 0) options.bank.directory = directory.path();
    auto engine = engine_for(model, options);
    std::vector<std::vector<TokenId>> known;
    std::int64_t reused = 0;
    for (int turn = 0; turn < (demo ? 8 : 16); ++turn) {
      SCOPED_TRACE("turn " + std::to_string(turn));
      Request request = random_request(random, vocab, 60);
      request.sampler.acceptance = decode::AcceptanceRule::Stream;
      if (!known.empty() && random() % 4 != 0) {
        // A continuation, an edit, or the same again.
        std::vector<TokenId> prompt = known[random() % known.size()];
        const unsigned kind = random() % 4;
        if (kind == 0 && prompt.size() > 1) prompt.resize(random() % (prompt.size() - 1) + 1);
        if (kind != 1) prompt.insert(prompt.end(), request.prompt.begin(), request.prompt.end());
        request.boundaries.clear();
        for (std::size_t at = random() % 20 + 1; at < prompt.size(); at += random() % 30 + 1) {
          request.boundaries.push_back(static_cast<std::int64_t>(at));
        }
        request.prompt = std::move(prompt);
      }
      const Answer expected = alone(model, request);
      Start start;
      ASSERT_EQ(ask(*engine, request, &start), expected);
      reused += start.cached_tokens;
      EXPECT_LE(start.cached_tokens, start.common_tokens);
      known.push_back(request.prompt);
      known.back().insert(known.back().end(), expected.ids.begin(), expected.ids.end());
      if (!options.bank.directory.empty() && random() % 5 == 0) {
        engine.reset();  // a restart: memory is gone, files stay
        engine = engine_for(model, options);
      }
    }
    EXPECT_GT(reused, 0);
    if (!options.bank.directory.empty()) {
      engine.reset();
      engine = engine_for(model, options);
      EXPECT_GT(engine->stats().bank.files, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, BankEquality, testing::Values(kToyPack, kToyHf, kDemo), test_name);

TEST(Bank, ASecondTurnRunsOnlyWhatIsNew) {
  std::mt19937 random(1);
  const auto engine = engine_for(toy());
  std::vector<TokenId> prompt = random_tokens(random, 200, 512);
  const Answer first = ask(*engine, chat(prompt, {120, 190}, 20));
  // The answer as it was, and a new question.
  std::vector<TokenId> second = prompt;
  second.insert(second.end(), first.ids.begin(), first.ids.end());
  const std::vector<TokenId> question = random_tokens(random, 15, 512);
  second.insert(second.end(), question.begin(), question.end());
  Start start;
  ask(*engine, chat(second, {120, 190, 220}, 5), &start);
  EXPECT_EQ(start.cached_tokens, static_cast<std::int64_t>(200 + first.ids.size()) - 1);
  EXPECT_EQ(start.miss, Miss::None);
  // The template has dropped the answer's reasoning: the last message's end is still known.
  std::vector<TokenId> other(prompt.begin(), prompt.begin() + 190);
  other.insert(other.end(), question.begin(), question.end());
  ask(*engine, chat(other, {}, 5), &start);
  EXPECT_EQ(start.cached_tokens, 190);
  // The same prompt again needs no row at all.
  ask(*engine, chat(prompt, {}, 5), &start);
  EXPECT_EQ(start.cached_tokens, 200);
  EXPECT_EQ(start.miss, Miss::None);
}

TEST(Bank, MissesAreExplained) {
  std::mt19937 random(2);
  Options options;
  options.bank.interval = 50;
  auto engine = engine_for(toy(), options);
  const std::vector<TokenId> prompt = random_tokens(random, 120, 512);
  Start start;
  ask(*engine, chat(prompt, {}, 3), &start);
  EXPECT_EQ(start.miss, Miss::Empty);
  EXPECT_EQ(start.cached_tokens, 0);
  std::vector<TokenId> edited = prompt;
  edited[80] ^= 1;
  ask(*engine, chat(edited, {}, 3), &start);
  EXPECT_EQ(start.miss, Miss::Diverged);
  EXPECT_EQ(start.cached_tokens, 50);
  EXPECT_EQ(start.common_tokens, 80);
  Request cold = chat(prompt, {}, 3);
  cold.bypass_bank = true;
  const std::uint64_t stored = engine->stats().bank.stored;
  ask(*engine, cold, &start);
  EXPECT_EQ(start.miss, Miss::Bypass);
  EXPECT_EQ(start.cached_tokens, 0);
  EXPECT_EQ(engine->stats().bank.stored, stored);
  options.bank.enabled = false;
  engine = engine_for(toy(), options);
  ask(*engine, chat(prompt, {}, 3), &start);
  EXPECT_EQ(start.miss, Miss::Disabled);
}

TEST(Bank, StaysWithinItsMemoryAndDropsTheLeastRecentlyUsed) {
  std::mt19937 random(3);
  Options options;
  options.bank.interval = 0;
  options.bank.memory_bytes = std::uint64_t{1} << 20;
  const auto engine = engine_for(toy(), options);
  std::vector<std::vector<TokenId>> prompts;
  for (int i = 0; i < 12; ++i) {
    prompts.push_back(random_tokens(random, 100, 512));
    ask(*engine, chat(prompts.back(), {}, 2));
    const BankStatistics bank = engine->stats().bank;
    EXPECT_LE(bank.memory_bytes, options.bank.memory_bytes);
    EXPECT_GT(bank.states, 0);
  }
  const BankStatistics bank = engine->stats().bank;
  EXPECT_GT(bank.evicted, 0U);
  Start start;
  ask(*engine, chat(prompts.back(), {}, 2), &start);
  EXPECT_EQ(start.cached_tokens, 100);
  std::vector<TokenId> longer = prompts.front();
  longer.push_back(3);
  ask(*engine, chat(longer, {}, 2), &start);
  EXPECT_EQ(start.cached_tokens, 0);
  EXPECT_EQ(start.miss, Miss::Evicted);
}

TEST(Bank, RunningRequestsTakeItsMemoryWhenTheyNeedIt) {
  std::mt19937 random(4);
  Options options;
  options.depth = 3;
  const MemoryPlan plan(toy(), options, 0);
  options.memory_bytes = plan.choice(700);
  options.bank.memory_bytes = options.memory_bytes;
  const auto engine = engine_for(toy(), options);
  for (int i = 0; i < 6; ++i) ask(*engine, chat(random_tokens(random, 60, 512), {}, 2));
  EXPECT_GT(engine->stats().bank.states, 0);
  ask(*engine, chat(random_tokens(random, 100, 512), {}, 590));
  const Statistics stats = engine->stats();
  EXPECT_GT(stats.bank.evicted, 0U);
  EXPECT_LE(stats.bank.memory_bytes, options.memory_bytes);
}

TEST(Bank, SharedPagesAreCountedOnce) {
  std::mt19937 random(6);
  Bank bank = Bank::create(toy(), {true, std::uint64_t{1} << 30, 0, 4, {}, 0, 0}, false, "").value();
  auto runner = model::Runner::create(toy(), 64).value();
  decode::DecodeRequest request;
  request.prompt = random_tokens(random, 513, 512);
  request.vocab = 512;
  const auto generation = decode::make_plain_generation(toy(), request, std::nullopt).value();
  std::uint64_t own = 0;
  while (generation->prompt_done() < 512) {
    ASSERT_TRUE(decode::run_need(*generation, runner, 64));
    decode::Checkpoint state = generation->checkpoint().value();
    own += state.sequence.own_bytes();
    bank.put(std::move(state), false);
  }
  // Eight states of 64, 128, ... 512 tokens: eight pages, not thirty-six.
  EXPECT_EQ(bank.memory_bytes(), own + 8 * toy().pages()->page_bytes());
  bank.limit(0);
  EXPECT_EQ(bank.memory_bytes(), 0U);
}

TEST(Bank, ABrokenSequenceIsNotKept) {
  // Rows that the step before asked for ahead may still be on their way when the disk begins to fail. Were one of them
  // to fail, the next step would be refused before it touches the sequence; these reads are at most 16 tokens' rows.
  std::atomic<bool> failing{false};
  std::atomic<int> good{256};
  auto artifact = artifact::Artifact::open(kToyPack).value();
  backend::CpuOptions cpu = model::one_thread();
  cpu.ngram.mode = backend::NgramMode::Streamed;
  cpu.ngram.cache_bytes = 64 << 10;
  cpu.ngram.intercept = [&](std::uint64_t, std::int64_t result) { return failing && good-- <= 0 ? -EIO : result; };
  const auto model = model::Model::load(artifact, backend::CpuBackend::create(cpu).value(), {}).value();
  Bank bank = Bank::create(*model, {true, std::uint64_t{1} << 30, 0, 4, {}, 0, 0}, false, "").value();
  auto runner = model::Runner::create(*model, 512).value();
  std::mt19937 random(8);
  decode::DecodeRequest request;
  request.prompt = random_tokens(random, 513, 512);
  request.vocab = 512;
  const auto generation = decode::make_plain_generation(*model, request, std::nullopt).value();
  ASSERT_TRUE(decode::run_need(*generation, runner, 16));
  bank.put(generation->checkpoint().value(), false);
  const std::uint64_t kept = bank.memory_bytes();
  EXPECT_GT(kept, 0U);
  ASSERT_TRUE(decode::run_need(*generation, runner, 16));
  decode::Checkpoint state = generation->checkpoint().value();
  failing = true;
  const model::Segment segment{&state.sequence, std::span(request.prompt).subspan(32, 400)};
  ASSERT_FALSE(runner.forward({&segment, 1}));
  ASSERT_TRUE(state.sequence.broken());
  bank.put(std::move(state), true);
  EXPECT_EQ(bank.memory_bytes(), kept);
}

/// A directory with some states in it, and how to go on from them.
class DiskTier : public testing::Test {
 protected:
  void SetUp() override {
    std::mt19937 random(7);
    options_.identity = "one model";
    options_.bank.directory = directory_.path();
    options_.bank.interval = 0;
    prompt_ = random_tokens(random, 90, 512);
    const auto engine = engine_for(toy(), options_);
    ask(*engine, chat(prompt_, {}, 4));
  }
  /// Asks for a continuation of the stored prompt with a new engine.
  Start again() {
    std::vector<TokenId> longer = prompt_;
    longer.push_back(1);
    const Request request = chat(longer, {}, 6);
    const auto engine = engine_for(toy(), options_);
    Start start;
    EXPECT_EQ(ask(*engine, request, &start), alone(toy(), request));
    stats_ = engine->stats();
    return start;
  }
  static void damage(const fs::path& path, std::size_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const auto byte = static_cast<char>(file.get() ^ 0x40);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
  }

  test::ScratchDirectory directory_;
  Options options_;
  std::vector<TokenId> prompt_;
  Statistics stats_;
};

TEST_F(DiskTier, SurvivesARestart) {
  EXPECT_EQ(states_in(directory_.path()).size(), 2U);  // the prompt's end and the answer's
  const Start start = again();
  EXPECT_EQ(start.cached_tokens, 90);
  EXPECT_TRUE(start.from_disk);
  EXPECT_EQ(stats_.bank.disk_hits, 1U);
}

TEST_F(DiskTier, DamagedFilesAreRemovedAndTheAnswerIsCold) {
  for (const fs::path& path : states_in(directory_.path())) {
    damage(path, static_cast<std::size_t>(fs::file_size(path)) - 200);
  }
  const Start start = again();
  EXPECT_EQ(start.cached_tokens, 0);
  EXPECT_EQ(start.miss, Miss::Damaged);
  EXPECT_GT(stats_.bank.files_damaged, 0U);
  EXPECT_NE(stats_.bank.last_disk_error.find("checksum"), std::string::npos);
}

TEST_F(DiskTier, DamagedHeadsAreRemovedAtTheStart) {
  for (const fs::path& path : states_in(directory_.path())) damage(path, 45);
  EXPECT_EQ(again().cached_tokens, 0);
  EXPECT_EQ(stats_.bank.files_damaged, 2U);
}

TEST_F(DiskTier, CutFilesAreRemoved) {
  for (const fs::path& path : states_in(directory_.path())) fs::resize_file(path, fs::file_size(path) / 2);
  EXPECT_EQ(again().cached_tokens, 0);
  EXPECT_EQ(stats_.bank.files_damaged, 2U);
}

TEST_F(DiskTier, FilesThatVanishOrShrinkWhileTheServerRunsAreMisses) {
  std::vector<TokenId> longer = prompt_;
  longer.push_back(1);
  const Request request = chat(longer, {}, 6);
  const auto engine = engine_for(toy(), options_);
  const auto states = states_in(directory_.path());
  fs::remove(states[0]);
  fs::resize_file(states[1], 100);
  Start start;
  EXPECT_EQ(ask(*engine, request, &start), alone(toy(), request));
  EXPECT_EQ(start.cached_tokens, 0);
  EXPECT_EQ(start.miss, Miss::Damaged);
}

TEST_F(DiskTier, StatesOfOtherModelsAreLeftAlone) {
  options_.identity = "another model";
  const Start start = again();
  EXPECT_EQ(start.cached_tokens, 0);
  EXPECT_EQ(start.miss, Miss::Empty);
  EXPECT_EQ(stats_.bank.files_damaged, 0U);
  EXPECT_EQ(states_in(directory_.path()).size(), 4U);
}

TEST_F(DiskTier, AStateUnderAnotherNameIsNotUsed) {
  const auto states = states_in(directory_.path());
  for (const fs::path& path : states) fs::rename(path, directory_ / ("0" + path.filename().string().substr(1)));
  const auto used = again().cached_tokens;
  // A name that happens to start with 0 stays right.
  const auto zero = [](const fs::path& p) { return p.filename().string()[0] == '0'; };
  if (std::none_of(states.begin(), states.end(), zero)) {
    EXPECT_EQ(used, 0);
  }
}

TEST_F(DiskTier, InterruptedWritesAreRemoved) {
  const fs::path left = directory_ / "0123.state.tmp-1-0";
  std::ofstream(left) << "half";
  std::ofstream(directory_ / "notes.txt") << "mine";
  again();
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(directory_ / "notes.txt"));
}

TEST_F(DiskTier, IsForOneProcess) {
  const auto engine = engine_for(toy(), options_);
  Options second = options_;
  second.memory_bytes = std::uint64_t{64} << 20;
  const auto refused = make_engine(toy(), second);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("another process"), std::string::npos);
}

TEST_F(DiskTier, IsForItsOwnerAlone) {
  for (const fs::path& path : states_in(directory_.path())) {
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write) << path;
  }
  const fs::path made = directory_ / "a" / "b";
  ASSERT_TRUE(BankLock::take(made));
  EXPECT_EQ(fs::status(made).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(made / "lock").permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_FALSE(BankLock::take("/dev/null/bank"));
}

TEST_F(DiskTier, TakesALockThatTheCallerHolds) {
  options_.bank.lock = *BankLock::take(directory_.path());
  EXPECT_EQ(again().cached_tokens, 90);
}

TEST_F(DiskTier, FailedWritesAreCounted) {
  std::mt19937 random(9);
  {
    const auto engine = engine_for(toy(), options_);
    // Where the new state would be, there is a directory: nobody may replace it, not even the superuser.
    for (const fs::path& path : states_in(directory_.path())) {
      fs::remove(path);
      fs::create_directory(path);
      std::ofstream(path / "mine") << "kept";
    }
    ask(*engine, chat(prompt_, {}, 4));  // reads: the files are damaged and leave the index
    ask(*engine, chat(prompt_, {}, 4));  // writes them anew
    engine->stop();
    stats_ = engine->stats();
  }
  EXPECT_GT(stats_.bank.files_failed, 0U);
  EXPECT_NE(stats_.bank.last_disk_error.find("not a regular file"), std::string::npos) << stats_.bank.last_disk_error;
}

TEST_F(DiskTier, KeepsToItsSizeAndWriteBudget) {
  std::mt19937 random(8);
  const std::uint64_t one = fs::file_size(states_in(directory_.path())[0]);
  options_.bank.disk_bytes = one * 5 / 2;
  {
    const auto engine = engine_for(toy(), options_);
    for (int i = 0; i < 4; ++i) {
      ask(*engine, chat(random_tokens(random, 90, 512), {}, 4));
      EXPECT_LE(engine->stats().bank.disk_bytes, options_.bank.disk_bytes);
    }
  }
  EXPECT_EQ(states_in(directory_.path()).size(), 2U);
  options_.bank.write_bytes_per_hour = one / 2;
  const auto engine = engine_for(toy(), options_);
  ask(*engine, chat(random_tokens(random, 90, 512), {}, 4));
  engine->stop();
  EXPECT_EQ(engine->stats().bank.files_written, 0U);
  EXPECT_GT(engine->stats().bank.files_skipped, 0U);
}

}  // namespace
}  // namespace lockstep::engine
