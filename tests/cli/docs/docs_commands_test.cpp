// Runs every command of the documents. A block fenced with ```sh is run line by line, in the order of the file, in a
// fresh folder that holds configs/ and text.txt, with the built programs on the PATH. Blocks with another fence (text,
// console) are not commands to run: installation as root, several machines, output.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

// The lines of all ```sh blocks, joined at a trailing backslash, without comments and empty lines.
std::vector<std::string> CommandsOf(const std::string& markdown_file) {
  std::vector<std::string> commands;
  std::ifstream in(markdown_file);
  std::string line, joined;
  bool inside = false;
  while (std::getline(in, line)) {
    if (line.starts_with("```")) {
      inside = !inside && line == "```sh";
      continue;
    }
    if (!inside || line.empty() || line[0] == '#') continue;
    joined += line;
    if (joined.back() == '\\') {
      joined.back() = ' ';
      continue;
    }
    commands.push_back(joined);
    joined.clear();
  }
  return commands;
}

std::vector<std::string> Documents() {
  const fs::path root = TRIREME_SOURCE_DIR;
  std::vector<std::string> files = {root / "README.md", root / "CONTRIBUTING.md", root / "ARCHITECTURE.md"};
  for (const char* folder : {"docs", "examples", "configs"}) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (entry.path().extension() == ".md") files.push_back(entry.path());
    }
  }
  return files;
}

struct Result {
  int code = -1;
  std::string output;
};

Result RunCommand(const std::string& command) {
  Result result;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return result;
  std::array<char, 4096> buffer{};
  while (fgets(buffer.data(), buffer.size(), pipe) != nullptr) result.output += buffer.data();
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

class DocsCommands : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "trireme-docs-XXXXXX").string();
    ASSERT_NE(nullptr, mkdtemp(pattern.data()));
    folder_ = pattern;
    before_ = fs::current_path();
    setenv("PATH", (std::string(TRIREME_BIN_DIR) + ":" + std::getenv("PATH")).c_str(), 1);
    setenv("OMP_NUM_THREADS", "1", 1);
  }
  void TearDown() override {
    fs::current_path(before_);
    fs::remove_all(folder_);
  }

  // A folder as a reader of the documents has it: the sources' configs and examples, and a text of some hundred
  // documents.
  void EnterFreshFolder(const std::string& name) {
    fs::create_directories(folder_ / name);
    fs::current_path(folder_ / name);
    for (const char* folder : {"configs", "examples"}) {
      fs::create_directory_symlink(fs::path(TRIREME_SOURCE_DIR) / folder, folder);
    }
    std::ifstream licence(fs::path(TRIREME_SOURCE_DIR) / "LICENSE");
    const std::string text(std::istreambuf_iterator<char>(licence), {});
    std::ofstream out("text.txt");
    for (int copy = 0; copy < 4; ++copy) out << text << "\n\n";
  }

  fs::path folder_, before_;
};

TEST_F(DocsCommands, DOC_04_CommandsOfTheDocumentsRun) {
  int run = 0, index = 0;
  for (const std::string& file : Documents()) {
    const std::vector<std::string> commands = CommandsOf(file);
    if (commands.empty()) continue;
    EnterFreshFolder(std::to_string(index++));
    for (const std::string& command : commands) {
      if (command == "./quickstart.sh" || command.starts_with("./test.sh"))
        continue;  // this very test runs inside the second
      ASSERT_TRUE(command.starts_with("trireme "))
          << file << ": a ```sh block has a command that is not of this project: " << command;
      const Result result = RunCommand(command);
      EXPECT_EQ(0, result.code) << file << ": " << command << "\n" << result.output;
      ++run;
    }
  }
  EXPECT_GE(run, 7);
}

TEST_F(DocsCommands, DOC_04_AWrongFlagInADocumentWouldBeSeen) {
  EnterFreshFolder("wrong");
  const Result result = RunCommand("trireme plan configs/quickstart.json --no-such-flag 3");
  EXPECT_EQ(2, result.code) << result.output;
}

}  // namespace
