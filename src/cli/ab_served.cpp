// A window of `lockstep ab` that is a server of its own.
#include <unistd.h>

#include <array>
#include <charconv>

#include "cli/ab_window.hpp"
#include "report/machine.hpp"

namespace lockstep::cli {
namespace {

constexpr double kStopSeconds = 20;
constexpr double kShortRequestSeconds = 60;

/// The address of a server, and what is between it and its clients, are not an arm's to choose.
Status check_flags(const report::Arm& arm) {
  constexpr std::array kRefused{"--host",     "--port",    "--api-key",  "--api-key-file",
                                "--tls-cert", "--tls-key", "--model-id", "--access-log"};
  for (const std::string& flag : arm.flags) {
    for (const std::string_view refused : kRefused) {
      if (flag == refused || flag.starts_with(std::string(refused) + "=")) {
        return fail(ErrorKind::Usage, "{} cannot be set by an arm", refused);
      }
    }
  }
  return {};
}

std::string own_path() {
  std::array<char, 4096> buffer{};
  const ssize_t length = ::readlink("/proc/self/exe", buffer.data(), buffer.size());
  return length > 0 ? std::string(buffer.data(), static_cast<std::size_t>(length)) : "/proc/self/exe";
}

OrderedJson request_body(const AbSetup& setup, std::uint64_t seed) {
  const report::Cell& cell = setup.cell;
  OrderedJson body = {{"model", "ab"}};
  body["messages"] = OrderedJson::array({{{"role", "user"}, {"content", setup.message}}});
  body["max_tokens"] = cell.max_tokens;
  body["seed"] = seed;
  if (cell.temperature) body["temperature"] = *cell.temperature;
  if (cell.top_p) body["top_p"] = *cell.top_p;
  if (cell.top_k) body["top_k"] = *cell.top_k;
  OrderedJson variables = OrderedJson::object();
  if (cell.no_think) variables["enable_thinking"] = false;
  if (!cell.effort.empty()) variables["reasoning_effort"] = cell.effort;
  if (!variables.empty()) body["chat_template_kwargs"] = variables;
  return body;
}

class ServedSession : public report::Session {
 public:
  ServedSession(const AbSetup& setup, report::Child child) : setup_(setup), child_(std::move(child)) {}
  ServedSession(const ServedSession&) = delete;
  ServedSession& operator=(const ServedSession&) = delete;
  ~ServedSession() override { child_.stop(kStopSeconds, *setup_.waiter); }

  Status wait_ready() {
    report::Waiter& waiter = *setup_.waiter;
    const double begin = waiter.now();
    const std::string line = LOCKSTEP_TRY(child_.expect_line("listening on http://", setup_.start_seconds, waiter));
    const std::size_t colon = line.rfind(':') + 1;
    if (std::from_chars(line.data() + colon, line.data() + line.size(), port_).ec != std::errc()) {
      return fail(ErrorKind::Internal, "no port in the server's line '{}'", line);
    }
    LOCKSTEP_TRY(child_.expect_line("ready: ", setup_.start_seconds - (waiter.now() - begin), waiter));
    record_.start_seconds = waiter.now() - begin;
    const std::string text =
        LOCKSTEP_TRY(child_.request(port_, "GET", "/health", "", "", kShortRequestSeconds, waiter));
    const Json health = LOCKSTEP_TRY(parse_json(text, "/health"));
    record_.device = LOCKSTEP_TRY(json_string(health, "device", "/health"));
    if (!health.contains("lanes") || !health["lanes"].is_array()) return fail(ErrorKind::Internal, "/health: no lanes");
    for (const Json& lane : health["lanes"]) {
      std::string name = LOCKSTEP_TRY(json_string(lane, "name", "/health: lanes"));
      record_.lanes.push_back({std::move(name), LOCKSTEP_TRY(json_string(lane, "verdict", "/health: lanes"))});
    }
    return {};
  }

  [[nodiscard]] const report::WindowRecord& record() const override { return record_; }

  Result<report::Sample> ask(std::uint64_t seed) override {
    const std::string body = request_body(setup_, seed).dump();
    report::reset_peak_memory(child_.id());
    const double begin = setup_.waiter->now();
    const std::string text = LOCKSTEP_TRY(
        child_.request(port_, "POST", "/v1/chat/completions",
                       "content-type: application/json\r\nx-lockstep-cache: bypass\r\nx-lockstep-ids: include\r\n",
                       body, setup_.request_seconds, *setup_.waiter));
    const double wall = setup_.waiter->now() - begin;
    const Json response = LOCKSTEP_TRY(parse_json(text, "the response"));
    report::Sample sample = LOCKSTEP_TRY(report::sample_of_response(response, wall));
    sample.peak_bytes = report::peak_memory(child_.id());
    return sample;
  }

 private:
  const AbSetup& setup_;
  report::Child child_;
  std::uint16_t port_ = 0;
  report::WindowRecord record_;
};

}  // namespace

Result<std::unique_ptr<report::Session>> open_served(const AbSetup& setup, const report::Arm& arm) {
  LOCKSTEP_TRY(check_flags(arm));
  report::ChildCommand command;
  command.arguments = {own_path(), "serve", "--host", "127.0.0.1", "--port", "0"};
  if (setup.in_memory.empty()) {
    command.arguments.insert(command.arguments.end(), {"--model", setup.model});
  } else {
    command.arguments.insert(command.arguments.end(), {"--in-memory", setup.in_memory});
    if (setup.ngram_rows > 0) {
      command.arguments.insert(command.arguments.end(), {"--ngram-rows", std::to_string(setup.ngram_rows)});
    }
  }
  command.arguments.insert(command.arguments.end(), arm.flags.begin(), arm.flags.end());
  command.environment = arm.environment;
  command.without = {"LOCKSTEP_API_KEY"};
  auto session = std::make_unique<ServedSession>(setup, LOCKSTEP_TRY(report::Child::start(command)));
  LOCKSTEP_TRY(session->wait_ready());
  return session;
}

}  // namespace lockstep::cli
