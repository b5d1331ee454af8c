// What readers of JSON share that take the library's SAX events instead of a tree.
#pragma once

#include <string>

#include "base/json.hpp"

namespace lockstep {

/// The events that are a whole value. Each calls Self::value(), which returns false to stop the parser.
template <class Self>
class JsonScalars {
 public:
  bool null() { return whole(); }
  bool boolean(bool) { return whole(); }
  bool number_integer(Json::number_integer_t) { return whole(); }
  bool number_unsigned(Json::number_unsigned_t) { return whole(); }
  bool number_float(Json::number_float_t, const std::string&) { return whole(); }
  bool string(std::string&) { return whole(); }
  bool binary(Json::binary_t&) { return whole(); }

 private:
  bool whole() { return static_cast<Self*>(this)->value(); }
};

}  // namespace lockstep
