// A backend that runs steps over tokens which nobody has been told yet: as a device would, one call after the other. A
// token is read where the draw left it, in the backend's memory.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "backend/draws_ahead.hpp"
#include "support/drawing_backend.hpp"

namespace lockstep::test {

class AheadBackend final : public DrawingBackend, public backend::DrawsAhead {
 public:
  /// `finds_rows`: the device reads the n-gram table.
  explicit AheadBackend(std::unique_ptr<backend::Backend> inner, bool finds_rows = true)
      : DrawingBackend(std::move(inner)), finds_rows_(finds_rows) {}

  [[nodiscard]] backend::DrawsAhead* draws_ahead() override { return this; }

  void begin_step(std::size_t slot) override { calls.emplace_back('b', slot); }
  void draw_soon(const float* logits, std::int64_t width, const backend::DrawRequest& request,
                 std::size_t slot) override {
    calls.emplace_back('d', slot);
    if (tokens_ == nullptr) tokens_ = inner_->allocate(kSlots * sizeof(backend::Drawn)).value();
    backend::Drawn drawn;
    DrawingBackend::draw(logits, width, {&request, 1}, {&drawn, 1});
    inner_->write(at(slot), &drawn, sizeof(drawn));
  }
  backend::Drawn drawn(std::size_t slot) override {
    calls.emplace_back('w', slot);
    return read_back(slot);
  }
  void embed_drawn(const backend::Matrix& embedding, std::size_t slot, float* x) override {
    calls.emplace_back('e', slot);
    const std::int32_t token = std::max(read_back(slot).id, 0);
    inner_->embed(embedding, {&token, 1}, x);
  }
  [[nodiscard]] bool finds_rows() const override { return finds_rows_; }
  void ngram_lookup_drawn(const artifact::NgramHash& hash, std::span<const std::uint64_t> past, std::size_t slot,
                          float* e) override {
    const auto token = static_cast<std::uint64_t>(std::max(read_back(slot).id, 0));
    const std::size_t per = hash.sizes.size() / past.size();
    std::vector<std::int64_t> rows;
    for (std::size_t head = 0; head < hash.sizes.size(); ++head) {
      const std::uint64_t mix = token * hash.multipliers[0] ^ past[head / per];
      rows.push_back(static_cast<std::int64_t>(mix % hash.sizes[head] + hash.offsets[head]));
    }
    const Status found = inner_->ngram_lookup(rows, e);
    if (!found) throw std::runtime_error(found.error().message);
  }

  /// Steps begun (b), their draws (d), tokens embedded unseen (e) and waits for tokens (w), each with its slot.
  std::vector<std::pair<char, std::size_t>> calls;

 private:
  std::byte* at(std::size_t slot) { return tokens_->data() + slot * sizeof(backend::Drawn); }
  backend::Drawn read_back(std::size_t slot) {
    backend::Drawn drawn;
    inner_->read(&drawn, at(slot), sizeof(drawn));
    return drawn;
  }

  bool finds_rows_;
  backend::BufferPtr tokens_;
};

}  // namespace lockstep::test
