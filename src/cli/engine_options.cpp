#include "cli/engine_options.hpp"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <cstdio>

#include "backend/cpu/cpu_backend.hpp"
#include "cli/options.hpp"

namespace lockstep::cli {

void add_engine_options(CLI::App& command, EngineOptions& options) {
  add_model_option(command, options.model);
  command.add_option("--threads", options.threads, "Threads; 0 uses every physical core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option("--isa", options.isa, "Kernels to use (default: LOCKSTEP_ISA, else the fastest of this machine)");
  command.add_option("--state", options.state, "How keys and values are kept")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
}

Result<LoadedModel> load_model(const EngineOptions& options, bool draft) {
  const std::filesystem::path directory = LOCKSTEP_TRY(find_model(options.model));
  backend::CpuOptions cpu;
  cpu.threads = options.threads;
  cpu.isa = options.isa;
  cpu.unquantised_activations = options.unquantised;
  std::unique_ptr<backend::Backend> backend = LOCKSTEP_TRY(backend::CpuBackend::create(cpu));
  LoadedModel loaded;
  loaded.artifact = std::make_unique<artifact::Artifact>(LOCKSTEP_TRY(artifact::Artifact::open(directory)));
  for (const std::string& warning : loaded.artifact->warnings()) fmt::print(stderr, "lockstep: {}\n", warning);
  model::ModelOptions model_options;
  model_options.state = options.state == "f32" ? backend::StateType::F32 : backend::StateType::BF16;
  model_options.draft = draft;
  loaded.model = LOCKSTEP_TRY(model::Model::load(*loaded.artifact, std::move(backend), model_options));
  return loaded;
}

}  // namespace lockstep::cli
