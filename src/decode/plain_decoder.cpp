#include "decode/decoder_core.hpp"

namespace lockstep::decode {
namespace {

class PlainDecoder final : public DecoderCore {
 public:
  PlainDecoder(const model::Model& model, model::Runner runner) : DecoderCore(model, std::move(runner)) {}

 private:
  Status advance() override {
    if (stats_.tokens > 0) {
      const model::Segment segment{&*sequence_, {&last_.id, 1}, model::LogitsWanted::Last, false};
      LOCKSTEP_TRY(runner_.forward({&segment, 1}));
      ++stats_.steps;
    }
    LOCKSTEP_TRY(distribution(runner_.logits(), next_number(), row_));
    last_ = sampler_->draw(row_, next_number());
    emit(last_);
    return {};
  }

  Distribution row_;
  Choice last_;
};

}  // namespace

Result<std::unique_ptr<Decoder>> make_plain_decoder(const model::Model& model, std::int64_t prefill_chunk) {
  model::Runner runner = LOCKSTEP_TRY(model::Runner::create(model, prefill_chunk));
  return std::make_unique<PlainDecoder>(model, std::move(runner));
}

}  // namespace lockstep::decode
