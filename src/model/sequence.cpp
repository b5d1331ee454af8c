#include "model/sequence.hpp"

#include <algorithm>

namespace lockstep::model {
namespace {

/// Start of a saved state; what follows is defined by the geometry.
struct Header {
  char magic[8] = {'L', 'S', 'T', 'A', 'T', 'E', '0', '1'};
  std::int64_t length = 0, draft_length = 0;
};

}  // namespace

Result<Sequence> Sequence::create(const Model& model) {
  const artifact::ModelConfig& config = model.config();
  backend::Backend& backend = model.backend();
  KvCache kv =
      LOCKSTEP_TRY(KvCache::create(backend, model.pages(), config, model.state_type(), model.attention_layers()));
  ConvState conv =
      LOCKSTEP_TRY(ConvState::create(backend, model.linear_layers(), config.conv_kernel - 1, config.conv_channels()));
  DeltaState delta = LOCKSTEP_TRY(DeltaState::create(backend, config, model.linear_layers()));
  Sequence sequence(model, std::move(kv), std::move(conv), std::move(delta));
  if (!config.ple_layers.empty()) {
    const std::int64_t history = (config.ple_conv_kernel - 1) * config.ngram_size;
    sequence.ple_conv_ = LOCKSTEP_TRY(ConvState::create(backend, 1, history, config.wide_size()));
  }
  if (model.has_draft()) {
    sequence.draft_ = LOCKSTEP_TRY(KvCache::create(backend, model.draft_pages(), config, model.state_type(), 1));
  }
  return sequence;
}

void Sequence::commit(std::int64_t rows, std::int64_t keep) {
  const std::int64_t length = kv_.length() - rows + keep;
  kv_.truncate(length);
  history_.truncate(length);
  delta_.commit(rows, keep);
  conv_.commit(keep);
  if (ple_conv_) ple_conv_->commit(keep);
}

std::vector<std::pair<std::string_view, std::vector<std::byte>>> Sequence::save_parts(bool draft) const {
  std::vector<std::pair<std::string_view, std::vector<std::byte>>> parts;
  const auto part = [&](std::string_view name, auto&& fill) {
    StateWriter writer(model_->backend(), parts.emplace_back(name, std::vector<std::byte>{}).second);
    fill(writer);
  };
  Header header;
  header.length = length();
  header.draft_length = draft ? draft_length() : 0;
  part("lengths", [&](StateWriter& writer) { writer.host(&header, sizeof(header)); });
  part("token history", [&](StateWriter& writer) { history_.save(writer); });
  part("attention keys, values and index keys", [&](StateWriter& writer) { kv_.save(writer); });
  part("GDN matrices", [&](StateWriter& writer) { delta_.save(writer); });
  part("GDN convolution columns", [&](StateWriter& writer) { conv_.save(writer); });
  if (ple_conv_) part("PLE convolution columns", [&](StateWriter& writer) { ple_conv_->save(writer); });
  if (draft_ && draft) part("draft layer keys and values", [&](StateWriter& writer) { draft_->save(writer); });
  return parts;
}

std::vector<std::byte> Sequence::save(bool draft) const {
  std::vector<std::byte> out;
  for (const auto& [name, bytes] : save_parts(draft)) out.insert(out.end(), bytes.begin(), bytes.end());
  return out;
}

Status Sequence::restore(std::span<const std::byte> saved) {
  Sequence fresh = LOCKSTEP_TRY(create(*model_));
  LOCKSTEP_TRY(fresh.read(saved));
  *this = std::move(fresh);
  return {};
}

Status Sequence::read(std::span<const std::byte> saved) {
  StateReader reader(model_->backend(), saved);
  Header header;
  const Header expected;
  LOCKSTEP_TRY(reader.host(&header, sizeof(header)));
  if (!std::equal(std::begin(header.magic), std::end(header.magic), std::begin(expected.magic))) {
    return fail(ErrorKind::Invalid, "saved state has no known format");
  }
  const std::int64_t most = model_->config().max_positions;
  if (header.length < 0 || header.length > most || header.draft_length < 0 || header.draft_length > most) {
    return fail(ErrorKind::Invalid, "saved state has an impossible length of {} tokens", header.length);
  }
  // Looked at before memory is taken for it.
  if (static_cast<std::size_t>(header.length) > reader.left() / sizeof(std::int32_t)) {
    return fail(ErrorKind::Invalid, "saved state ends early: it does not hold its {} token ids", header.length);
  }
  LOCKSTEP_TRY(history_.restore(reader, header.length, model_->config().vocab_size));
  LOCKSTEP_TRY(kv_.restore(reader, header.length));
  LOCKSTEP_TRY(delta_.restore(reader));
  LOCKSTEP_TRY(conv_.restore(reader));
  if (ple_conv_) LOCKSTEP_TRY(ple_conv_->restore(reader));
  if (draft_) LOCKSTEP_TRY(draft_->restore(reader, header.draft_length));
  if (reader.left() != 0) return fail(ErrorKind::Invalid, "saved state has {} bytes too many", reader.left());
  return {};
}

Result<Sequence> Sequence::fork() const {
  if (broken_) return fail(ErrorKind::Io, "a sequence that a failed step has broken cannot be forked");
  KvCache kv = LOCKSTEP_TRY(kv_.fork());
  ConvState conv = LOCKSTEP_TRY(conv_.fork());
  DeltaState delta = LOCKSTEP_TRY(delta_.fork());
  Sequence copy(*model_, std::move(kv), std::move(conv), std::move(delta));
  if (ple_conv_) copy.ple_conv_ = LOCKSTEP_TRY(ple_conv_->fork());
  if (draft_) copy.draft_ = LOCKSTEP_TRY(draft_->fork());
  copy.history_ = history_.fork();
  return copy;
}

std::size_t Sequence::bytes() const {
  return kv_.bytes() + delta_.bytes() + (draft_ ? draft_->bytes() : 0) + tokens().size() * sizeof(std::int32_t);
}

std::size_t Sequence::own_bytes() const {
  return kv_.ring_bytes() + delta_.bytes() + conv_.bytes() + (ple_conv_ ? ple_conv_->bytes() : 0) +
         (draft_ ? draft_->ring_bytes() : 0) + tokens().size() * sizeof(std::int32_t);
}

}  // namespace lockstep::model
