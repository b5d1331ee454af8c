// The n-gram hash: which rows of the table a token and its predecessors address (docs/artifact.md, "N-gram hash").
#pragma once

#include <cstdint>
#include <span>

#include "artifact/model_view.hpp"

namespace lockstep::artifact {

/// Constants as the configuration defines them: odd multipliers from splitmix64, one prime table size a head, running
/// offsets. Errors: Limit when the table would have more than 2^40 rows.
Result<NgramHash> make_ngram_hash(const ModelConfig& config);

/// Rows of the table with padding: the sum of the head sizes rounded up to config.ngram_vocab_multiple.
[[nodiscard]] std::uint64_t ngram_padded_rows(const NgramHash& hash, std::uint64_t multiple);

/// Checks constants that come from a file: counts, sizes > 0, every head inside `rows`, and products with a token id
/// below 2^63. Errors: Invalid.
Status check_ngram_hash(const NgramHash& hash, const ModelConfig& config, std::uint64_t rows);

/// The look-back rule. window[0] is the current token and window[i] the one i positions before it (`eos` where the text
/// has none). The first predecessor that is `eos` hides everything older: those entries become `eos` too. A current
/// token that is `eos` still sees its own predecessors.
void cut_ngram_window(std::span<std::int64_t> window, std::int64_t eos);

/// Row ids, one a head: heads [0, per) hash the last two tokens, the next `per` the last three, and so on.
///   mix_n = window[0] * M[0] xor ... xor window[n-1] * M[n-1],   row = mix_n mod size[h] + offset[h]
/// `window` is [ngram size] and already cut, `rows` is [heads].
void ngram_rows(const NgramHash& hash, std::span<const std::int64_t> window, std::span<std::uint64_t> rows);

/// What the tokens before a current one add to mix_2, mix_3, ...: past[n - 2] = window[1] * M[1] xor ... xor
/// window[n-1] * M[n-1], so that mix_n = window[0] * M[0] xor past[n - 2]. window[0] is not looked at, `past` is
/// [ngram size - 1].
void ngram_past(const NgramHash& hash, std::span<const std::int64_t> window, std::span<std::uint64_t> past);

}  // namespace lockstep::artifact
