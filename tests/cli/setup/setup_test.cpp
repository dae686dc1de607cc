// setup.sh on machines that lack things, without touching this one: its tools are links in a folder that is the whole
// PATH, and the package manager, Python and `id` are stand-ins that write down what they were asked.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace {

namespace fs = std::filesystem;

struct Result {
  int code = -1;
  std::string output;
};

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class Setup : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "trireme-setup-XXXXXX").string();
    ASSERT_NE(nullptr, mkdtemp(pattern.data()));
    root_ = pattern;
    for (const char* folder : {"bin", "sources"}) fs::create_directory(root_ / folder);
    fs::copy_file(fs::path(TRIREME_SOURCE_DIR) / "setup.sh", root_ / "sources/setup.sh");
    for (const char* tool : {"bash", "env", "dirname", "grep", "awk", "sed", "cat", "readlink", "mkdir", "rm", "df",
                             "flock", "mktemp", "tail", "touch"}) {
      for (const char* folder : {"/bin", "/usr/bin"}) {
        const fs::path found = fs::path(folder) / tool;
        if (fs::exists(found) && !fs::exists(root_ / "bin" / tool)) fs::create_symlink(found, root_ / "bin" / tool);
      }
    }
    Tool("id", "echo 0");
    Tool("unzip", "exit 1");
    Tool("python3", "exit 1");
    Tool("dpkg-query", R"(for a in "$@"; do case "$a" in -*) ;; *) echo "$a installed" ;; esac; done)");
    Tool("apt-cache", R"(shift; for a in "$@"; do echo "$a:"; echo "  Candidate: 1.0"; done)");
    Tool("apt-get", R"(echo "apt-get $*" >>"$CALLS"; echo "  Need to get 121 MB of archives.")");
  }
  void TearDown() override { fs::remove_all(root_); }

  // A program of the machine, as a shell script.
  void Tool(const std::string& name, const std::string& body) {
    const fs::path path = root_ / "bin" / name;
    std::ofstream(path) << "#!" << (root_ / "bin/bash").string() << "\n" << body << "\n";
    fs::permissions(path, fs::perms::owner_all);
  }

  std::string FakeLibTorch(const std::string& name, int minor = 11) {
    const fs::path folder = root_ / name;
    fs::create_directories(folder / "lib");
    fs::create_directories(folder / "include/ATen");
    fs::create_directories(folder / "include/torch/headeronly");
    std::ofstream(folder / "lib/libtorch_cpu.so") << "";
    std::ofstream(folder / "include/torch/headeronly/version.h")
        << "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR " << minor << "\n";
    return folder.string();
  }

  Result RunSetup(const std::string& variables, const std::string& options) {
    const std::string bin = (root_ / "bin").string();
    const std::string command = bin + "/env -i PATH=" + bin + " CALLS=" + (root_ / "calls").string() + " " + variables +
                                " " + bin + "/bash " + (root_ / "sources/setup.sh").string() + " " + options +
                                " 2>&1 </dev/null";
    Result result;
    FILE* pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) return result;
    std::array<char, 4096> buffer{};
    while (fgets(buffer.data(), buffer.size(), pipe) != nullptr) result.output += buffer.data();
    const int status = pclose(pipe);
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return result;
  }

  std::string Calls() const {
    std::ifstream in(root_ / "calls");
    return {std::istreambuf_iterator<char>(in), {}};
  }

  void ExpectTorch(const std::string& folder, const std::string& variables) {
    const Result result = RunSetup(variables, "--dry-run --cpu");
    EXPECT_EQ(0, result.code) << result.output;
    EXPECT_TRUE(Has(result.output, "nothing to install or download (LibTorch: " + folder + ")")) << result.output;
  }

  fs::path root_;
};

TEST_F(Setup, TakesLibTorchInTheDocumentedOrder) {
  const std::string by_dir = FakeLibTorch("by_dir"), by_prefix = FakeLibTorch("by_prefix"),
                    by_variable = FakeLibTorch("by_variable"), by_python = FakeLibTorch("by_python"),
                    in_deps = FakeLibTorch("sources/.deps/torch");
  ExpectTorch(in_deps, "");
  Tool("python3", "echo " + by_python);
  ExpectTorch(by_python, "");
  std::string variables = "LIBTORCH=" + by_variable;
  ExpectTorch(by_variable, variables);
  variables += " CMAKE_PREFIX_PATH=/nowhere:" + by_prefix;
  ExpectTorch(by_prefix, variables);
  fs::create_directories(by_dir + "/share/cmake/Torch");
  variables += " Torch_DIR=" + by_dir + "/share/cmake/Torch";
  ExpectTorch(by_dir, variables);
}

TEST_F(Setup, AnOldTorchOfThePythonIsPassedOver) {
  Tool("python3", "echo " + FakeLibTorch("old", 9));
  const std::string in_deps = FakeLibTorch("sources/.deps/torch");
  ExpectTorch(in_deps, "");
}

TEST_F(Setup, SaysWhatItWouldDownloadAndHowLargeThatIs) {
  const Result result = RunSetup("", "--dry-run --cpu");
  EXPECT_EQ(1, result.code);
  EXPECT_TRUE(Has(result.output, "will download LibTorch 2.11.0")) << result.output;
  EXPECT_TRUE(Has(result.output, "531 MB")) << result.output;
  EXPECT_FALSE(fs::exists(root_ / "sources/.deps")) << "a dry run wrote something";
}

TEST_F(Setup, DOC_05_MissingPackagesAreNamedWithTheirSizeBeforeAnyIsInstalled) {
  Tool("dpkg-query", "exit 1");
  const Result result = RunSetup("LIBTORCH=" + FakeLibTorch("torch"), "--dry-run");
  EXPECT_EQ(1, result.code);
  EXPECT_TRUE(Has(result.output, "will install from the distribution: g++ cmake ninja-build")) << result.output;
  EXPECT_TRUE(Has(result.output, "Need to get 121 MB")) << result.output;
  EXPECT_FALSE(Has(Calls(), "install -y")) << Calls();
  EXPECT_TRUE(Has(Calls(), "--assume-no")) << Calls();
}

TEST_F(Setup, InstallsWhatIsMissingAndOnlyThat) {
  Tool("dpkg-query", R"(for a in "$@"; do case "$a" in -* | cmake | mold) ;; *) echo "$a installed" ;; esac; done)");
  const Result result = RunSetup("LIBTORCH=" + FakeLibTorch("torch"), "");
  EXPECT_EQ(0, result.code) << result.output;
  EXPECT_TRUE(Has(Calls(), "apt-get install -y -qq --no-install-recommends cmake mold\n")) << Calls();
}

// A test alone needs it: what cannot be had is no error.
TEST_F(Setup, ABrowserIsInstalledWhereItIsAskedForAndOffered) {
  const std::string torch = "LIBTORCH=" + FakeLibTorch("torch");
  EXPECT_EQ(0, RunSetup(torch, "").code);
  EXPECT_FALSE(Has(Calls(), "chromium")) << Calls();
  EXPECT_EQ(0, RunSetup(torch, "--browser").code);
  EXPECT_TRUE(Has(Calls(), "apt-get install -y -qq --no-install-recommends chromium\n")) << Calls();
  Tool("google-chrome", "exit 0");
  EXPECT_TRUE(Has(RunSetup(torch, "--browser").output, "nothing to install or download"));
  fs::remove(root_ / "bin/google-chrome");
  Tool("apt-cache", R"sh(shift; for a in "$@"; do echo "$a:"; echo "  Candidate: (none)"; done)sh");
  const Result none = RunSetup(torch, "--browser");
  EXPECT_EQ(0, none.code);
  EXPECT_TRUE(Has(none.output, "will skip themselves")) << none.output;
}

TEST_F(Setup, WithoutRootAndSudoItSaysWhatToRun) {
  Tool("dpkg-query", "exit 1");
  Tool("id", "echo 1000");
  const Result result = RunSetup("LIBTORCH=" + FakeLibTorch("torch"), "");
  EXPECT_EQ(69, result.code);
  EXPECT_TRUE(Has(result.output, "fix: as root: apt-get update && apt-get install -y")) << result.output;
  EXPECT_EQ("", Calls());
}

TEST_F(Setup, WithSudoItUsesIt) {
  Tool("dpkg-query", R"(for a in "$@"; do case "$a" in -* | mold) ;; *) echo "$a installed" ;; esac; done)");
  Tool("id", "echo 1000");
  Tool("sudo", R"(echo "sudo $*" >>"$CALLS"; [ "$1" = -n ] && shift; "$@")");
  const Result result = RunSetup("LIBTORCH=" + FakeLibTorch("torch"), "");
  EXPECT_EQ(0, result.code) << result.output;
  EXPECT_TRUE(
      Has(Calls(), "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mold"))
      << Calls();
}

TEST_F(Setup, AFailedDownloadLeavesNoHalfLibTorch) {
  Tool("python3",
       R"(case "$*" in *"pip --version"*) exit 0 ;; *"pip download"*) for d; do :; done; exit 1 ;; *) exit 1 ;; esac)");
  const Result result = RunSetup("", "--cpu");
  EXPECT_EQ(69, result.code) << result.output;
  EXPECT_FALSE(fs::exists(root_ / "sources/.deps/torch"));
}

TEST_F(Setup, AnotherVersionOfLibTorchGetsAFolderOfItsOwn) {
  FakeLibTorch("sources/.deps/torch");
  Result result = RunSetup("", "--dry-run --cpu --libtorch-version 2.12.1");
  EXPECT_EQ(1, result.code) << result.output;
  EXPECT_TRUE(Has(result.output, "will download LibTorch 2.12.1")) << result.output;
  EXPECT_TRUE(Has(result.output, "in .deps/torch-2.12.1")) << result.output;

  const std::string fetched = FakeLibTorch("sources/.deps/torch-2.12.1", 12);
  result = RunSetup("", "--dry-run --cpu --libtorch-version 2.12.1");
  EXPECT_EQ(0, result.code) << result.output;
  EXPECT_TRUE(Has(result.output, "nothing to install or download (LibTorch: " + fetched + ")")) << result.output;
  for (const char* wrong : {"", "two", "2"}) {
    result = RunSetup("", std::string("--libtorch-version ") + wrong);
    EXPECT_EQ(2, result.code) << result.output;
  }
}

TEST_F(Setup, AnUnknownOptionIsRefused) {
  const Result result = RunSetup("", "--fast");
  EXPECT_EQ(2, result.code);
  EXPECT_TRUE(Has(result.output, "unknown option '--fast'")) << result.output;
}

}  // namespace
