// The documents against the sources: error ids, environment variables, links.
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const fs::path kRoot = TRIREME_SOURCE_DIR;

std::string ReadText(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<fs::path> FilesUnder(const std::vector<std::string>& folders, const std::set<std::string>& extensions) {
  std::vector<fs::path> files;
  for (const std::string& folder : folders) {
    if (!fs::exists(kRoot / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      if (entry.is_regular_file() && extensions.count(entry.path().extension().string())) files.push_back(entry.path());
    }
  }
  return files;
}

// First group of every match of `pattern` in `text`.
std::vector<std::string> Matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) found.push_back((*it)[1]);
  return found;
}

// "DAT003" as a string literal -> a file that has it.
std::map<std::string, std::string> IdsOfTheSources() {
  std::map<std::string, std::string> ids;
  for (const fs::path& file :
       FilesUnder({"engine", "parsers", "checkpoint", "launcher"}, {".h", ".cpp", ".cu", ".cuh"})) {
    for (const std::string& id : Matches(ReadText(file), "\"([A-Z]{3}[0-9]{3})\""))
      ids[id] = fs::relative(file, kRoot).string();
  }
  return ids;
}

// "DAT003" -> the text of its section in docs/errors/*.md. An id with two sections fails the test.
std::map<std::string, std::string> Sections() {
  std::map<std::string, std::string> sections;
  for (const fs::path& file : FilesUnder({"docs/errors"}, {".md"})) {
    std::ifstream in(file);
    std::string line, id;
    const std::regex heading("^## ([A-Z]{3}[0-9]{3})\\b.*");
    while (std::getline(in, line)) {
      std::smatch match;
      if (std::regex_match(line, match, heading)) {
        id = match[1];
        EXPECT_EQ(0U, sections.count(id)) << id << " has two sections, the second in " << file;
        sections[id];
      } else if (line.starts_with("## ")) {
        id.clear();
      } else if (!id.empty()) {
        sections[id] += line + "\n";
      }
    }
  }
  return sections;
}

bool Mentions(std::string text, const std::string& word) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text.find(word) != std::string::npos;
}

TEST(Docs, DOC_06_EveryErrorIdHasASection) {
  const auto ids = IdsOfTheSources();
  const auto sections = Sections();
  ASSERT_FALSE(ids.empty());
  for (const auto& [id, file] : ids)
    EXPECT_TRUE(sections.count(id)) << id << " of " << file << " has no section in docs/errors/";
}

TEST(Docs, DOC_06_EverySectionSaysCauseCheckAndFixOfALivingId) {
  const auto ids = IdsOfTheSources();
  for (const auto& [id, text] : Sections()) {
    EXPECT_TRUE(ids.count(id)) << id << " has a section, but no source uses it";
    for (const char* word : {"cause", "check", "fix"}) EXPECT_TRUE(Mentions(text, word)) << id << " lacks its " << word;
  }
}

// Environment variables are read in engine/base/env and launcher/ alone; README.md lists every one that is read by
// name.
TEST(Docs, EveryEnvironmentVariableStandsInTheReadme) {
  const std::string readme = ReadText(kRoot / "README.md");
  for (const fs::path& file :
       FilesUnder({"engine", "parsers", "checkpoint", "launcher"}, {".h", ".cpp", ".cu", ".cuh"})) {
    const std::string path = fs::relative(file, kRoot).string(), text = ReadText(file);
    if (!path.starts_with("engine/base/env") && !path.starts_with("launcher/")) {
      EXPECT_EQ(std::string::npos, text.find("getenv("))
          << path << " reads the environment itself: use engine/base/env.h";
    }
    for (const std::string& name :
         Matches(text, "(?:getenv|ReadInt|env::(?:Text|Integer|FirstInteger|Flag))\\(\\s*\"([A-Z][A-Z0-9_]+)\"")) {
      EXPECT_NE(std::string::npos, readme.find("`" + name + "`"))
          << name << ", read in " << path << ", is not in README.md";
    }
  }
}

// The rows of engine/cli/commands.h.
std::set<std::string> Commands() {
  const std::vector<std::string> names =
      Matches(ReadText(kRoot / "engine/cli/commands.h"), "\\{\"([a-z]+)\",\\s+\"[^\"]+\",\\s+Program::");
  return {names.begin(), names.end()};
}

std::vector<fs::path> Documents() {
  std::vector<fs::path> files =
      FilesUnder({"docs", "examples", "configs", "engine", "checkpoint", "launcher", "parsers", "tests"}, {".md"});
  for (const char* name : {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"})
    files.push_back(kRoot / name);
  return files;
}

// What follows the program's name in `text` and is no command.
std::vector<std::string> NoCommands(const std::string& text) {
  std::vector<std::string> found;
  for (const std::string& word : Matches(text, "\\btrireme ([a-z][a-z-]*)")) {
    if (word != "is" && Commands().count(word) == 0) found.push_back(word);
  }
  return found;
}

// In messages, comments and documents alike: `trireme WORD` is a command that there is.
TEST(Docs, CommandsThatAreNamedExist) {
  ASSERT_TRUE(Commands().count("train") && Commands().count("launch"));
  EXPECT_EQ(std::vector<std::string>{"doktor"}, NoCommands("run `trireme doktor`; `trireme plan` says, trireme is"));
  std::vector<fs::path> files = Documents();
  for (const fs::path& file :
       FilesUnder({"engine", "parsers", "checkpoint", "launcher", "examples"}, {".h", ".cpp", ".cu", ".cuh"}))
    files.push_back(file);
  for (const fs::path& file : files) {
    for (const std::string& word : NoCommands(ReadText(file)))
      ADD_FAILURE() << file << " speaks of `trireme " << word << "`, which is no command";
  }
}

// `Suite.Name` in the list of cases is a test of the tree.
TEST(Docs, TestsThatTheCasesNameExist) {
  std::set<std::string> tests;
  const std::regex head("\\bTEST(?:_F|_P)?\\(\\s*(\\w+),\\s*(\\w+)\\)");
  for (const fs::path& file : FilesUnder({"tests"}, {".cpp"})) {
    const std::string text = ReadText(file);
    for (std::sregex_iterator it(text.begin(), text.end(), head), end; it != end; ++it)
      tests.insert((*it)[1].str() + "." + (*it)[2].str());
  }
  const std::vector<std::string> named = Matches(ReadText(kRoot / "docs/cases.md"), "`([A-Z]\\w+\\.[A-Z]\\w+)`");
  ASSERT_GT(named.size(), 30U);
  for (const std::string& name : named) EXPECT_TRUE(tests.count(name)) << "docs/cases.md names " << name;
}

// [text](path) to a file of the tree.
TEST(Docs, LinksBetweenDocumentsLeadSomewhere) {
  for (const fs::path& file : Documents()) {
    ASSERT_TRUE(fs::exists(file)) << file;
    for (std::string target : Matches(ReadText(file), "\\]\\(([^)\\s]+)\\)")) {
      if (target.find("://") != std::string::npos || target.starts_with("#")) continue;
      target = target.substr(0, target.find('#'));
      EXPECT_TRUE(fs::exists(file.parent_path() / target)) << file << " links to " << target;
    }
  }
}

}  // namespace
