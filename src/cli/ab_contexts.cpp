#include "cli/ab_contexts.hpp"

#include <algorithm>
#include <cmath>

#include "backend/cuda_devices.hpp"
#include "backend/device.hpp"
#include "base/memory.hpp"
#include "base/progress.hpp"
#include "base/thread_pool.hpp"
#include "cli/ab_arm.hpp"
#include "cli/version.hpp"
#include "engine/device_plan.hpp"
#include "report/machine.hpp"
#include "report/markdown.hpp"
#include "report/report.hpp"

namespace lockstep::cli {
namespace {

/// The pages of a sequence in order, and their size.
struct Pages {
  std::vector<const void*> pages;
  std::size_t bytes = 0;
};

Pages pages_of(const model::Sequence& sequence) {
  Pages out;
  sequence.for_each_page([&](const void* page, std::size_t bytes) {
    out.pages.push_back(page);
    out.bytes = std::max(out.bytes, bytes);
  });
  std::ranges::sort(out.pages);
  return out;
}

struct Point {
  std::int64_t context = 0;
  std::int64_t tokens = 0;  ///< in the sequence when its bytes were read
  std::size_t bytes = 0, page_bytes = 0;
};

OrderedJson linearity(const std::vector<Point>& points) {
  if (points.size() < 3) return {};  // two points always lie on a line
  const Point& first = points.front();
  const Point& last = points.back();
  const double slope = (static_cast<double>(last.bytes) - static_cast<double>(first.bytes)) /
                       static_cast<double>(last.tokens - first.tokens);
  const double constant = static_cast<double>(first.bytes) - slope * static_cast<double>(first.tokens);
  double worst = 0;
  for (const Point& point : points) {
    const double expected = constant + slope * static_cast<double>(point.tokens);
    worst = std::max(worst, std::abs(static_cast<double>(point.bytes) - expected));
  }
  // The last page of each cache is filled in part: one page of the layers and one of the draft layer, at both ends.
  const double allowed = 4.0 * static_cast<double>(first.page_bytes);
  return {{"bytes_per_token", slope},
          {"constant_bytes", constant},
          {"largest_deviation_bytes", worst},
          {"allowed_deviation_bytes", allowed},
          {"linear", worst <= allowed}};
}

/// Whether a context fits into the memory of the processor or of the model's CUDA device before it runs.
class Room {
 public:
  static Result<Room> create(const ChatEngine& engine) {
    Room room;
    EngineOptions options = engine.engine_options();
    room.checked_ = !options.force_memory;
    if (!room.checked_) return room;
    room.device_ = LOCKSTEP_TRY(backend::parse_device(options.device));
    options.threads = std::min(options.threads, usable_processors());  // loading has warned of more
    room.artifact_ = engine.loaded().artifact.get();
    room.setup_ = load_setup(options, *room.artifact_, engine.loaded().model->has_draft());
    room.setup_.options.depth = engine.options().depth;
    const std::vector<decode::LaneReport> lanes = engine.lanes();
    room.setup_.options.capture = std::ranges::any_of(lanes, [](const decode::LaneReport& lane) {
      return lane.lane->id == decode::LaneId::GdnCapture && decode::verdict_text(lane.verdict) == "armed";
    });
    room.loaded_scratch_ = LOCKSTEP_TRY(room.needs()).scratch;
    return room;
  }

  /// `held` bytes of the sequence before are given back when the next one starts. Errors: Limit with the bytes.
  Status check(std::int64_t tokens, std::uint64_t held, const std::function<Result<std::uint64_t>()>& read_available) {
    if (!checked_) return {};
    setup_.tokens = tokens;
    const Needs plan = LOCKSTEP_TRY(needs());
    const std::optional<std::uint64_t> limit = LOCKSTEP_TRY(memory_limit());
    if (limit && !device_.cuda && plan.total > *limit) {
      return fail(ErrorKind::Limit, "no room in memory: with the model it takes {} bytes, LOCKSTEP_MEMORY_LIMIT is {}",
                  plan.total, *limit);
    }
    const std::uint64_t more = plan.states + plan.scratch - std::min(plan.scratch, loaded_scratch_);
    const std::uint64_t needed = more - std::min(more, held);
    const std::uint64_t available = LOCKSTEP_TRY(read_available ? read_available() : free_bytes());
    if (needed > available) {
      return fail(ErrorKind::Limit, "no room in {}: its state takes {} bytes, {} are available",
                  device_.cuda ? "the memory of " + device_.text() : "memory", needed, available);
    }
    return {};
  }

 private:
  struct Needs {
    std::uint64_t states = 0, scratch = 0, total = 0;
  };

  [[nodiscard]] Result<Needs> needs() const {
    if (!device_.cuda) {
      const engine::LoadPlan plan = LOCKSTEP_TRY(engine::plan_load(*artifact_, setup_));
      return Needs{plan.states, plan.scratch, plan.total()};
    }
    const engine::DevicePlan plan = LOCKSTEP_TRY(engine::plan_device(*artifact_, setup_, UINT64_MAX, UINT64_MAX));
    return Needs{plan.states, plan.scratch, plan.total()};
  }

  [[nodiscard]] Result<std::uint64_t> free_bytes() const {
    if (!device_.cuda) return available_memory();
    return LOCKSTEP_TRY(backend::open_cuda_device(device_.index)).free_memory;
  }

  bool checked_ = false;
  backend::DeviceChoice device_;
  const artifact::Artifact* artifact_ = nullptr;
  engine::LoadSetup setup_;
  std::uint64_t loaded_scratch_ = 0;
};

class Sweep {
 public:
  Sweep(const AbSetup& setup, const SweepOptions& options, ChatEngine& engine, Room room,
        std::vector<decode::TokenId> tokens)
      : setup_(setup), options_(options), engine_(engine), room_(std::move(room)), tokens_(std::move(tokens)) {}

  Result<OrderedJson> run() {
    for (const std::int64_t context : options_.contexts) {
      if (!LOCKSTEP_TRY(enter({{"context", context}}))) break;
    }
    LOCKSTEP_TRY(enter_middle());
    return OrderedJson{{"contexts", std::move(rows_)}, {"growth", linearity(points_)}};
  }

 private:
  /// Measures the row's context and enters it; false when it could not run. Errors: Cancelled.
  Result<bool> enter(OrderedJson row) {
    const report::GateRecord gate = options_.gate();
    if (setup_.interrupted->load()) return fail(ErrorKind::Cancelled, "interrupted");
    row["gate"] = report::gate_json(gate);
    const Result<Point> point = measure(row["context"].get<std::int64_t>(), row);
    if (point) {
      points_.push_back(*point);
    } else {
      if (point.error().kind == ErrorKind::Cancelled) return tl::unexpected(point.error());
      row["error"] = point.error().message;
      row["no_room"] = point.error().kind == ErrorKind::Limit;
    }
    rows_.push_back(std::move(row));
    return point.has_value();
  }

  /// Two contexts always lie on a line, so when only two fit a third between them is measured, as `added`.
  Status enter_middle() {
    if (points_.size() != 2) return {};
    const std::int64_t first = points_[0].context;
    const std::int64_t middle = first + (points_[1].context - first) / 2;
    if (middle == first) return {};
    LOCKSTEP_TRY(enter({{"context", middle}, {"added", true}}));
    std::ranges::sort(rows_, {}, [](const OrderedJson& row) { return row["context"].get<std::int64_t>(); });
    std::ranges::sort(points_, {}, &Point::context);
    return {};
  }

  Result<Point> measure(std::int64_t context, OrderedJson& row) {
    decode::Decoder& decoder = engine_.decoder();
    const model::Sequence* before_it = decoder.sequence();
    LOCKSTEP_TRY(
        room_.check(context + options_.tokens, before_it == nullptr ? 0 : before_it->bytes(), options_.available));
    Prompt prompt;
    prompt.tokens.reserve(static_cast<std::size_t>(context));
    for (std::int64_t i = 0; i < context; ++i) {
      prompt.tokens.push_back(tokens_[static_cast<std::size_t>(i) % tokens_.size()]);
    }
    decode::DecodeRequest request = LOCKSTEP_TRY(engine_.request(prompt));
    request.stop_ids.clear();  // the speed of a given number of tokens is wanted
    request.max_tokens = options_.tokens;
    const auto cancel = [&] {
      if (setup_.interrupted->load()) decoder.cancel();
    };
    {
      Progress bar(fmt::format("context {}", context), static_cast<std::uint64_t>(context), ProgressUnit::Items);
      LOCKSTEP_TRY(decoder.start(request, [&](std::int64_t done, std::int64_t) {
        bar.set(static_cast<std::uint64_t>(done));
        cancel();
      }));
    }
    const Pages before = pages_of(*decoder.sequence());
    while (decoder.finish() == decode::Finish::None) {
      cancel();
      LOCKSTEP_TRY(decoder.step());
    }
    const model::Sequence& sequence = *decoder.sequence();
    const Pages after = pages_of(sequence);
    const bool kept = std::ranges::includes(after.pages, before.pages);
    const decode::DecodeStats& stats = decoder.stats();
    row["prefill_tokens"] = stats.prompt_tokens - stats.reused_tokens;
    row["prefill_tokens_per_second"] =
        static_cast<double>(stats.prompt_tokens - stats.reused_tokens) / stats.prefill_seconds;
    row["tokens"] = stats.tokens;
    row["decode_tokens_per_second"] = static_cast<double>(stats.tokens) / stats.decode_seconds;
    row["sequence_tokens"] = sequence.length();
    row["state_bytes"] = sequence.bytes();
    row["state_bytes_per_token"] = static_cast<double>(sequence.bytes()) / static_cast<double>(sequence.length());
    row["pages"] = after.pages.size();
    row["page_bytes"] = after.bytes;
    row["pages_kept"] = kept;
    return Point{context, sequence.length(), sequence.bytes(), after.bytes};
  }

  const AbSetup& setup_;
  const SweepOptions& options_;
  ChatEngine& engine_;
  Room room_;
  std::vector<decode::TokenId> tokens_;
  std::vector<OrderedJson> rows_;
  std::vector<Point> points_;
};

std::string row_text(const OrderedJson& row) {
  const auto context = row["context"].get<std::int64_t>();
  if (row.contains("error")) {
    return fmt::format("| {} | ends here: {} | | | | |\n", context,
                       report::markdown_text(row["error"].get<std::string>()));
  }
  return fmt::format("| {}{} | {:.1f} | {:.1f} | {} | {:.1f} | {} |\n", context,
                     row.contains("added") ? " (added)" : "", row["prefill_tokens_per_second"].get<double>(),
                     row["decode_tokens_per_second"].get<double>(), row["state_bytes"].get<std::uint64_t>(),
                     row["state_bytes_per_token"].get<double>(), row["pages_kept"].get<bool>() ? "no" : "YES");
}

}  // namespace

Result<OrderedJson> sweep_contexts(const AbSetup& setup, const std::vector<report::Arm>& arms,
                                   const SweepOptions& options) {
  OrderedJson out = {{"format", "lockstep-ab-contexts-1"}, {"version", version()}, {"commit", commit()}};
  out["time"] = report::now_utc();
  out["machine"] = report::describe_machine();
  out["environment"] = report::lockstep_environment();
  out["tokens"] = options.tokens;
  out["arms"] = OrderedJson::array();
  for (const report::Arm& arm : arms) {
    const std::unique_ptr<ChatEngine> engine = LOCKSTEP_TRY(load_arm(setup, arm));
    const Prompt text = LOCKSTEP_TRY(engine->raw_prompt(setup.message));
    if (text.tokens.empty()) return fail(ErrorKind::Usage, "the prompt is empty");
    Room room = LOCKSTEP_TRY(Room::create(*engine));
    OrderedJson found = LOCKSTEP_TRY(Sweep(setup, options, *engine, std::move(room), text.tokens).run());
    OrderedJson entry = {{"name", arm.name}, {"flags", arm.flags}, {"device", engine->describe()}};
    entry.update(found);
    out["arms"].push_back(std::move(entry));
  }
  out["verdict"] = sweep_verdict(out);
  return out;
}

std::string sweep_verdict(const OrderedJson& sweep) {
  if (!sweep_passed(sweep)) return "FAIL";
  const bool checked =
      std::ranges::none_of(sweep["arms"], [](const OrderedJson& arm) { return arm["growth"].is_null(); });
  return checked ? "PASS" : "PASS, growth not checked";
}

bool sweep_passed(const OrderedJson& sweep) {
  for (const OrderedJson& arm : sweep["arms"]) {
    if (!arm["growth"].is_null() && !arm["growth"]["linear"].get<bool>()) return false;
    bool measured = false;
    for (const OrderedJson& row : arm["contexts"]) {
      measured = measured || !row.contains("error");
      if (row.contains("error") ? !row["no_room"].get<bool>() : !row["pages_kept"].get<bool>()) return false;
    }
    if (!measured) return false;
  }
  return true;
}

std::string sweep_markdown(const OrderedJson& sweep) {
  std::string out = fmt::format("# Context sweep: {}\n", sweep_verdict(sweep));
  for (const OrderedJson& arm : sweep["arms"]) {
    out += fmt::format("\n## {} ({})\n\n", arm["name"].get<std::string>(),
                       report::markdown_text(arm["device"].get<std::string>()));
    out +=
        "| context | prefill tokens/s | decode tokens/s | state bytes | bytes a token | copied "
        "|\n|---|---|---|---|---|---|\n";
    for (const OrderedJson& row : arm["contexts"]) out += row_text(row);
    const auto loud = std::ranges::count_if(
        arm["contexts"], [](const OrderedJson& row) { return row["gate"]["quiet"] == OrderedJson(false); });
    if (loud > 0) out += fmt::format("\n{} of them began on a machine that was not quiet.\n", loud);
    const OrderedJson& growth = arm["growth"];
    if (growth.is_null()) {
      out += "\nGrowth not checked (needs three contexts that fit).\n";
      continue;
    }
    out += fmt::format(
        "\nGrowth: {:.1f} bytes a token and {:.0f} bytes; no context is further off than {:.0f} bytes "
        "({:.0f} allowed for pages filled in part): {}.\n",
        growth["bytes_per_token"].get<double>(), growth["constant_bytes"].get<double>(),
        growth["largest_deviation_bytes"].get<double>(), growth["allowed_deviation_bytes"].get<double>(),
        growth["linear"].get<bool>() ? "linear" : "NOT linear");
  }
  return out;
}

}  // namespace lockstep::cli
