// The loaded model as the routes use it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "base/result.hpp"
#include "decode/generation_config.hpp"
#include "engine/engine.hpp"
#include "server/wire/generation_request.hpp"
#include "server/workers.hpp"
#include "text/chat_template.hpp"
#include "text/tokenizer.hpp"

namespace lockstep::server {

struct LaneReport {
  std::string name, verdict;
  bool can_fail = false;  ///< what poisons an engine, a failed read of the n-gram table, poisons the lane as well
};

struct ModelContext {
  std::shared_ptr<void> owner;  ///< what the engine runs on: outlives it
  text::Tokenizer tokenizer;
  text::ChatTemplate chat_template;
  decode::GenerationDefaults defaults;
  std::int64_t vocab = 0;  ///< usable vocabulary
  OrderedJson identity;    ///< {"id", "layout", "config_sha256", "inventory_sha256"}
  std::string fingerprint, device;
  std::vector<LaneReport> lanes;
  std::unique_ptr<engine::Engine> engine;
};

/// A prompt that is ready for the engine.
struct PreparedPrompt {
  std::string text;
  std::vector<decode::TokenId> tokens;
  std::vector<std::int64_t> boundaries;  ///< after each message
  bool reasoning_open = false;
  std::string ids_sha256;  ///< ids_digest() of the tokens
};

/// Options of every encode() here: no route makes more tokens than the context holds, and none goes on when its client
/// has left.
[[nodiscard]] text::EncodeOptions encode_options(const ModelContext& model, const Unwanted& unwanted);
/// What an encode() with these options failed with. Errors are 413 for a text beyond the context.
[[nodiscard]] ApiError encode_error(const ModelContext& model, const Error& error, std::string param);

/// The prompts of a request: one, but for completions with several. Errors: 400 with the template's words, 413 for more
/// than the context holds, 499 when `unwanted` said so.
Parsed<std::vector<PreparedPrompt>> prepare_prompts(const ModelContext& model, const GenerationRequest& request,
                                                    const Unwanted& unwanted);

/// What the engine is to do for one of them.
engine::Request engine_request(const ModelContext& model, const GenerationRequest& request,
                               const PreparedPrompt& prompt, std::uint64_t seed, bool bypass_bank);

}  // namespace lockstep::server
