// Steps over tokens that the device has drawn and the host does not know yet.
//
// Two steps of one row are under way at most. Each has a slot, in turns; a slot keeps the drawn token, on the device
// for the step behind it and on the host, until it is used again.
#pragma once

#include <cstdint>
#include <span>

#include "artifact/model_view.hpp"
#include "backend/backend.hpp"

namespace lockstep::backend {

class DrawsAhead {
 public:
  static constexpr std::size_t kSlots = 2;

  DrawsAhead() = default;
  DrawsAhead(const DrawsAhead&) = delete;
  DrawsAhead& operator=(const DrawsAhead&) = delete;
  virtual ~DrawsAhead() = default;

  /// What follows, up to draw_soon(), is a step of this slot, which waits for nothing in front of it. Waits for the
  /// token that an earlier step left in the slot, if nobody did.
  virtual void begin_step(std::size_t slot) = 0;
  /// Backend::draw() for one row of `logits`, handed over without waiting. Ends the step.
  virtual void draw_soon(const float* logits, std::int64_t width, const DrawRequest& request, std::size_t slot) = 0;
  /// Waits for the token of a slot, not for what follows it. What Backend::draw() would have given.
  virtual Drawn drawn(std::size_t slot) = 0;
  /// Backend::embed() of the token in a slot; of token 0 where nothing could be drawn.
  virtual void embed_drawn(const Matrix& embedding, std::size_t slot, float* x) = 0;
  /// Whether ngram_lookup_drawn() can be called: the device reads the table, or there is none.
  [[nodiscard]] virtual bool finds_rows() const = 0;
  /// Backend::ngram_lookup() for the token that embed_drawn() takes, behind tokens of which `past` is what
  /// artifact::ngram_past() says.
  virtual void ngram_lookup_drawn(const artifact::NgramHash& hash, std::span<const std::uint64_t> past,
                                  std::size_t slot, float* e) = 0;
};

}  // namespace lockstep::backend
