#include "text/tokenizer.hpp"

#include <algorithm>
#include <utility>

#include "base/file.hpp"
#include "text/tokenizer_bpe.hpp"
#include "text/tokenizer_json.hpp"
#include "text/tokenizer_split.hpp"
#include "text/unicode_nfc.hpp"
#include "text/utf8.hpp"

namespace lockstep::text {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;

/// Checks the ranges and drops empty ones.
Result<std::vector<ByteRange>> checked_ranges(std::span<const ByteRange> ranges, std::size_t text_bytes) {
  std::vector<ByteRange> result;
  std::size_t end = 0;
  for (const ByteRange& range : ranges) {
    if (range.begin < end || range.end < range.begin || range.end > text_bytes) {
      return fail(ErrorKind::Invalid, "literal range [{}, {}) is out of order or beyond the text of {} bytes",
                  range.begin, range.end, text_bytes);
    }
    end = range.end;
    if (range.begin < range.end) result.push_back(range);
  }
  return result;
}

/// U+212A (3 bytes) is K in NFC, and three Jamo of 3 bytes are one syllable of 3.
constexpr std::size_t kNfcShrinks = 3;
constexpr std::size_t kBlock = std::size_t{64} << 10;

Status cancelled() {
  return fail(ErrorKind::Cancelled, "interrupted");
}

/// NFC in blocks, so that a long text can be left in the middle. Blocks end before an ASCII character, which never
/// joins what is in front of it.
Result<std::string> to_nfc_in_blocks(std::string_view text, const StopCheck& stop) {
  std::string out;
  while (!text.empty()) {
    if (stop && stop()) return tl::unexpected(cancelled().error());
    std::size_t end = std::min(text.size(), kBlock);
    while (end < text.size() && static_cast<unsigned char>(text[end]) >= 0x80) ++end;
    out += LOCKSTEP_TRY(to_nfc(text.substr(0, end)));
    text.remove_prefix(end);
  }
  return out;
}

/// One text on its way to ids.
struct Job {
  const EncodeOptions& options;
  std::size_t text_bytes;
  std::vector<std::int32_t> ids;
  BytePairMerger::Scratch merger;
  SplitPattern::Budget budget;

  /// Whether `more` tokens still fit. Errors: Limit, Cancelled.
  [[nodiscard]] Status check(std::size_t more) const {
    if (more > options.max_tokens || ids.size() > options.max_tokens - more) {
      return fail(ErrorKind::Limit, "the text of {} bytes has more than {} tokens", text_bytes, options.max_tokens);
    }
    return {};
  }
};

}  // namespace

struct Tokenizer::State {
  State(AddedTokens added_tokens, SplitPattern split_pattern, BytePairMerger pair_merger)
      : added(std::move(added_tokens)), split(std::move(split_pattern)), merger(std::move(pair_merger)) {}

  /// Encodes a text without added tokens.
  Status encode_plain(std::string_view text, Job& job) const {
    std::string repaired, normalized;
    if (!is_valid_utf8(text)) {
      repaired = replace_invalid_utf8(text);
      text = repaired;
    }
    if (nfc && !is_trivially_nfc(text)) {
      normalized = LOCKSTEP_TRY(to_nfc_in_blocks(text, job.options.stop));
      text = normalized;
    }
    std::size_t pieces = 0;
    return split.split(text, job.budget, [&](std::string_view piece) -> Status {
      LOCKSTEP_TRY(job.check((piece.size() + longest - 1) / longest));
      if (++pieces % 1024 == 0 && job.options.stop && job.options.stop()) return cancelled();
      return merger.encode(piece, job.merger, job.ids, job.options.stop) ? Status{} : cancelled();
    });
  }

  AddedTokens added;
  SplitPattern split;
  BytePairMerger merger;
  std::string pattern;
  bool nfc = false;
  std::size_t longest = 1;  ///< bytes of the longest token
  std::optional<std::int32_t> eos;
  std::string bytes;                 ///< the bytes of all tokens, one after the other
  std::vector<std::size_t> offsets;  ///< token i is bytes[offsets[i], offsets[i + 1])
  std::vector<bool> special;
};

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::open(const std::filesystem::path& directory) {
  const std::string text = LOCKSTEP_TRY(read_file(directory / "tokenizer.json", kMaxFileBytes));
  const std::filesystem::path config_path = directory / "tokenizer_config.json";
  std::string config;
  if (LOCKSTEP_TRY(file_present(config_path))) config = LOCKSTEP_TRY(read_file(config_path, kMaxFileBytes));
  auto tokenizer = from_json(text, config);
  if (tokenizer) return tokenizer;
  // The readers name their file; what is built from it afterwards does not.
  Error error = std::move(tokenizer).error();
  if (!error.message.starts_with("tokenizer")) error.message = "tokenizer.json: " + error.message;
  return tl::unexpected(Error{error.kind, in_directory(directory, error.message)});
}

Result<Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json, std::string_view config_json) {
  TokenizerSpec spec = LOCKSTEP_TRY(parse_tokenizer(tokenizer_json, config_json));
  for (const AddedToken& token : spec.added) {
    const auto index = static_cast<std::size_t>(token.id);
    if (spec.tokens.size() <= index) spec.tokens.resize(index + 1);
    spec.tokens[index] = token.content;
  }
  std::vector<bool> special(spec.tokens.size());
  for (const AddedToken& token : spec.added) special[static_cast<std::size_t>(token.id)] = token.special;
  AddedTokens added = LOCKSTEP_TRY(AddedTokens::create(std::move(spec.added)));
  SplitPattern split = LOCKSTEP_TRY(SplitPattern::compile(spec.split_pattern));
  BytePairMerger merger = LOCKSTEP_TRY(BytePairMerger::create(spec.byte_ids, spec.merges));
  auto state = std::make_unique<State>(std::move(added), std::move(split), std::move(merger));
  state->pattern = std::move(spec.split_pattern);
  state->nfc = spec.nfc;
  state->eos = spec.eos;
  state->special = std::move(special);
  state->offsets.reserve(spec.tokens.size() + 1);
  for (const std::string& token : spec.tokens) {
    state->longest = std::max(state->longest, token.size());
    state->offsets.push_back(state->bytes.size());
    state->bytes += token;
  }
  state->offsets.push_back(state->bytes.size());
  return Tokenizer(std::move(state));
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return fail(ErrorKind::Limit, "text of {} bytes is longer than the limit of {}", text.size(), kMaxTextBytes);
  }
  const std::vector<ByteRange> literal = LOCKSTEP_TRY(checked_ranges(options.literal, text.size()));
  Job job{options, text.size(), {}, {}, SplitPattern::Budget(text.size(), options.stop)};
  LOCKSTEP_TRY(job.check(least_tokens(text.size())));
  std::size_t position = 0;
  while (position < text.size()) {
    AddedTokens::Match match{text.size(), nullptr};
    if (options.added_tokens) match = state_->added.find(text, position, literal);
    const std::string_view plain = text.substr(position, match.position - position);
    LOCKSTEP_TRY(state_->encode_plain(plain, job));
    position = match.position;
    if (match.token == nullptr) break;
    job.ids.push_back(match.token->id);
    position += match.token->content.size();
    if (job.ids.size() % 1024 == 0 && options.stop && options.stop()) return tl::unexpected(cancelled().error());
  }
  LOCKSTEP_TRY(job.check(0));
  return std::move(job.ids);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    if (!skip_special || !is_special(id)) bytes += token_bytes(id);
  }
  return is_valid_utf8(bytes) ? bytes : replace_invalid_utf8(bytes);
}

Result<std::string> Tokenizer::decode_checked(std::span<const std::int32_t> ids, bool skip_special) const {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (token_bytes(ids[i]).empty()) {
      return fail(ErrorKind::Invalid, "token id {} at position {} is not in the vocabulary of {} tokens", ids[i], i,
                  vocabulary_size());
    }
  }
  return decode(ids, skip_special);
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  if (id < 0 || id >= vocabulary_size()) return {};
  const auto index = static_cast<std::size_t>(id);
  const std::size_t begin = state_->offsets[index];
  return std::string_view(state_->bytes).substr(begin, state_->offsets[index + 1] - begin);
}

std::size_t Tokenizer::least_tokens(std::size_t bytes) const {
  const std::size_t most = state_->longest * (state_->nfc ? kNfcShrinks : 1);
  return bytes / most + (bytes % most == 0 ? 0 : 1);
}

std::int32_t Tokenizer::vocabulary_size() const {
  return static_cast<std::int32_t>(state_->special.size());
}

bool Tokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < vocabulary_size() && state_->special[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> Tokenizer::added_token(std::string_view text) const {
  const AddedToken* token = state_->added.by_text(text);
  return token == nullptr ? std::nullopt : std::optional(token->id);
}

std::span<const AddedToken> Tokenizer::added_tokens() const {
  return state_->added.all();
}
std::optional<std::int32_t> Tokenizer::eos() const {
  return state_->eos;
}
std::string_view Tokenizer::split_pattern() const {
  return state_->pattern;
}

}  // namespace lockstep::text
