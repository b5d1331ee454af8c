#include "server/wire/limit_place.hpp"

#include <vector>

#include "base/json_events.hpp"

namespace lockstep::server {
namespace {

/// Walks the text without building anything and stops at the object.
class Finder : public JsonScalars<Finder> {
 public:
  explicit Finder(std::size_t most) : most_(most) {}

  bool value() {
    if (!levels_.empty() && levels_.back().array) ++levels_.back().count;
    return true;
  }
  bool start_object(std::size_t) { return enter(false); }
  bool start_array(std::size_t) { return enter(true); }
  bool end_object() { return leave(); }
  bool end_array() { return leave(); }
  bool parse_error(std::size_t, const std::string&, const std::exception&) { return false; }

  bool key(std::string& name) {
    Level& level = levels_.back();
    if (++level.count > most_) {
      levels_.pop_back();
      found_ = path();
      return false;
    }
    level.key = name;
    return true;
  }

  [[nodiscard]] const std::string& found() const { return found_; }

 private:
  struct Level {
    bool array = false;
    std::size_t count = 0;  ///< elements or members so far
    std::string key;        ///< the last one
  };

  bool enter(bool array) {
    value();
    levels_.push_back({array, 0, {}});
    return true;
  }
  bool leave() {
    levels_.pop_back();
    return true;
  }

  /// Of the value that is read now.
  [[nodiscard]] std::string path() const {
    std::string out;
    for (const Level& level : levels_) {
      if (level.array) {
        out += fmt::format("[{}]", level.count - 1);
      } else {
        out += (out.empty() ? "" : ".") + level.key;
      }
    }
    return out;
  }

  std::size_t most_;
  std::vector<Level> levels_;
  std::string found_;
};

}  // namespace

std::string place_of_large_object(std::string_view body, std::size_t most) {
  Finder finder(most);
  Json::sax_parse(body.begin(), body.end(), &finder);
  return finder.found();
}

}  // namespace lockstep::server
