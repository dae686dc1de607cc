#include "launcher/processes.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>
#include <system_error>

#include "engine/base/error.h"

extern char** environ;

namespace trireme::launcher {
namespace {

namespace fs = std::filesystem;

Error NoResources(const std::string& what) {
  return {ErrorCode::kEnvironment, "LCH031", what + ": " + std::strerror(errno), "",
          "raise `ulimit -u` and `ulimit -n`, or start fewer ranks"};
}

struct Pipe {
  Fd read, write;
};

Pipe MakePipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw NoResources("cannot make a pipe");
  return {Fd(ends[0]), Fd(ends[1])};
}

// The launcher's environment with the rank's on top.
std::vector<std::string> FullEnvironment(const RankSpec& rank) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (!rank.environment.contains(std::string(text.substr(0, text.find('='))))) all.emplace_back(text);
  }
  for (const auto& [name, value] : rank.environment) all.push_back(name + "=" + value);
  all.push_back("TRIREME_PROGRESS_FILE=" + rank.progress.string());
  return all;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The bits of sched_setaffinity; none: as the launcher.
std::vector<unsigned long> AffinityMask(const Cpus& cores) {
  constexpr int kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(cores.empty() ? 0 : static_cast<size_t>(cores.back() / kBits + 1));
  for (const int cpu : cores) mask[static_cast<size_t>(cpu / kBits)] |= 1UL << (cpu % kBits);
  return mask;
}

struct ChildSetup {
  pid_t parent;
  int out, err, report;
  const char* program;
  char** words;
  char** environment;
  const sigset_t* mask;
  const std::vector<unsigned long>* cores;
};

[[noreturn]] void GiveUp(const ChildSetup& setup) {
  const int error = errno;
  if (write(setup.report, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

// Between fork and exec.
[[noreturn]] void BecomeRank(const ChildSetup& setup) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != setup.parent) _exit(137);  // it died before the line above
  for (int signal = 1; signal < NSIG; ++signal) std::signal(signal, SIG_DFL);
  sigprocmask(SIG_SETMASK, setup.mask, nullptr);
  if (!setup.cores->empty() &&  // fails if these cores went away since they were counted
      syscall(SYS_sched_setaffinity, 0, setup.cores->size() * sizeof(unsigned long), setup.cores->data()) < 0)
    GiveUp(setup);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  dup2(setup.out, STDOUT_FILENO);
  dup2(setup.err, STDERR_FILENO);
  close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  execve(setup.program, setup.words, setup.environment);
  GiveUp(setup);
}

}  // namespace

void Fd::Reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

Spawned SpawnRank(const LocalJob& job, const RankSpec& rank, const sigset_t& mask) {
  Pipe out = MakePipe(), err = MakePipe(), report = MakePipe();
  std::vector<std::string> words = rank.words, environment = FullEnvironment(rank);
  const std::vector<char*> word_pointers = Pointers(words), environment_pointers = Pointers(environment);
  const std::vector<unsigned long> cores = AffinityMask(rank.cores);
  const ChildSetup setup = {getpid(),
                            out.write.get(),
                            err.write.get(),
                            report.write.get(),
                            job.program.c_str(),
                            const_cast<char**>(word_pointers.data()),
                            const_cast<char**>(environment_pointers.data()),
                            &mask,
                            &cores};
  Spawned spawned;
  spawned.pid = fork();
  if (spawned.pid < 0) throw NoResources("cannot start a process");
  if (spawned.pid == 0) BecomeRank(setup);
  report.write.Reset();
  if (read(report.read.get(), &spawned.error, sizeof(spawned.error)) > 0) {
    spawned.pid = -1;
    return spawned;
  }
  spawned.error = 0;
  fcntl(out.read.get(), F_SETFL, O_NONBLOCK);
  fcntl(err.read.get(), F_SETFL, O_NONBLOCK);
  spawned.out = std::move(out.read);
  spawned.err = std::move(err.read);
  return spawned;
}

std::vector<pid_t> Descendants(pid_t root) {
  std::multimap<pid_t, pid_t> children;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream in(entry.path() / "stat");
    std::string line;
    std::getline(in, line);
    const size_t behind_name = line.rfind(')');  // the name itself may hold blanks and brackets
    if (behind_name == std::string::npos) continue;
    char state = 0;
    int parent = 0;
    if (std::sscanf(line.c_str() + behind_name + 1, " %c %d", &state, &parent) == 2 && state != 'Z')
      children.emplace(parent, std::stoi(name));
  }
  std::vector<pid_t> found = {root};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto [begin, end] = children.equal_range(found[i]);
    for (auto child = begin; child != end; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  return found;
}

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : fmt::format("signal {}", signal);
}

}  // namespace trireme::launcher
