// What the repository says about itself: links that lead somewhere, and no traces of the machines it was made on.
#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <functional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/scratch.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// Files of the repository, without build trees, what other tools leave, and data (models, test data, corpora).
void each_file(const fs::path& root, const std::function<void(const fs::path&)>& visit) {
  static const std::set<std::string> kData = {"tests/data", "models", "fuzz/corpus", "shared", "node_modules"};
  for (auto it = fs::recursive_directory_iterator(root); it != fs::recursive_directory_iterator(); ++it) {
    const std::string relative = fs::relative(it->path(), root).string();
    if (it->is_directory() &&
        (relative.starts_with("build") || relative == ".git" || relative == ".cache" || kData.contains(relative))) {
      it.disable_recursion_pending();
    } else if (it->is_regular_file() && relative != ".git") {
      visit(it->path());
    }
  }
}

/// The anchors that headings of a page get: lower case, spaces as dashes, punctuation dropped.
std::set<std::string> anchors_of(const std::string& page) {
  std::set<std::string> anchors;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('#')) continue;
    std::string anchor;
    for (const char c : line.substr(std::min(line.find_first_not_of("# "), line.size()))) {
      if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_') {
        anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      } else if (c == ' ') {
        anchor += '-';
      }
    }
    anchors.insert(anchor);
  }
  return anchors;
}

/// The page without fenced blocks and inline code, where brackets are no links.
std::string prose_of(const std::string& page) {
  std::string out;
  bool fenced = false;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("```") != std::string::npos) {
      fenced = !fenced;
    } else if (!fenced) {
      out += std::regex_replace(line, std::regex("`[^`]*`"), "") + "\n";
    }
  }
  return out;
}

std::vector<std::string> broken_links(const fs::path& root) {
  static const std::regex kLink(R"(\]\(([^()\s]+)\))");
  std::vector<std::string> broken;
  each_file(root, [&](const fs::path& path) {
    if (path.extension() != ".md") return;
    const std::string page = text_of(path);
    const std::string prose = prose_of(page);
    for (auto it = std::sregex_iterator(prose.begin(), prose.end(), kLink); it != std::sregex_iterator(); ++it) {
      const std::string link = (*it)[1];
      if (link.find("://") != std::string::npos || link.starts_with("mailto:")) continue;
      const std::string name = link.substr(0, link.find('#'));
      const std::string anchor = link.find('#') == std::string::npos ? "" : link.substr(link.find('#') + 1);
      const fs::path target = name.empty() ? path : path.parent_path() / name;
      if (!fs::exists(target) || (!anchor.empty() && !anchors_of(text_of(target)).contains(anchor))) {
        broken.push_back(fs::relative(path, root).string() + ": " + link);
      }
    }
  });
  std::ranges::sort(broken);
  return broken;
}

/// Words that must not appear. They are spelled in two halves so that this file does not contain them.
std::vector<std::string> forbidden_words(const fs::path& root) {
  static const std::vector<std::string> kForbidden = {
      "/wo"
      "rk/",
      "/home"
      "/",
      "/tmp/"
      "bash",
      "TO"
      "DO",
      "FIX"
      "ME",
      "registry."
      "npm",
      "deb.debian"
      ".org",
      "pypi"
      ".org",
      "pythonhos"
      "ted",
      "arti"
      "factory",
  };
  std::vector<std::string> found;
  each_file(root, [&](const fs::path& path) {
    const std::string text = text_of(path);
    if (text.find('\0') != std::string::npos) return;
    for (const std::string& word : kForbidden) {
      if (text.find(word) != std::string::npos) found.push_back(fs::relative(path, root).string() + ": " + word);
    }
  });
  std::ranges::sort(found);
  return found;
}

TEST(Docs, RelativeLinksResolve) {
  const std::vector<std::string> broken = broken_links(LOCKSTEP_SOURCE_DIR);
  EXPECT_TRUE(broken.empty()) << testing::PrintToString(broken);
}

TEST(Docs, NoForbiddenWords) {
  const std::vector<std::string> found = forbidden_words(LOCKSTEP_SOURCE_DIR);
  EXPECT_TRUE(found.empty()) << testing::PrintToString(found);
}

TEST(Docs, PlantedFaultsAreFound) {
  const test::ScratchDirectory root;
  fs::create_directories(root / "docs");
  std::ofstream(root / "docs/page.md") << "# A Heading, here\n[fine](../README.md) [gone](gone.md) `[code](no.md)`\n"
                                       << "```\n[fenced](no.md)\n```\n[site](https://example.org/x)\n";
  std::ofstream(root / "README.md") << "[fine](docs/page.md#a-heading-here) [wrong](docs/page.md#no-such-heading)\n";
  std::ofstream(root / "code.cpp") << "// TO"
                                      "DO: later\n";
  EXPECT_EQ(broken_links(root.path()),
            (std::vector<std::string>{"README.md: docs/page.md#no-such-heading", "docs/page.md: gone.md"}));
  EXPECT_EQ(forbidden_words(root.path()), (std::vector<std::string>{"code.cpp: TO"
                                                                    "DO"}));
}

}  // namespace
}  // namespace lockstep
