// A stored run, read back from its JSON.
#include <algorithm>
#include <set>

#include "report/parity.hpp"
#include "report/report.hpp"

namespace lockstep::report {
namespace {

constexpr std::uint64_t kMostCount = std::uint64_t{1} << 40;  // sums of all samples stay exact
constexpr double kLeastAmount = 1e-12, kMostAmount = 1e12;    // so do quotients, and a chart's axis
constexpr double kLeastCelsius = -273.15;
constexpr std::size_t kMostItems = std::size_t{1} << 24;

bool is_whole(const OrderedJson& value, std::uint64_t most) {
  if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<std::int64_t>() < 0)) return false;
  return value.get<std::uint64_t>() <= most;
}

/// Reads the fields of one object. The first error of the whole file is kept in `status`.
class StoredFields {
 public:
  StoredFields(const OrderedJson& object, std::string where, Status& status)
      : object_(object), where_(std::move(where)), status_(status) {
    if (!object.is_object()) wrong("", "is no object");
  }

  [[nodiscard]] const OrderedJson* find(const char* key) const {
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }
  const OrderedJson& need(const char* key) {
    static const OrderedJson kNothing;
    const OrderedJson* found = find(key);
    if (found == nullptr) wrong(key, "is missing");
    return found == nullptr ? kNothing : *found;
  }
  const OrderedJson& need_list(const char* key, std::size_t most = kMostItems) {
    static const OrderedJson kEmpty = OrderedJson::array();
    const OrderedJson& found = need(key);
    if (found.is_array() && found.size() <= most) return found;
    wrong(key, fmt::format("must be a list of at most {}", most));
    return kEmpty;
  }
  void read(const char* key, std::string& out) { take(key, need(key), out); }
  void read(const char* key, bool& out) { take(key, need(key), out); }
  void read(const char* key, std::int64_t& out) { take(key, need(key), out); }
  void read(const char* key, std::uint64_t& out) { take(key, need(key), out); }
  void read(const char* key, double& out) { take(key, need(key), out); }
  template <class T>
  void read(const char* key, std::optional<T>& out) {
    const OrderedJson& value = need(key);
    if (!value.is_null()) take(key, value, out.emplace());
  }
  template <class T>
  void read(const char* key, std::vector<T>& out) {
    for (const OrderedJson& item : need_list(key)) take(key, item, out.emplace_back());
  }
  /// A speed or a time.
  void read_amount(const char* key, double& out) {
    read(key, out);
    if (out != 0 && (out < kLeastAmount || out > kMostAmount)) wrong(key, "is out of range");
  }
  /// A number with a meaning of its own; absent ones are no part of the range.
  void read_within(const char* key, double& out, double least, double most) {
    read(key, out);
    if (!(out >= least && out <= most)) wrong(key, fmt::format("must be a number from {:g} to {:g}", least, most));
  }
  void read_within(const char* key, std::optional<double>& out, double least, double most) {
    if (need(key).is_null()) return;
    read_within(key, out.emplace(), least, most);
  }
  void need_that(bool right, const char* key, std::string_view how) {
    if (!right) wrong(key, how);
  }
  void wrong(const char* key, std::string_view how) {
    if (status_) status_ = fail(ErrorKind::Invalid, "{}: '{}' {}", where_, key, how);
  }
  [[nodiscard]] StoredFields inner(const char* key) { return {need(key), where_ + "." + key, status_}; }

 private:
  void take(const char* key, const OrderedJson& value, std::string& out) {
    if (!value.is_string()) return wrong(key, "must be a text");
    out = value.get<std::string>();
  }
  void take(const char* key, const OrderedJson& value, bool& out) {
    if (!value.is_boolean()) return wrong(key, "must be true or false");
    out = value.get<bool>();
  }
  void take(const char* key, const OrderedJson& value, std::uint64_t& out) {
    if (!is_whole(value, UINT64_MAX)) return wrong(key, "must be a number from 0 on");
    out = value.get<std::uint64_t>();
  }
  void take(const char* key, const OrderedJson& value, std::int64_t& out) {
    if (!is_whole(value, kMostCount)) return wrong(key, "must be a count");
    out = value.get<std::int64_t>();
  }
  void take(const char* key, const OrderedJson& value, std::int32_t& out) {
    if (!is_whole(value, INT32_MAX)) return wrong(key, "must be a token id");
    out = value.get<std::int32_t>();
  }
  void take(const char* key, const OrderedJson& value, double& out) {
    if (!value.is_number()) return wrong(key, "must be a number");
    out = value.get<double>();
  }

  const OrderedJson& object_;
  std::string where_;
  Status& status_;
};

/// The plan: arms, order, seeds, control. Errors: Invalid, Usage.
Status read_plan(StoredFields& file, Run& run, Status& status) {
  for (const OrderedJson& entry : file.need_list("arms", kMaxArms)) {
    StoredFields fields(entry, "arms", status);
    std::string name;
    fields.read("name", name);
    LOCKSTEP_TRY(status);
    Arm arm = LOCKSTEP_TRY(parse_arm(name + "="));
    fields.read("flags", arm.flags);
    StoredFields environment = fields.inner("environment");
    LOCKSTEP_TRY(status);
    for (const auto& [variable, value] : entry["environment"].items()) {
      environment.read(variable.c_str(), arm.environment.emplace_back(variable, "").second);
    }
    run.arms.push_back(std::move(arm));
  }
  std::vector<std::string> order;
  file.read("order", order);
  file.read("seeds", run.seeds);
  std::string control;
  file.read("control", control);
  LOCKSTEP_TRY(status);
  run.windows = LOCKSTEP_TRY(parse_order(fmt::format("{}", fmt::join(order, " ")), run.arms));
  if (!std::ranges::equal(run.windows, order, {}, &Window::label)) file.wrong("order", "must have one window an entry");
  const auto found = std::ranges::find(run.arms, control, &Arm::name);
  if (found == run.arms.end()) file.wrong("control", "is no arm");
  run.control = static_cast<std::size_t>(found - run.arms.begin());
  const std::set<std::uint64_t> different(run.seeds.begin(), run.seeds.end());
  if (run.seeds.empty() || run.seeds.size() > kMaxSeeds || different.size() != run.seeds.size()) {
    file.wrong("seeds", fmt::format("must be 1 to {} different numbers", kMaxSeeds));
  }
  return status;
}

void read_cell(StoredFields fields, Cell& cell) {
  fields.read("prompt_sha256", cell.prompt_sha256);
  fields.read("prompt_tokens", cell.prompt_tokens);
  fields.read("max_tokens", cell.max_tokens);
  fields.need_that(cell.max_tokens > 0, "max_tokens", "must be at least 1");
  fields.read_within("temperature", cell.temperature, 0, 2);
  fields.read_within("top_p", cell.top_p, 0, 1);
  fields.read("top_k", cell.top_k);
  std::optional<std::string> effort;
  fields.read("effort", effort);
  cell.effort = effort.value_or("");
  fields.read("no_think", cell.no_think);
}

void read_limits(StoredFields fields, GateLimits& limits) {
  fields.read_within("max_load", limits.max_load, 0, kMostAmount);
  fields.read_within("max_busy", limits.max_busy, 0, 1);
  fields.read_within("min_cpu_mhz", limits.min_cpu_mhz, 0, kMostAmount);
  fields.read_within("max_cpu_celsius", limits.max_cpu_celsius, kLeastCelsius, kMostAmount);
  fields.read_within("max_gpu_celsius", limits.max_gpu_celsius, kLeastCelsius, kMostAmount);
  fields.read_within("timeout_seconds", limits.timeout_seconds, 0, kMostAmount);
}

void read_gate(StoredFields fields, GateRecord& gate) {
  std::optional<bool> quiet;
  fields.read("quiet", quiet);
  gate.judged = quiet.has_value();
  gate.quiet = quiet.value_or(false);
  fields.read_within("waited_seconds", gate.waited_seconds, 0, kMostAmount);
  fields.read_within("load", gate.last.load, 0, kMostAmount);
  fields.read_within("busy", gate.last.busy, 0, 1);
  fields.read_within("cpu_mhz", gate.last.cpu_mhz, 0, kMostAmount);
  fields.read_within("cpu_celsius", gate.last.cpu_celsius, kLeastCelsius, kMostAmount);
  fields.read_within("gpu_celsius", gate.last.gpu_celsius, kLeastCelsius, kMostAmount);
  fields.read("exceeded", gate.exceeded);
  fields.read("unread", gate.unread);
}

WindowRecord read_window(StoredFields fields) {
  WindowRecord record;
  fields.read_within("start_seconds", record.start_seconds, 0, kMostAmount);
  fields.read("device", record.device);
  const OrderedJson& names = fields.need("lanes");
  StoredFields lanes = fields.inner("lanes");
  if (names.is_object()) {
    for (const auto& item : names.items()) {
      LaneState& lane = record.lanes.emplace_back(LaneState{item.key(), ""});
      lanes.read(lane.name.c_str(), lane.verdict);
    }
  }
  if (fields.find("error") != nullptr) fields.read("error", record.error);
  return record;
}

/// What no run can have measured.
void check_sample(const Sample& sample, const Cell& cell, StoredFields& fields) {
  constexpr double kSlack = 1.01;  // of clocks
  fields.need_that(sample.prefill_tokens <= sample.prompt_tokens, "prefill_tokens", "is more than prompt_tokens");
  fields.need_that(sample.tokens <= cell.max_tokens, "tokens", "is more than the cell's max_tokens");
  fields.need_that(sample.steps <= sample.tokens + 1, "steps", "is more than tokens");
  fields.need_that(sample.ttft_seconds <= sample.wall_seconds * kSlack, "ttft_seconds", "is more than wall_seconds");
  fields.need_that(sample.decode_seconds <= sample.wall_seconds * kSlack, "decode_seconds",
                   "is more than wall_seconds");
  fields.need_that(std::ranges::equal(sample.accepted, sample.drafted, std::ranges::less_equal()), "accepted",
                   "must have one count a depth, none more than that of drafted");
}

Sample read_sample(StoredFields fields, const Cell& cell) {
  Sample sample;
  fields.read("seed", sample.seed);
  read_gate(fields.inner("gate"), sample.gate);
  if (fields.find("error") != nullptr) {
    fields.read("error", sample.error);
    if (sample.error.empty()) fields.wrong("error", "is empty");
    return sample;
  }
  fields.read("prompt_tokens", sample.prompt_tokens);
  fields.read("prefill_tokens", sample.prefill_tokens);
  fields.read_amount("prefill_seconds", sample.prefill_seconds);
  fields.read_amount("prefill_tokens_per_second", sample.prefill_rate);
  fields.read_amount("ttft_seconds", sample.ttft_seconds);
  fields.read("tokens", sample.tokens);
  fields.read("steps", sample.steps);
  fields.read_amount("decode_seconds", sample.decode_seconds);
  fields.read_amount("decode_tokens_per_second", sample.decode_rate);
  fields.read_amount("wall_seconds", sample.wall_seconds);
  fields.read("peak_memory_bytes", sample.peak_bytes);
  fields.read("finish_reason", sample.finish);
  fields.read("drafted", sample.drafted);
  fields.read("accepted", sample.accepted);
  fields.read("lanes", sample.lanes);
  fields.read("request_sha256", sample.digests.request);
  fields.read("prompt_ids_sha256", sample.digests.prompt_ids);
  fields.read("ids_sha256", sample.digests.ids);
  fields.read("text_sha256", sample.digests.text);
  fields.read("reasoning_sha256", sample.digests.reasoning);
  if (fields.find("ids") != nullptr) fields.read("ids", sample.ids);
  check_sample(sample, cell, fields);
  return sample;
}

/// Windows and samples. A sample belongs to a window that was begun, a seed is there once a window.
void read_results(StoredFields& file, Run& run, Status& status) {
  for (const OrderedJson& entry : file.need_list("windows", run.windows.size())) {
    run.records.push_back(read_window(StoredFields(entry, "windows", status)));
  }
  std::set<std::pair<std::size_t, std::uint64_t>> seen;
  for (const OrderedJson& entry : file.need_list("samples", run.windows.size() * run.seeds.size())) {
    StoredFields fields(entry, "samples", status);
    Sample sample = read_sample(fields, run.cell);
    std::string label;
    fields.read("window", label);
    const auto found = std::ranges::find(run.windows, label, &Window::label);
    sample.window = static_cast<std::size_t>(found - run.windows.begin());
    if (sample.window >= run.records.size()) return fields.wrong("window", "is no window of the run");
    if (std::ranges::find(run.seeds, sample.seed) == run.seeds.end()) return fields.wrong("seed", "is not among seeds");
    if (!seen.emplace(sample.window, sample.seed).second) return fields.wrong("seed", "is twice in a window");
    run.samples.push_back(std::move(sample));
  }
}

/// What reports print of these objects must be of its kind; all else in them is kept as it is.
void read_descriptions(StoredFields& file, Run& run) {
  std::string text;
  std::int64_t count = 0;
  file.inner("model").read("name", text);
  file.inner("machine").read("processor", text);
  file.inner("machine").read("system", text);
  file.inner("machine").read("processors", count);
  run.model = file.need("model");
  run.machine = file.need("machine");
  run.environment = file.need("environment");
  StoredFields environment = file.inner("environment");
  if (!run.environment.is_object()) return;
  for (const auto& item : run.environment.items()) environment.read(item.key().c_str(), text);
}

/// Receipts without the list of lanes that had to run: those under test that do not follow from the windows.
void infer_required(StoredFields& file, Run& run, Status& status) {
  for (const OrderedJson& entry : file.need_list("summary", kMaxArms)) {
    StoredFields fields(entry, "summary", status);
    std::string name;
    std::vector<std::string> lanes;
    fields.read("arm", name);
    fields.read("lanes_under_test", lanes);
    const auto arm = std::ranges::find(run.arms, name, &Arm::name);
    if (arm == run.arms.end()) return fields.wrong("arm", "is no arm");
    const std::vector<std::string> derived = lanes_under_test(run, static_cast<std::size_t>(arm - run.arms.begin()));
    for (const std::string& lane : lanes) {
      if (std::ranges::find(derived, lane) == derived.end()) run.required.push_back(fmt::format("{}={}", name, lane));
    }
  }
}

}  // namespace

Result<Run> run_of_json(const OrderedJson& json) {
  Status status;
  StoredFields file(json, "the receipt", status);
  std::string format;
  file.read("format", format);
  LOCKSTEP_TRY(status);
  if (format != kFormat) return fail(ErrorKind::Invalid, "the receipt's format is '{}', not '{}'", format, kFormat);
  Run run;
  LOCKSTEP_TRY(read_plan(file, run, status));
  file.read("version", run.version);
  if (file.find("commit") != nullptr) file.read("commit", run.commit);
  file.read("complete", run.complete);
  file.read("started", run.started);
  file.read("ended", run.ended);
  file.read("mode", run.mode);
  read_descriptions(file, run);
  read_cell(file.inner("cell"), run.cell);
  read_limits(file.inner("gate"), run.limits);
  LOCKSTEP_TRY(status);
  read_results(file, run, status);
  LOCKSTEP_TRY(status);
  if (file.find("required") != nullptr) {
    file.read("required", run.required);
  } else {
    infer_required(file, run, status);
  }
  LOCKSTEP_TRY(status);
  return run;
}

}  // namespace lockstep::report
