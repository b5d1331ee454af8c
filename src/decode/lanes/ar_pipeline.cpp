// Lane ar_pipeline: plain decoding does not wait for the text of a token.
//
// Contract. A second thread works beside the calling one in two turns per token.
//   While a token is drawn from the logits of a step, the second thread does the next step's work that does not depend
//   on that token: the page that the position falls into (a copy of it where a fork shares it), rotation angles, room
//   in the history. All table rows of a token depend on its id, so those of the likeliest tokens are requested: the
//   best one by logit for a greedy request, the best four else. With a streamed table their reads are under way while
//   the sampler works; a resident one has every row at hand. A wrong guess costs reads, no bits: what is drawn is
//   requested as ever.
//   While the forward pass over the token runs on the calling thread, the second one runs the sink: detokeniser, stop
//   strings, output.
// Drawing and the preparation share nothing but the logits, which both read (decode/decoder_loop.cpp); table and
// sequence are used by one thread at a time. Model, sampler and sink see the same calls in the same order as in the
// plain loop. When the sink has had enough, one forward pass has run that the plain loop would not have run: the
// sequence then holds the last token too, which sequence() allows, and nothing was drawn from it.
//
// On a device that draws, the forward pass over a token is launched before the token is known: right behind the draw,
// with the embedding and the ids of table rows from where the device has written it. With a table that the host reads,
// embedding and the layers in front of the rows are launched, and the rest when the host has token and rows. What is
// drawn depends on logits and the number of the token, as ever (Runner::launch(), decode/decoder_loop.cpp). When the
// token turns out to be a stop token the sequence holds it, and nothing is drawn from it.
#include "decode/lanes/ar_pipeline.hpp"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "backend/ngram/ngram_store.hpp"
#include "decode/lanes/lane_files.hpp"

namespace lockstep::decode {
namespace {

class PlainDriver final : public Driver {
 public:
  Status run(Decoder& decoder, const TokenSink& sink, const std::function<void()>& before_step) override {
    while (decoder.finish() == Finish::None) {
      before_step();
      const std::span<const Choice> tokens = LOCKSTEP_TRY(decoder.step());
      if (!LOCKSTEP_TRY(sink(tokens))) break;
    }
    return {};
  }
};

class CompanionThread final : public Companion {
 public:
  Status start() {
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      return fail(ErrorKind::Limit, "cannot start a thread for the text of tokens: {}", error.what());
    }
    return {};
  }

  ~CompanionThread() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void post(std::function<void()> work) override {
    {
      const std::lock_guard lock(mutex_);
      work_ = std::move(work);
    }
    changed_.notify_all();
  }

  void wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return work_ == nullptr; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return closing_ || work_ != nullptr; });
      if (work_ == nullptr) return;
      lock.unlock();
      work_();  // stays as it is until it is done: wait() tells by it
      lock.lock();
      work_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;  ///< set while there is work under way
  bool closing_ = false;
  std::thread thread_;
};

class PipelinedDriver final : public Driver {
 public:
  Status start() { return thread_.start(); }

  Status run(Decoder& decoder, const TokenSink& sink, const std::function<void()>& before_step) override {
    decoder.use_companion(&thread_);
    Status done = run_pairs(decoder, sink, before_step);
    decoder.use_companion(nullptr);
    return done;
  }

 private:
  Status run_pairs(Decoder& decoder, const TokenSink& sink, const std::function<void()>& before_step) {
    std::vector<Choice> tokens;
    Result<bool> more = true;
    while (decoder.finish() == Finish::None) {
      before_step();
      const std::span<const Choice> drawn = LOCKSTEP_TRY(decoder.step());
      tokens.assign(drawn.begin(), drawn.end());
      thread_.post([&] { more = sink(tokens); });
      const Status ahead = decoder.run_ahead();
      thread_.wait();
      // The sink's word comes first, as it does in the plain loop: what nobody wants to read cannot fail.
      if (!LOCKSTEP_TRY(Result<bool>(more))) break;
      LOCKSTEP_TRY(Status(ahead));
    }
    return {};
  }

  CompanionThread thread_;
};

std::string missing(const Lanes& lanes, const model::Model& /*model*/) {
  return lanes.armed(LaneId::Mtp) ? "speculative decoding runs instead" : "";
}

LaneRun ran(const model::Model& model, const DecodeStats& stats) {
  const backend::NgramStore* store = model.backend().ngram_store();
  const std::string_view variant = store == nullptr ? "no n-gram table" : backend::ngram_mode_name(store->mode());
  return {static_cast<std::uint64_t>(stats.steps_ahead),
          fmt::format("ar_pipeline_active {}, ar_pipeline_variant {}, {} forward passes beside the text, {} of them "
                      "prepared while a token was drawn, {} launched before their token was known, {} tokens foreseen",
                      stats.steps_ahead > 0, variant, stats.steps_ahead, stats.prepared_steps, stats.launched_steps,
                      stats.foreseen_tokens)};
}

}  // namespace

void likely_tokens(std::span<const float> logits, const DecodeRequest& request, std::vector<TokenId>& likely) {
  const std::size_t most = request.sampler.greedy() ? 1 : kLikelyTokens;
  const std::size_t vocabulary = std::min(logits.size(), static_cast<std::size_t>(request.vocab));
  std::array<float, kLikelyTokens> best{};
  likely.clear();
  for (std::size_t id = 0; id < vocabulary; ++id) {
    const float logit = logits[id];
    if (likely.size() == most && !(logit > best[most - 1])) continue;
    if (likely.size() < most) likely.push_back(0);
    std::size_t at = likely.size() - 1;
    for (; at > 0 && logit > best[at - 1]; --at) {
      best[at] = best[at - 1];
      likely[at] = likely[at - 1];
    }
    best[at] = logit;
    likely[at] = static_cast<TokenId>(id);
  }
}

std::unique_ptr<Driver> make_plain_driver() {
  return std::make_unique<PlainDriver>();
}

Result<std::unique_ptr<Driver>> make_pipelined_driver() {
  auto driver = std::make_unique<PipelinedDriver>();
  LOCKSTEP_TRY(driver->start());
  return driver;
}

LaneInfo ar_pipeline_lane() {
  return {LaneId::ArPipeline,
          "ar_pipeline",
          "LOCKSTEP_AR_PIPELINE",
          "prepares the next step while a token is drawn, and turns the token into text while the forward pass over it "
          "runs; model and sampler keep the plain order",
          "plain decoding (mtp off or declined)",
          "no request had a second token",
          Exactness::Bits,
          true,
          missing,
          ngram_health,
          ran};
}

}  // namespace lockstep::decode
