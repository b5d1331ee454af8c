#include "engine/sink.hpp"

namespace lockstep::engine {

std::string_view miss_name(Miss miss) {
  switch (miss) {
    case Miss::None:
      return "none";
    case Miss::Disabled:
      return "disabled";
    case Miss::Bypass:
      return "bypass";
    case Miss::Empty:
      return "empty";
    case Miss::Diverged:
      return "diverged";
    case Miss::Evicted:
      return "evicted";
    case Miss::Damaged:
      return "damaged";
  }
  return "unknown";
}

}  // namespace lockstep::engine
