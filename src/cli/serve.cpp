// lockstep serve: the HTTP server.
#include <CLI/App.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "artifact/config.hpp"
#include "backend/cuda_devices.hpp"
#include "backend/device.hpp"
#include "base/file.hpp"
#include "cli/arguments.hpp"
#include "cli/command.hpp"
#include "cli/engine_options.hpp"
#include "cli/in_memory.hpp"
#include "cli/options.hpp"
#include "cli/terminal.hpp"
#include "decode/lanes.hpp"
#include "engine/device_plan.hpp"
#include "engine/identity.hpp"
#include "engine/memory_plan.hpp"
#include "server/server.hpp"

namespace lockstep::cli {
namespace {

struct Options {
  EngineOptions model;
  engine::Options engine;
  server::ServerOptions server;
  std::vector<std::string> disabled, keys, key_files;
  std::string bank_directory;
  std::int64_t prefill_chunk = 0;  ///< 0: what suits the device
  bool no_bank = false;
};

OrderedJson identity_json(const artifact::Artifact& artifact, const std::string& model_id) {
  OrderedJson out = {{"id", model_id}};
  out["layout"] = artifact.layout() == artifact::Layout::Official ? "official" : "pack";
  out["config_sha256"] = artifact.identity().config_sha256;
  out["inventory_sha256"] = artifact.identity().inventory_sha256;
  return out;
}

void enter(server::LoadProgress& progress, int step, const char* phase) {
  progress.steps.store(4);
  progress.step.store(step);
  progress.phase.store(phase);
}

/// States are where the model is: on a CUDA device their default comes from what it has free after loading.
Status size_states(const backend::DeviceChoice& device, engine::Options& options) {
  if (!device.cuda || options.memory_bytes != 0) return {};
  const kernels::cuda::DeviceInfo info = LOCKSTEP_TRY(backend::open_cuda_device(device.index));
  options.memory_bytes = engine::default_state_bytes(info.free_memory);
  return {};
}

/// The artifact and the model live as long as this.
struct Owner {
  LoadedModel loaded;
};

Result<std::shared_ptr<const server::ModelContext>> load(const Options& options, server::LoadProgress& progress) {
  EngineOptions used = options.model;
  decode::Lanes lanes = LOCKSTEP_TRY(choose_lanes(options.disabled, options.engine.depth, used));
  used.progress = [&progress](std::uint64_t done, std::uint64_t total) {
    progress.total_bytes.store(total);
    progress.bytes.store(done);
  };
  used.cancel = &progress.cancel;
  enter(progress, 1, "weights");
  auto owner = std::make_shared<Owner>();
  owner->loaded = LOCKSTEP_TRY(load_model(used, lanes.armed(decode::LaneId::Mtp)));
  const artifact::Artifact& artifact = *owner->loaded.artifact;
  const model::Model& model = *owner->loaded.model;
  lanes.install(model);
  if (lanes.armed(decode::LaneId::ArPipeline)) {
    if (model.backend().draws_ahead() != nullptr) {
      lanes.arm(decode::LaneId::ArPipeline, "for a choice that decodes alone");
    } else {
      lanes.decline(decode::LaneId::ArPipeline, "the server makes text of tokens on other threads anyway");
    }
  }
  enter(progress, 2, "tokenizer");
  text::Tokenizer tokenizer = LOCKSTEP_TRY(text::Tokenizer::open(owner->loaded.texts));
  text::ChatTemplate chat_template = LOCKSTEP_TRY(text::ChatTemplate::open(owner->loaded.texts));
  const std::int64_t vocab = std::min<std::int64_t>(model.config().vocab_size, tokenizer.vocabulary_size());
  std::vector<decode::TokenId> fallback;
  if (const auto eos = tokenizer.eos()) fallback.push_back(*eos);
  decode::GenerationDefaults defaults =
      LOCKSTEP_TRY(decode::read_generation_config(owner->loaded.texts, vocab, fallback));
  for (const std::string& warning : defaults.warnings) complain(warning);

  enter(progress, 3, "engine");
  engine::Options engine_options = options.engine;
  engine_options.vocab = vocab;
  const backend::DeviceChoice device = LOCKSTEP_TRY(chosen_device(options.model));
  engine_options.prefill_chunk = options.prefill_chunk != 0 ? options.prefill_chunk : backend::prompt_chunk(device);
  engine_options.identity = LOCKSTEP_TRY(engine::model_identity(artifact)) + " " + options.model.state;
  engine_options.capture = lanes.armed(decode::LaneId::GdnCapture);
  engine_options.short_head = lanes.armed(decode::LaneId::Frspec);
  engine_options.ahead = lanes.armed(decode::LaneId::ArPipeline);
  if (!lanes.armed(decode::LaneId::Mtp)) engine_options.depth = 0;
  auto context = std::make_shared<server::ModelContext>(
      server::ModelContext{.owner = owner,
                           .tokenizer = std::move(tokenizer),
                           .chat_template = std::move(chat_template),
                           .defaults = std::move(defaults),
                           .vocab = vocab,
                           .identity = identity_json(artifact, options.server.service.model_id),
                           .fingerprint = "lockstep-" + artifact.identity().inventory_sha256.substr(0, 16),
                           .device = model.backend().describe(),
                           .lanes = {},
                           .engine = nullptr});
  for (const decode::LaneInfo& lane : decode::known_lanes()) {
    context->lanes.push_back(
        {std::string(lane.name), decode::verdict_text(lanes.verdict(lane.id)), lane.health != nullptr});
  }
  LOCKSTEP_TRY(size_states(device, engine_options));
  context->engine = LOCKSTEP_TRY(engine::make_engine(model, engine_options));
  enter(progress, 4, "ready");
  return context;
}

/// What config.json says, of a directory or of a synthetic model.
Result<artifact::ModelConfig> config_of(const EngineOptions& model, const std::filesystem::path& directory) {
  if (!model.in_memory.empty()) {
    const InMemoryModel asked = LOCKSTEP_TRY(parse_in_memory(model.in_memory));
    const artifact::SynthModel synth = LOCKSTEP_TRY(describe_in_memory(asked));
    return artifact::parse_config(Json(synth.config), asked.geometry);
  }
  const std::string file = (directory / "config.json").string();
  const std::string text = LOCKSTEP_TRY(read_file(file, std::uint64_t{16} << 20));
  const Json json = LOCKSTEP_TRY(parse_json(text, file));
  return artifact::parse_config(json, file);
}

/// Refuses a --memory that is too small for any request. What the lanes come to is known only with the model, so this
/// asks for the least that they can need.
Status check_memory_plan(const Options& options, const std::filesystem::path& directory) {
  if (options.engine.memory_bytes == 0) return {};
  const artifact::ModelConfig config = LOCKSTEP_TRY(config_of(options.model, directory));
  EngineOptions used = options.model;
  const decode::Lanes lanes = LOCKSTEP_TRY(choose_lanes(options.disabled, options.engine.depth, used));
  engine::Options least = options.engine;
  if (config.draft_layers == 0 || !lanes.armed(decode::LaneId::Mtp)) least.depth = 0;
  const auto state = options.model.state == "f32" ? backend::StateType::F32 : backend::StateType::BF16;
  Status room;
  for (const bool capture : {false, true}) {
    least.capture = capture;
    room = engine::MemoryPlan(config, state, least, least.memory_bytes).check_room();
    if (room) return {};
  }
  return room;
}

/// What can be said wrong is said before anything is loaded.
Status complete(Options& options) {
  if (options.server.http.tls_certificate.empty() != options.server.http.tls_key.empty()) {
    return fail(ErrorKind::Usage, "--tls-cert and --tls-key belong together");
  }
  for (const std::string& key : options.keys) LOCKSTEP_TRY(options.server.keys.add(key));
  for (const std::string& file : options.key_files) LOCKSTEP_TRY(options.server.keys.add_file(file));
  const char* variable = std::getenv("LOCKSTEP_API_KEY");
  if (variable != nullptr && *variable == '\0') {
    return fail(ErrorKind::Usage, "LOCKSTEP_API_KEY is empty: unset it to serve without keys");
  }
  if (variable != nullptr) LOCKSTEP_TRY(options.server.keys.add(variable));
  const std::size_t bodies = options.server.http.all_bodies_bytes;
  if (bodies > 0 && bodies < options.server.service.limits.body_bytes) {
    return fail(ErrorKind::Usage, "--max-bodies {} is less than one request may have: make it at least --max-body ({})",
                bodies, options.server.service.limits.body_bytes);
  }
  if (options.no_bank && !options.bank_directory.empty()) {
    return fail(ErrorKind::Usage, "--no-bank keeps no states, so --bank-dir has nothing to hold; give one of them");
  }
  options.engine.bank.enabled = !options.no_bank;
  options.engine.bank.directory = options.bank_directory;
  std::string& id = options.server.service.model_id;
  if (options.model.in_memory.empty()) {
    const std::filesystem::path directory = LOCKSTEP_TRY(find_model(options.model.model));
    LOCKSTEP_TRY(check_memory_plan(options, directory));
    if (id.empty()) id = std::filesystem::weakly_canonical(directory).filename().string();
  } else {
    LOCKSTEP_TRY(parse_in_memory(options.model.in_memory));
    LOCKSTEP_TRY(check_memory_plan(options, {}));
    if (id.empty()) id = "synthetic";
  }
  if (id.empty()) id = "lockstep";
  // What the bank needs of its directory is known before anybody is told that there is a server.
  if (options.engine.bank.enabled && !options.bank_directory.empty()) {
    options.engine.bank.lock = LOCKSTEP_TRY(engine::BankLock::take(options.bank_directory));
  }
  return {};
}

Status serve(Options& options) {
  LOCKSTEP_TRY(complete(options));
  return server::serve(
      options.server, [&](server::LoadProgress& progress) { return load(options, progress); },
      [](const std::string& line) { complain(line); });
}

CLI::Option* add_bytes(CLI::App& command, const std::string& name, std::uint64_t& bytes, const std::string& text) {
  return command.add_option(name, bytes, text)->transform(byte_count(1));
}

CLI::Option* add_number(CLI::App& command, const std::string& name, std::int64_t& number, std::int64_t least,
                        std::int64_t most, const std::string& text) {
  return command.add_option(name, number, text)
      ->transform(whole_number(least, static_cast<std::uint64_t>(most)))
      ->capture_default_str();
}

void add_http_options(CLI::App& command, Options& options) {
  server::HttpOptions& http = options.server.http;
  server::ServiceOptions& service = options.server.service;
  command.add_option("--model-id", service.model_id, "The served name (default: that of the model's directory)")
      ->check(not_empty());
  command.add_option("--host", http.host, "Address to listen on")->capture_default_str()->check(not_empty());
  command.add_option("--port", http.port, "Port; 0 takes a free one")
      ->transform(whole_number(0, 65535))
      ->capture_default_str();
  command.add_option("--api-key", options.keys, "A key that clients must show (repeatable; also LOCKSTEP_API_KEY)");
  command.add_option("--api-key-file", options.key_files, "A file of keys, one a line (repeatable)")
      ->check(not_empty());
  command
      .add_option("--allow-host", options.server.hosts,
                  "Another name that requests may come to (repeatable; matters on loopback without keys)")
      ->check(not_empty());
  command
      .add_option("--cors-origin", options.server.origins, "Origin of web pages that may ask (repeatable; * is all)")
      ->check(not_empty());
  command.add_option("--tls-cert", http.tls_certificate, "Certificate chain (PEM), with --tls-key")->check(not_empty());
  command.add_option("--tls-key", http.tls_key, "Private key (PEM)")->check(not_empty());
  command.add_option("--access-log", options.server.access_log, "File for one line of JSON per request; - is stderr")
      ->check(not_empty());
  command.add_flag("--strict", service.limits.strict, "Refuse unknown fields and other model names");
  command.add_option("--http-threads", http.threads, "Threads for HTTP, apart from the model's")
      ->transform(whole_number(1, 256))
      ->capture_default_str();
  command.add_option("--max-connections", http.connections, "Open connections; more get 503")
      ->transform(whole_number(1, 65536))
      ->capture_default_str();
  add_bytes(command, "--max-body", service.limits.body_bytes, "Longest request body (default: 32M)");
  add_bytes(command, "--max-bodies", http.all_bodies_bytes,
            "Bodies over 64K of all requests together; more get 503 (default: 8 times --max-body)");
  command.add_option("--max-messages", service.limits.messages, "Most messages of a request")
      ->transform(whole_number(1, 1 << 20))
      ->capture_default_str();
  const auto add_seconds = [&](const std::string& name, double& seconds, const std::string& text) {
    command.add_option(name, seconds, text)
        ->check(finite_number(0.05, 86400))
        ->capture_default_str()
        ->type_name("SECONDS");
  };
  add_seconds("--header-timeout", http.header_seconds, "For a request's header to arrive");
  add_seconds("--body-timeout", http.body_seconds, "For its body");
  add_seconds("--idle-timeout", http.idle_seconds, "Between requests of a connection");
  add_seconds("--stall-timeout", http.stall_seconds, "For a client that takes nothing of its response");
  add_seconds("--keep-alive", service.keep_alive_seconds, "Between comments in a stream that has nothing to say");
}

void add_scheduling_options(CLI::App& command, Options& options) {
  engine::Options& engine = options.engine;
  add_number(command, "--parallel", engine.parallel, 1, 256, "Answers that are written at the same time");
  add_number(command, "--queue", engine.queue, 0, 65536, "Requests that wait at most; more get 429");
  command
      .add_option("--prefill-chunk", options.prefill_chunk, "Prompt tokens of a step (default: 256, on a device 4096)")
      ->transform(whole_number(1, 4096));
  add_number(command, "--mixed-chunk", engine.mixed_chunk, 1, 4096, "The same beside running answers");
  add_number(command, "--depth", engine.depth, 0, decode::kMaxDepth, "Draft tokens a cycle; 0 decodes plainly");
  add_number(command, "--busy-above", engine.busy_above, 0, 256, "Answers above which --busy-depth holds");
  add_number(command, "--busy-depth", engine.busy_depth, 0, decode::kMaxDepth, "Draft tokens a cycle when busy");
  add_number(command, "--default-max-tokens", engine.default_max_tokens, 1, std::int64_t{1} << 40,
             "Length of an answer whose request names none");
  add_bytes(command, "--memory", engine.memory_bytes,
            "For states of all requests and the bank (default: half of what is free)");
  command.add_flag("--no-bank", options.no_bank, "Keep no states for later requests");
  add_bytes(command, "--bank-memory", engine.bank.memory_bytes, "For states kept (default: a quarter of --memory)");
  add_number(command, "--bank-interval", engine.bank.interval, 0, 1 << 24, "Tokens between kept states of a prompt");
  command.add_option("--bank-dir", options.bank_directory, "Directory for states that survive a restart")
      ->check(not_empty());
  add_bytes(command, "--bank-disk", engine.bank.disk_bytes, "Size of that directory (default: 8G)");
  add_bytes(command, "--bank-writes", engine.bank.write_bytes_per_hour,
            "Written there in an hour at most (default: 32G)");
  command
      .add_option("--frspec", options.model.frspec,
                  "List of draft tokens (default: frspec.json of the model directory)")
      ->type_name("FILE")
      ->check(not_empty());
  command.add_option("--disable-optimization", options.disabled, "Switch lanes off: names separated by commas, or all");
}

}  // namespace

void add_serve(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  options->server.service.model_id.clear();
  CLI::App* command = app.add_subcommand("serve", "Serve the OpenAI and Anthropic APIs over HTTP");
  add_engine_options(*command, options->model);
  add_in_memory_option(*command, options->model);
  add_http_options(*command, *options);
  add_scheduling_options(*command, *options);
  command->footer(
      "Examples:\n"
      "  lockstep serve\n"
      "  lockstep serve -m ~/models/Flash-Next --model-id flash-next --port 9000 --parallel 8\n"
      "  lockstep serve --host 0.0.0.0 --api-key-file keys.txt --tls-cert cert.pem --tls-key key.pem");
  command->callback([options, &context] { context.status = serve(*options); });
}

}  // namespace lockstep::cli
