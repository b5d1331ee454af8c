#include "artifact/safetensors_header.hpp"

#include <algorithm>
#include <unordered_set>

#include "base/checked.hpp"
#include "base/json.hpp"

namespace lockstep::artifact {
namespace {

/// Receives the events of nlohmann's SAX parser. The only shapes accepted are
///   {"__metadata__": {string: string...}, NAME: {"dtype": string, "shape": [unsigned...], "data_offsets": [begin,
///   end]}}
/// Returning false stops the parser at once; `problem` then says why.
class HeaderReader {
 public:
  explicit HeaderReader(std::string_view what) : what_(what) {}

  bool null() { return unexpected("a null"); }
  bool boolean(bool /*value*/) { return unexpected("a boolean"); }
  bool number_integer(std::int64_t value) { return reject(fmt::format("number {} is negative", value)); }
  bool number_float(double /*value*/, const std::string& text) {
    return reject("number " + text + " is not an integer");
  }
  bool binary(std::vector<std::uint8_t>& /*value*/) { return unexpected("binary data"); }
  bool number_unsigned(std::uint64_t value);
  bool string(std::string& value);
  bool start_object(std::size_t /*elements*/);
  bool end_object();
  bool start_array(std::size_t /*elements*/);
  bool end_array();
  bool key(std::string& value);
  bool parse_error(std::size_t position, const std::string& /*token*/, const nlohmann::detail::exception& error) {
    return reject(fmt::format("not valid JSON at byte {}: {}", position, error.what()));
  }

  [[nodiscard]] const std::string& problem() const { return problem_; }
  [[nodiscard]] bool done() const { return state_ == State::End; }
  SafetensorsHeader take() { return std::move(header_); }

 private:
  enum class State : std::uint8_t {
    Begin,
    Top,
    Entry,
    Tensor,
    Dtype,
    Shape,
    Offsets,
    MetadataEntry,
    Metadata,
    Value,
    End
  };

  bool reject(std::string_view reason) {
    if (problem_.empty()) {
      problem_ = tensor_.name.empty() ? fmt::format("{}: header: {}", what_, reason)
                                      : fmt::format("{}: tensor '{}': {}", what_, tensor_.name, reason);
    }
    return false;
  }
  bool unexpected(std::string_view found) { return reject(fmt::format("{} where none may be", found)); }
  bool finish_tensor();

  std::string_view what_;
  std::string problem_;
  SafetensorsHeader header_;
  std::unordered_set<std::string> names_;
  State state_ = State::Begin;
  bool metadata_seen_ = false, in_array_ = false;

  // The tensor being read.
  TensorInfo tensor_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::vector<std::uint64_t> offsets_;
  std::string metadata_key_;
};

bool HeaderReader::number_unsigned(std::uint64_t value) {
  if (!in_array_) return unexpected("a number");
  if (state_ == State::Shape) {
    if (value > static_cast<std::uint64_t>(INT64_MAX)) return reject(fmt::format("dimension {} is too large", value));
    if (tensor_.shape.size() == kMaxRank) return reject(fmt::format("more than {} dimensions", kMaxRank));
    tensor_.shape.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  if (offsets_.size() == 2) return reject("data_offsets has more than two numbers");
  offsets_.push_back(value);
  return true;
}

bool HeaderReader::string(std::string& value) {
  if (state_ == State::Value) {
    header_.metadata.emplace(metadata_key_, std::move(value));
    state_ = State::Metadata;
    return true;
  }
  if (state_ != State::Dtype) return unexpected("a string");
  const auto dtype = dtype_from_name(value);
  if (!dtype) return reject(fmt::format("element type '{}' is not supported", value.substr(0, 32)));
  tensor_.dtype = *dtype;
  state_ = State::Tensor;
  return true;
}

bool HeaderReader::start_object(std::size_t /*elements*/) {
  switch (state_) {
    case State::Begin:
      state_ = State::Top;
      return true;
    case State::Entry:
      state_ = State::Tensor;
      return true;
    case State::MetadataEntry:
      state_ = State::Metadata;
      return true;
    default:
      return unexpected("an object");
  }
}

bool HeaderReader::end_object() {
  switch (state_) {
    case State::Top:
      state_ = State::End;
      return true;
    case State::Metadata:
      state_ = State::Top;
      return true;
    case State::Tensor:
      state_ = State::Top;
      return finish_tensor();
    default:
      return unexpected("the end of an object");
  }
}

bool HeaderReader::start_array(std::size_t /*elements*/) {
  if (in_array_ || (state_ != State::Shape && state_ != State::Offsets)) return unexpected("an array");
  in_array_ = true;
  return true;
}

bool HeaderReader::end_array() {
  in_array_ = false;
  state_ = State::Tensor;
  return true;
}

bool HeaderReader::key(std::string& value) {
  if (state_ == State::Metadata) {
    if (header_.metadata.contains(value))
      return reject("metadata key '" + value.substr(0, kMaxNameBytes) + "' appears twice");
    metadata_key_ = std::move(value);
    state_ = State::Value;
    return true;
  }
  if (state_ == State::Top) {
    tensor_ = {};
    has_dtype_ = has_shape_ = has_offsets_ = false;
    offsets_.clear();
    if (value == "__metadata__") {
      if (metadata_seen_) return reject("__metadata__ appears twice");
      metadata_seen_ = true;
      state_ = State::MetadataEntry;
      return true;
    }
    if (!usable_name(value)) return reject("a tensor name is empty, too long or has control characters");
    tensor_.name = std::move(value);
    if (!names_.insert(tensor_.name).second) return reject("the name appears twice");
    state_ = State::Entry;
    return true;
  }
  if (state_ != State::Tensor) return unexpected("a key");
  bool* seen = value == "dtype"          ? &has_dtype_
               : value == "shape"        ? &has_shape_
               : value == "data_offsets" ? &has_offsets_
                                         : nullptr;
  if (seen == nullptr) return reject("unknown field '" + value.substr(0, 32) + "'");
  if (*seen) return reject("field '" + value + "' appears twice");
  *seen = true;
  state_ = seen == &has_dtype_ ? State::Dtype : seen == &has_shape_ ? State::Shape : State::Offsets;
  return true;
}

bool HeaderReader::finish_tensor() {
  if (!has_dtype_ || !has_shape_ || !has_offsets_) return reject("dtype, shape or data_offsets is missing");
  if (offsets_.size() != 2) return reject("data_offsets needs two numbers");
  if (offsets_[0] > offsets_[1])
    return reject(fmt::format("data_offsets [{}, {}] run backwards", offsets_[0], offsets_[1]));
  const auto bytes = tensor_bytes(tensor_.dtype, tensor_.shape);
  if (!bytes) return reject("shape " + shape_text(tensor_.shape) + " overflows");
  tensor_.offset = offsets_[0];
  tensor_.bytes = offsets_[1] - offsets_[0];
  if (tensor_.bytes != *bytes) {
    return reject(fmt::format("{} {} takes {} bytes but data_offsets span {}", dtype_name(tensor_.dtype),
                              shape_text(tensor_.shape), *bytes, tensor_.bytes));
  }
  header_.tensors.push_back(std::move(tensor_));
  tensor_ = {};
  return true;
}

}  // namespace

bool usable_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

Result<SafetensorsHeader> parse_header_text(std::string_view text, std::string_view what) {
  if (text.empty() || text.front() != '{') return fail(ErrorKind::Invalid, "{}: header is not a JSON object", what);
  // The library takes a zero byte for the end of the text and ignores what follows.
  if (text.find('\0') != std::string_view::npos) return fail(ErrorKind::Invalid, "{}: header has a zero byte", what);
  HeaderReader reader(what);
  const bool parsed = Json::sax_parse(text.begin(), text.end(), &reader);
  if (!parsed || !reader.done()) {
    return fail(ErrorKind::Invalid, "{}",
                reader.problem().empty() ? fmt::format("{}: header is incomplete", what) : reader.problem());
  }
  if (text[text.find_last_not_of(' ')] != '}') {
    return fail(ErrorKind::Invalid, "{}: header has something else than spaces behind its JSON object", what);
  }
  return reader.take();
}

}  // namespace lockstep::artifact
