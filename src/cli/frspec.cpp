// lockstep frspec: the list of tokens that a short draft head proposes from, counted in a corpus.
#include <CLI/App.hpp>
#include <algorithm>
#include <charconv>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "artifact/artifact.hpp"
#include "artifact/draft_vocabulary.hpp"
#include "base/file.hpp"
#include "base/progress.hpp"
#include "cli/arguments.hpp"
#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "cli/options.hpp"
#include "cli/standard_input.hpp"
#include "cli/terminal.hpp"
#include "decode/generation_config.hpp"
#include "text/tokenizer.hpp"

namespace lockstep::cli {
namespace {

/// Text is tokenised in pieces of about this size, cut behind a line end where there is one.
constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr std::size_t kMaxInputBytes = std::size_t{256} << 20;  ///< of standard input

struct Options {
  std::string model, out;
  std::vector<std::string> texts, ids;
  std::int64_t size = 65536;
};

/// How often each token of the vocabulary occurs.
class Counter {
 public:
  Counter(const text::Tokenizer& tokenizer, std::size_t vocab, const InterruptScope& interrupts)
      : tokenizer_(tokenizer), counts_(vocab), interrupts_(interrupts) {
    encode_.stop = [this] { return interrupts_.requested(); };
  }
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

  [[nodiscard]] const std::vector<std::uint64_t>& counts() const { return counts_; }

  Status text(std::string_view text, const std::string& what) {
    Progress progress(what, text.size(), ProgressUnit::Bytes);
    for (std::size_t begin = 0; begin < text.size();) {
      std::size_t end = std::min(text.size(), begin + kPiece);
      if (const std::size_t line = text.rfind('\n', end - 1); end < text.size() && line != std::string_view::npos) {
        if (line >= begin) end = line + 1;
      }
      const auto ids = LOCKSTEP_TRY(tokenizer_.encode(text.substr(begin, end - begin), encode_));
      for (const std::int32_t id : ids) LOCKSTEP_TRY(count(id, what));
      LOCKSTEP_TRY(interrupts_.check());
      begin = end;
      progress.set(begin);
    }
    return {};
  }

  /// Decimal ids between white space and commas.
  Status ids(std::string_view text, const std::string& what) {
    constexpr std::string_view kSeparators = " \t\r\n,[]";
    std::size_t begin = std::min(text.find_first_not_of(kSeparators), text.size());
    while (begin < text.size()) {
      const std::size_t end = std::min(text.find_first_of(kSeparators, begin), text.size());
      const std::string_view word = text.substr(begin, end - begin);
      std::int32_t id = -1;
      const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), id);
      if (error != std::errc() || rest != word.data() + word.size()) {
        return fail(ErrorKind::Invalid, "{}: byte {} is not the start of a token id", what, begin);
      }
      LOCKSTEP_TRY(count(id, what));
      LOCKSTEP_TRY(interrupts_.check());
      begin = std::min(text.find_first_not_of(kSeparators, end), text.size());
    }
    return {};
  }

 private:
  Status count(std::int32_t id, const std::string& what) {
    if (id < 0 || static_cast<std::size_t>(id) >= counts_.size()) {
      return fail(ErrorKind::Invalid, "{}: token {} is outside the model's vocabulary of {}", what, id, counts_.size());
    }
    ++counts_[static_cast<std::size_t>(id)];
    return {};
  }

  const text::Tokenizer& tokenizer_;
  std::vector<std::uint64_t> counts_;
  const InterruptScope& interrupts_;
  text::EncodeOptions encode_;
};

/// Calls `take` with each source's content; "-" is standard input.
template <class Take>
Status each_source(const std::vector<std::string>& sources, const InterruptScope& interrupts, const Take& take) {
  for (const std::string& source : sources) {
    if (source == "-") {
      const std::string text = LOCKSTEP_TRY(read_stdin(kMaxInputBytes, interrupts));
      LOCKSTEP_TRY(take(text, "standard input"));
      continue;
    }
    const MappedFile file = LOCKSTEP_TRY(MappedFile::open(source));
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    const Status taken = take(text, source);
    LOCKSTEP_TRY(file.intact());
    LOCKSTEP_TRY(taken);
  }
  return {};
}

/// The list would replace a corpus: the same file under two names, or through a link.
Status check_apart(const std::vector<std::string>& sources, const std::string& out) {
  for (const std::string& source : sources) {
    std::error_code absent;
    if (!std::filesystem::equivalent(source, out, absent)) continue;
    return fail(ErrorKind::Usage, "--out {} is the corpus {}; name another file", out, source);
  }
  return {};
}

Status frspec(const Options& options) {
  const InterruptScope interrupts;
  LOCKSTEP_TRY(check_apart(options.texts, options.out));
  LOCKSTEP_TRY(check_apart(options.ids, options.out));
  const std::filesystem::path directory = LOCKSTEP_TRY(find_model(options.model));
  const artifact::Artifact artifact = LOCKSTEP_TRY(artifact::Artifact::open_shapes(directory));
  const text::Tokenizer tokenizer = LOCKSTEP_TRY(text::Tokenizer::open(directory));
  const std::int64_t usable = std::min<std::int64_t>(artifact.config().vocab_size, tokenizer.vocabulary_size());
  AtomicFile file = LOCKSTEP_TRY(AtomicFile::create(options.out));
  Counter counter(tokenizer, static_cast<std::size_t>(artifact.config().vocab_size), interrupts);
  LOCKSTEP_TRY(each_source(options.texts, interrupts,
                           [&](std::string_view text, const std::string& what) { return counter.text(text, what); }));
  LOCKSTEP_TRY(each_source(options.ids, interrupts,
                           [&](std::string_view text, const std::string& what) { return counter.ids(text, what); }));
  if (std::ranges::all_of(counter.counts(), [](std::uint64_t count) { return count == 0; })) {
    return fail(ErrorKind::Invalid, "the corpus has no tokens: a list made from it would say nothing");
  }
  // Tokens that end an answer are drafted at the end of every answer, however rare they are in a corpus.
  std::vector<decode::TokenId> fallback;
  if (const auto eos = tokenizer.eos()) fallback.push_back(*eos);
  const decode::GenerationDefaults defaults = LOCKSTEP_TRY(decode::read_generation_config(directory, usable, fallback));
  const artifact::DraftVocabulary list = LOCKSTEP_TRY(
      artifact::rank_draft_vocabulary(counter.counts(), defaults.stop_ids, static_cast<std::size_t>(options.size)));
  LOCKSTEP_TRY(file.write(artifact::draft_vocabulary_text(list)));
  LOCKSTEP_TRY(file.commit());
  const double share =
      list.counted > 0 ? 100.0 * static_cast<double>(list.covered) / static_cast<double>(list.counted) : 0;
  return write_stdout(fmt::format("{}: {} of {} tokens; they are {} of the {} counted ({:.3f} %)\n", options.out,
                                  list.ids.size(), list.vocab_size, list.covered, list.counted, share));
}

}  // namespace

void add_frspec(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("frspec", "Make the list of frequent tokens that a short draft head proposes from");
  add_model_option(*command, options->model);
  command->add_option("--text", options->texts, "Count the tokens of this text file (repeatable; -: standard input)")
      ->allow_extra_args(false)
      ->check(not_empty());
  command->add_option("--ids", options->ids, "Count the token ids in this file (repeatable; -: standard input)")
      ->allow_extra_args(false)
      ->check(not_empty());
  command->add_option("--size", options->size, "Most tokens of the list")
      ->transform(whole_number(1, std::uint64_t{1} << 24))
      ->capture_default_str();
  command->add_option("--out", options->out, "The list to write")->required()->check(not_empty());
  command->footer(
      "Examples:\n"
      "  lockstep frspec -m ~/models/Flash-Next --text corpus.txt --out ~/models/Flash-Next/frspec.json\n"
      "  lockstep tokenize < corpus.txt | lockstep frspec --ids - --size 2048 --out list.json\n"
      "  lockstep run --frspec list.json --stats -p \"What does bank mean?\"\n"
      "\n"
      "A list called frspec.json in the model directory is used without being named.");
  command->callback([options, &context] {
    if (options->texts.empty() && options->ids.empty()) {
      context.status = fail(ErrorKind::Usage, "frspec needs a corpus: --text FILE or --ids FILE");
      return;
    }
    context.status = frspec(*options);
  });
}

}  // namespace lockstep::cli
