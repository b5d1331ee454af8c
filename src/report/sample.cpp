#include "report/sample.hpp"

namespace lockstep::report {
namespace {

/// Reads fields and keeps the first error.
class Fields {
 public:
  Fields(const Json& object, std::string_view what) : object_(object), what_(what) {}

  void read(const char* key, std::string& out) { take(json_string(object_, key, what_), out); }
  void read(const char* key, std::int64_t& out) { take(json_integer(object_, key, what_), out); }
  void read(const char* key, double& out) { take(json_number(object_, key, what_), out); }
  template <class Item>
  void read(const char* key, std::vector<Item>& out) {
    const auto found = object_.find(key);
    if (found == object_.end() || !found->is_array()) return wrong(key);
    for (const Json& item : *found) {
      if constexpr (std::is_integral_v<Item>) {
        if (!item.is_number_integer()) return wrong(key);
      } else {
        if (!item.is_string()) return wrong(key);
      }
      out.push_back(item.get<Item>());
    }
  }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  template <class T>
  void take(Result<T> value, T& out) {
    if (value) {
      out = *std::move(value);
    } else if (status_) {
      status_ = tl::unexpected(std::move(value).error());
    }
  }
  void wrong(const char* key) {
    if (status_) status_ = fail(ErrorKind::Invalid, "{}: '{}' is no list of the right kind", what_, key);
  }
  const Json& object_;
  std::string_view what_;
  Status status_;
};

const Json* first_of(const Json& response, const char* where) {
  const Json* object = &response;
  if (*where != '\0') {
    const auto found = response.find(where);
    if (found == response.end() || !found->is_object()) return nullptr;
    object = &*found;
  }
  const auto choices = object->find("choices");
  if (choices == object->end() || !choices->is_array() || choices->empty() || !(*choices)[0].is_object())
    return nullptr;
  return &(*choices)[0];
}

}  // namespace

Result<Sample> sample_of_response(const Json& response, double wall_seconds) {
  const Json* choice = response.is_object() ? first_of(response, "") : nullptr;
  const Json* report = response.is_object() ? first_of(response, "lockstep") : nullptr;
  if (choice == nullptr || report == nullptr) {
    return fail(ErrorKind::Invalid, "the response has no choice or no object 'lockstep'");
  }
  Sample sample;
  sample.wall_seconds = wall_seconds;
  Fields answer(*choice, "choices[0]");
  answer.read("finish_reason", sample.finish);
  LOCKSTEP_TRY(answer.status());
  Fields extension(response["lockstep"], "lockstep");
  extension.read("request_sha256", sample.digests.request);
  LOCKSTEP_TRY(extension.status());
  Fields fields(*report, "lockstep.choices[0]");
  fields.read("prompt_tokens", sample.prompt_tokens);
  fields.read("prefill_tokens", sample.prefill_tokens);
  fields.read("decode_tokens", sample.tokens);
  fields.read("steps", sample.steps);
  fields.read("prefill_seconds", sample.prefill_seconds);
  fields.read("prefill_tokens_per_second", sample.prefill_rate);
  fields.read("ttft_seconds", sample.ttft_seconds);
  fields.read("decode_seconds", sample.decode_seconds);
  fields.read("decode_tokens_per_second", sample.decode_rate);
  fields.read("drafted", sample.drafted);
  fields.read("accepted", sample.accepted);
  fields.read("lanes", sample.lanes);
  fields.read("prompt_ids_sha256", sample.digests.prompt_ids);
  fields.read("ids_sha256", sample.digests.ids);
  fields.read("text_sha256", sample.digests.text);
  fields.read("reasoning_sha256", sample.digests.reasoning);
  fields.read("ids", sample.ids);
  LOCKSTEP_TRY(fields.status());
  return sample;
}

}  // namespace lockstep::report
