// The folders under src/ are layers (docs/architecture.md): a layer includes only itself and those before it.
#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/scratch.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kLayers = {"base",  "numerics", "artifact", "text",   "kernels", "backend",
                                          "model", "decode",   "engine",   "server", "report",  "cli"};
// Kernels are pure functions on spans; they know neither files nor text. Reports know no model.
const std::map<std::string, std::set<std::string>> kNarrower = {{"kernels", {"kernels", "base", "numerics"}},
                                                                {"report", {"report", "base"}}};

bool may_include(const std::string& from, const std::string& to) {
  const auto narrower = kNarrower.find(from);
  if (narrower != kNarrower.end()) return narrower->second.contains(to);
  const auto layer = std::ranges::find(kLayers, from);
  return std::find(kLayers.begin(), layer, to) != layer || from == to;
}

/// The first folder of a path relative to src/; src/main.cpp belongs to the command line.
std::string layer_of(const fs::path& relative) {
  return relative.has_parent_path() ? relative.begin()->string() : "cli";
}

/// The names between quotes in the #include lines of a file.
std::vector<std::string> includes_of(const fs::path& path) {
  std::vector<std::string> names;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t hash = line.find_first_not_of(" \t");
    if (hash == std::string::npos || line[hash] != '#' || line.find("include", hash) == std::string::npos) continue;
    const std::size_t open = line.find('"', hash);
    const std::size_t close = line.find('"', open + 1);
    if (open != std::string::npos && close != std::string::npos)
      names.push_back(line.substr(open + 1, close - open - 1));
  }
  return names;
}

/// Everything that is wrong under `source`, one line each.
std::vector<std::string> violations(const fs::path& source) {
  std::vector<std::string> wrong;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(source)) {
    if (!entry.is_regular_file()) continue;
    const fs::path relative = fs::relative(entry.path(), source);
    const std::string layer = layer_of(relative);
    if (std::ranges::find(kLayers, layer) == kLayers.end()) {
      wrong.push_back(relative.string() + ": '" + layer + "' is not a layer");
      continue;
    }
    for (const std::string& name : includes_of(entry.path())) {
      const std::string target = layer_of(name);
      if (!fs::is_regular_file(source / name)) {
        wrong.push_back(relative.string() + ": \"" + name + "\" is no file under src/");
      } else if (!may_include(layer, target)) {
        wrong.push_back(relative.string() + ": includes \"" + name + "\" upwards");
      }
    }
  }
  return wrong;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

TEST(Layering, NoUpwardIncludes) {
  EXPECT_EQ(joined(violations(LOCKSTEP_SOURCE_DIR "/src")), "");
}

TEST(Layering, PlantedViolationsAreFound) {
  const test::ScratchDirectory source;
  const auto put = [&](const std::string& name, const std::string& text) {
    fs::create_directories((source / name).parent_path());
    std::ofstream(source / name) << text;
  };
  put("base/good.hpp", "#include <vector>\n");
  put("artifact/file.hpp", "#include \"base/good.hpp\"\n");
  put("kernels/cpu/good.cpp", "  #  include \"base/good.hpp\"\n");
  put("main.cpp", "#include \"artifact/file.hpp\"\n");
  EXPECT_EQ(joined(violations(source.path())), "");

  put("base/up.hpp", "// text\n#include \"artifact/file.hpp\"\n");
  EXPECT_EQ(joined(violations(source.path())), "base/up.hpp: includes \"artifact/file.hpp\" upwards\n");
  fs::remove(source / "base/up.hpp");

  put("kernels/cpu/file.cpp", "#include \"artifact/file.hpp\"\n");
  EXPECT_EQ(joined(violations(source.path())), "kernels/cpu/file.cpp: includes \"artifact/file.hpp\" upwards\n");
  fs::remove(source / "kernels/cpu/file.cpp");

  put("model/gone.cpp", "#include \"base/gone.hpp\"\n");
  EXPECT_EQ(joined(violations(source.path())), "model/gone.cpp: \"base/gone.hpp\" is no file under src/\n");
  fs::remove(source / "model/gone.cpp");

  put("misc/file.hpp", "");
  EXPECT_EQ(joined(violations(source.path())), "misc/file.hpp: 'misc' is not a layer\n");
}

}  // namespace
}  // namespace lockstep
