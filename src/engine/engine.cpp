#include "engine/engine.hpp"

#include <algorithm>

#include "base/memory.hpp"
#include "engine/scheduler.hpp"

namespace lockstep::engine {
namespace {

constexpr std::int64_t kMostParallel = 256;
constexpr std::int64_t kMostQueue = 65536;
constexpr std::int64_t kMostChunk = 4096;
/// The plan where the system does not say how much memory there is.
constexpr std::uint64_t kUnknownMemory = std::uint64_t{8} << 30;

Status check_range(std::string_view name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return fail(ErrorKind::Usage, "{} is {}; it must be between {} and {}", name, value, low, high);
}

Status check_options(const model::Model& model, const Options& options) {
  LOCKSTEP_TRY(check_range("parallel", options.parallel, 1, kMostParallel));
  LOCKSTEP_TRY(check_range("queue", options.queue, 0, kMostQueue));
  LOCKSTEP_TRY(check_range("prefill chunk", options.prefill_chunk, 1, kMostChunk));
  LOCKSTEP_TRY(check_range("mixed chunk", options.mixed_chunk, 1, kMostChunk));
  LOCKSTEP_TRY(check_range("depth", options.depth, 0, decode::kMaxDepth));
  LOCKSTEP_TRY(check_range("busy depth", options.busy_depth, 0, decode::kMaxDepth));
  LOCKSTEP_TRY(check_range("default max_tokens", options.default_max_tokens, 1, std::int64_t{1} << 40));
  LOCKSTEP_TRY(check_range("bank interval", options.bank.interval, 0, std::int64_t{1} << 40));
  LOCKSTEP_TRY(check_range("bank boundaries", options.bank.boundaries, 0, 1024));
  LOCKSTEP_TRY(check_range("vocabulary", options.vocab, 0, model.config().vocab_size));
  if (options.depth > 0 && !model.has_draft()) {
    return fail(ErrorKind::Usage, "speculative decoding needs a draft layer; the model has none");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Engine>> make_engine(const model::Model& model, Options options) {
  LOCKSTEP_TRY(check_options(model, options));
  if (options.memory_bytes == 0) {
    const std::uint64_t available = available_memory();
    options.memory_bytes = available == UINT64_MAX ? kUnknownMemory : available / 2;
  }
  if (options.vocab == 0) options.vocab = model.config().vocab_size;
  if (options.bank.memory_bytes == 0) options.bank.memory_bytes = options.memory_bytes / 4;
  options.bank.memory_bytes = std::min(options.bank.memory_bytes, options.memory_bytes);
  const MemoryPlan plan(model, options, options.memory_bytes);
  LOCKSTEP_TRY(plan.check_room());
  Limits limits;
  limits.context = model.config().max_positions;
  limits.plan_tokens = std::min(plan.most_tokens(), limits.context);
  limits.parallel = options.parallel;
  limits.queue = options.queue;
  limits.max_choices = std::clamp<std::int64_t>(options.queue, 1, 128);
  limits.default_max_tokens = options.default_max_tokens;
  limits.vocab = options.vocab;
  limits.memory_bytes = plan.total();
  limits.bytes_per_choice = plan.fixed_bytes();
  limits.bytes_per_token = plan.bytes_per_token();
  // What would otherwise grow inside a step.
  LOCKSTEP_TRY(model.backend().prepare_positions(limits.plan_tokens));
  const std::int64_t rows =
      std::max(options.prefill_chunk, options.mixed_chunk) + options.parallel * (decode::kMaxDepth + 1);
  Stepper stepper = LOCKSTEP_TRY(Stepper::create(model, rows, options.short_head, options.ahead));
  Bank bank = LOCKSTEP_TRY(Bank::create(model, options.bank, options.depth > 0, options.identity));
  auto scheduler =
      std::make_unique<Scheduler>(model, std::move(options), limits, plan, std::move(bank), std::move(stepper));
  LOCKSTEP_TRY(scheduler->start());
  return scheduler;
}

}  // namespace lockstep::engine
