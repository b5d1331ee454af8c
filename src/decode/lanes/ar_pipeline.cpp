// Lane ar_pipeline: plain decoding does not wait for the text of a token.
//
// Contract. As soon as a token is drawn, it goes to the sink (detokeniser, stop strings, output) on a second thread,
// and the calling thread requests the token's n-gram rows, embeds it and runs the forward pass over it. The next token
// is drawn when both are done. Model, sampler and state stay on the calling thread, in the order of the plain loop; the
// sink sees the same tokens in the same order, one call at a time. When the sink has had enough, one forward pass has
// run that the plain loop would not have run: the sequence then holds the last token too, which sequence() allows, and
// nothing was drawn from it.
//
// On a GPU the like of this lane hides the host's work on the next step's graph. A CPU has no graph to build: what can
// overlap is the token's text, the output, and the first reads of the n-gram table.
#include "decode/lanes/ar_pipeline.hpp"

#include <system_error>

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

/// One thread that runs the sink on what is posted. At most one post is under way.
class SinkThread {
 public:
  Status start() {
    try {
      thread_ = std::thread([this] { work(); });
    } catch (const std::system_error& error) {
      return fail(ErrorKind::Limit, "cannot start a thread for the text of tokens: {}", error.what());
    }
    return {};
  }

  SinkThread() = default;
  SinkThread(const SinkThread&) = delete;
  SinkThread& operator=(const SinkThread&) = delete;
  ~SinkThread() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void post(const TokenSink& sink, std::span<const Choice> tokens) {
    {
      const std::lock_guard lock(mutex_);
      tokens_.assign(tokens.begin(), tokens.end());
      sink_ = &sink;
    }
    changed_.notify_all();
  }

  /// Waits for the post to be done.
  Result<bool> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return sink_ == nullptr; });
    return std::move(verdict_);
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return closing_ || sink_ != nullptr; });
      if (sink_ == nullptr) return;
      const TokenSink& sink = *sink_;
      lock.unlock();
      Result<bool> verdict = sink(tokens_);
      lock.lock();
      verdict_ = std::move(verdict);
      sink_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const TokenSink* sink_ = nullptr;  ///< set while a post is under way
  std::vector<Choice> tokens_;
  Result<bool> verdict_ = true;
  bool closing_ = false;
  std::thread thread_;
};

class PipelinedDriver final : public Driver {
 public:
  Status start() { return thread_.start(); }

  Status run(Decoder& decoder, const TokenSink& sink, const std::function<void()>& before_step) override {
    while (decoder.finish() == Finish::None) {
      before_step();
      thread_.post(sink, LOCKSTEP_TRY(decoder.step()));
      const Status ahead = decoder.run_ahead();
      // The sink's word comes first, as it does in the plain loop: what nobody wants to read cannot fail.
      if (!LOCKSTEP_TRY(thread_.wait())) break;
      LOCKSTEP_TRY(ahead);
    }
    return {};
  }

 private:
  SinkThread thread_;
};

std::string missing(const Lanes& lanes, const model::Model& /*model*/) {
  return lanes.armed(LaneId::Mtp) ? "speculative decoding runs instead" : "";
}

LaneRun ran(const model::Model& model, const DecodeStats& stats) {
  const backend::NgramStore* store = model.backend().ngram_store();
  const std::string_view variant =
      store == nullptr ? "no n-gram table" : (store->counters().cache_rows > 0 ? "streamed" : "resident");
  return {static_cast<std::uint64_t>(stats.steps_ahead),
          fmt::format("ar_pipeline_active {}, ar_pipeline_variant {}, {} forward passes beside the text",
                      stats.steps_ahead > 0, variant, stats.steps_ahead)};
}

}  // namespace

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
          "runs the forward pass over a token while another thread turns the token into text; model and sampler keep "
          "one thread and the plain order",
          "plain decoding (mtp off or declined)",
          "no request had a second token",
          Exactness::Bits,
          true,
          missing,
          ngram_health,
          ran};
}

}  // namespace lockstep::decode
