#include "tests/cli/launcher/command.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>

#include "tests/support/temp_folder.h"

extern char** environ;

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// What a test machine may have set, and a test must not inherit.
bool MustNotLeak(const std::string& name) {
  static const std::set<std::string> kNames = {
      "RANK",         "WORLD_SIZE",           "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS",
      "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "PMI_RANK",   "OMPI_COMM_WORLD_RANK", "TRIREME_EXPECT_VERSION",
      "PMI_SIZE",     "OMPI_COMM_WORLD_SIZE"};
  return kNames.contains(name);
}

}  // namespace

const std::string kTrireme = std::string(TRIREME_BIN_DIR) + "/trireme";
const std::string kHelper = std::string(TRIREME_BIN_DIR) + "/../tests/launcher_rank_helper";
const std::string kEngine = std::string(TRIREME_BIN_DIR) + "/../tests/launcher_fake_engine";

Command::Command(const std::string& program, const std::vector<std::string>& words,
                 const std::map<std::string, std::string>& environment) {
  static int count = 0;
  mark_ = "TRIREME_TEST_MARK=" + std::to_string(getpid()) + "." + std::to_string(++count);
  std::vector<std::string> texts = {mark_};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry, name = text.substr(0, text.find('='));
    if (!MustNotLeak(name) && !environment.contains(name) && name != "TMPDIR") texts.push_back(text);
  }
  for (const auto& [name, value] : environment) texts.push_back(name + "=" + value);
  if (!environment.contains("TMPDIR")) texts.push_back("TMPDIR=" + temp_.path().string());
  std::vector<std::string> all = {program};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> argv, envp;
  for (std::string& word : all) argv.push_back(word.data());
  for (std::string& text : texts) envp.push_back(text.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  std::array<int, 2> out{}, err{};
  if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0) std::abort();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  started_ = Now();
  if (posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), envp.data()) != 0) pid_ = -1;
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

Command::~Command() {
  for (const pid_t pid : Running()) kill(pid, SIGKILL);
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
  for (const int fd : {out_, err_}) {
    if (fd >= 0) close(fd);
  }
}

bool Command::Pump(int timeout_ms) {
  std::array<pollfd, 2> ends = {{{out_, POLLIN, 0}, {err_, POLLIN, 0}}};
  poll(ends.data(), ends.size(), timeout_ms);
  for (const bool first : {true, false}) {
    if (ends[first ? 0 : 1].revents == 0) continue;
    int& fd = first ? out_ : err_;
    std::array<char, 65536> bytes{};
    const ssize_t count = read(fd, bytes.data(), bytes.size());
    if (count > 0) (first ? outcome_.out : outcome_.err).append(bytes.data(), static_cast<size_t>(count));
    if (count > 0) continue;
    close(fd);
    fd = -1;
  }
  return out_ >= 0 || err_ >= 0;
}

bool Command::WaitFor(const std::string& text) {
  const double last = Now() + 20;
  while (Now() < last) {
    if ((outcome_.out + outcome_.err).find(text) != std::string::npos) return true;
    if (!Pump(100)) usleep(10000);
  }
  return false;
}

Outcome Command::Wait() {
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) Pump(5);
  outcome_.seconds = Now() - started_;
  pid_ = -1;
  while (Pump(0)) {
    std::array<pollfd, 2> ends = {{{out_, POLLIN, 0}, {err_, POLLIN, 0}}};
    if (poll(ends.data(), ends.size(), 0) <= 0) break;  // a process of the job may still hold the pipe: Left() tells
  }
  outcome_.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return outcome_;
}

std::vector<pid_t> Command::Running() const {
  std::vector<pid_t> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream in(entry.path() / "environ");
    const std::string text{std::istreambuf_iterator<char>(in), {}};  // empty for a process that has ended
    if (('\0' + text).find('\0' + mark_ + '\0') != std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

std::vector<pid_t> Command::Left(double seconds) const {
  const double last = Now() + seconds;
  std::vector<pid_t> left = Running();
  while (!left.empty() && Now() < last) {
    usleep(10000);
    left = Running();
  }
  return left;
}

Outcome RunTrireme(const std::vector<std::string>& words, const std::map<std::string, std::string>& environment) {
  return Command(kTrireme, words, environment).Wait();
}

TempFolder::TempFolder() : path_(NewTempFolder("test")) {}

TempFolder::~TempFolder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

}  // namespace trireme::testing
