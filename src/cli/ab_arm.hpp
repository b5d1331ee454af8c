// An arm of `lockstep ab` as a model in this process.
#pragma once

#include "cli/ab_window.hpp"
#include "cli/chat_engine.hpp"

namespace lockstep::cli {

/// Loads the model with an arm's flags (those of `lockstep run`) and environment. Errors: Usage, those of loading.
Result<std::unique_ptr<ChatEngine>> load_arm(const AbSetup& setup, const report::Arm& arm);

}  // namespace lockstep::cli
