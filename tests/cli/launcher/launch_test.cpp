// What `trireme launch` gives to its ranks, and what it refuses.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "engine/base/version.h"
#include "tests/cli/launcher/command.h"

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Test;

#define EXPECT_HAS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "looked for: " << (part) << "\nin: " << (text)
#define EXPECT_LACKS(text, part) \
  EXPECT_EQ((text).find(part), std::string::npos) << "must not hold: " << (part) << "\nin: " << (text)

std::string FileText(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A listening socket; `port` 0: any.
class Listener {
 public:
  explicit Listener(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const int on = 1;
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    ok_ = bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 && listen(fd_, 1) == 0;
    socklen_t size = sizeof(address);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { close(fd_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  bool ok() const { return ok_; }
  int port() const { return port_; }

 private:
  int fd_;
  bool ok_ = false;
  int port_ = 0;
};

TEST(Program, VersionHelpAndUnknownCommand) {
  const Outcome version = RunTrireme({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out, "trireme " + std::string(Version()) + "\n");
  EXPECT_HAS(RunTrireme({"--help"}).out, "launch");
  EXPECT_EQ(RunTrireme({}).code, 2);
  const Outcome unknown = RunTrireme({"lanch"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_HAS(unknown.err, "did you mean `trireme launch`?");
}

TEST(Launch, EachRankHasItsEnvironment) {
  TempFolder logs;
  const Outcome o =
      RunTrireme({"launch", "--cpu", "--num_gpus", "3", "--master_port=0", "--log_dir", logs.path().string(), kHelper,
                  "*:env=RANK", "*:env=LOCAL_RANK", "*:env=WORLD_SIZE", "*:env=LOCAL_WORLD_SIZE", "*:env=MASTER_ADDR",
                  "*:env=MASTER_PORT", "*:env=OMP_NUM_THREADS", "*:env=CUDA_VISIBLE_DEVICES", "*:stdin", "*:fds"});
  ASSERT_EQ(o.code, 0) << o.err;
  std::string port;
  for (int rank = 0; rank < 3; ++rank) {
    const std::string text = FileText(logs.path() / ("latest_rank" + std::to_string(rank) + ".log"));
    const std::string number = std::to_string(rank);
    EXPECT_HAS(text, "\nLOCAL_RANK=" + number + "\n");
    EXPECT_EQ(text.rfind("RANK=" + number + "\n", 0), 0U) << text;
    EXPECT_HAS(text, "\nWORLD_SIZE=3\nLOCAL_WORLD_SIZE=3\nMASTER_ADDR=127.0.0.1\nMASTER_PORT=29");
    EXPECT_LACKS(text, "OMP_NUM_THREADS=<unset>");
    EXPECT_HAS(text, "\nCUDA_VISIBLE_DEVICES=\n");
    EXPECT_HAS(text, "\nstdin empty\ndescriptors 3\n");
    const std::string its_port = text.substr(text.find("MASTER_PORT"), 17);
    if (rank == 0) port = its_port;
    EXPECT_EQ(its_port, port);
  }
  EXPECT_EQ(o.out, FileText(logs.path() / "latest_rank0.log"));  // rank 0 alone on the console
  EXPECT_HAS(o.err, "world size 3");
}

TEST(Launch, OneCpuRankWithoutGpus) {
  if (fs::exists("/dev/nvidia0")) GTEST_SKIP() << "this machine has GPUs";
  const Outcome o =
      RunTrireme({"launch", kHelper, "*:env=WORLD_SIZE", "*:env=OMP_NUM_THREADS"}, {{"OMP_NUM_THREADS", "7"}});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, "WORLD_SIZE=1\nOMP_NUM_THREADS=7\n");
}

TEST(Launch, ArgumentsArriveByteForByte) {
  const std::string all_bytes = [] {
    std::string text;
    for (int c = 1; c < 256; ++c) text += static_cast<char>(c);
    return text;
  }();
  const Outcome o =
      RunTrireme({"launch", "--cpu", "-q", kHelper, "*:words", "", "a b", all_bytes, "--hidden=1", "--", "--last"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, "word 1: <*:words>\nword 2: <>\nword 3: <a b>\nword 4: <" + all_bytes +
                       ">\nword 5: <--hidden=1>\nword 6: <--last>\n");
  EXPECT_EQ(o.err, "");
}

TEST(Launch, LocalRankArgumentOnlyWhereAsked) {
  EXPECT_EQ(RunTrireme({"launch", "--cpu", "-q", kHelper, "*:words"}).out, "word 1: <*:words>\n");
  EXPECT_EQ(RunTrireme({"launch", "--cpu", "-q", "--pass_local_rank", kHelper, "*:words"}).out,
            "word 1: <--local_rank=0>\nword 2: <*:words>\n");
}

TEST(Launch, WrongFlagsSaySo) {
  const Outcome unknown = RunTrireme({"launch", "--num_gpsu", "2", kHelper});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_HAS(unknown.err, "did you mean --num_gpus?");
  const Outcome nodes = RunTrireme({"launch", "--num-nodes=2", kHelper});
  EXPECT_EQ(nodes.code, 2);
  EXPECT_HAS(nodes.err, "2 nodes asked, this version starts the ranks of one machine");
  const Outcome number = RunTrireme({"launch", "--num_gpus", "two", kHelper});
  EXPECT_EQ(number.code, 2);
  EXPECT_HAS(number.err, "--num_gpus: 'two' is no integer");
  EXPECT_EQ(RunTrireme({"launch", "--num_gpus", "2"}).code, 2);
  EXPECT_HAS(RunTrireme({"launch", "--cpu", kHelper, "--num_gpus", "2"}).err, "--num_gpus stands behind");
}

TEST(Launch, ProgramThatIsNotThere) {
  const Outcome word = RunTrireme({"launch", "--cpu", "trian"});
  EXPECT_EQ(word.code, 2);
  EXPECT_HAS(word.err, "did you mean `trireme launch train`?");
  const Outcome path = RunTrireme({"launch", "--cpu", "./no/such/program"});
  EXPECT_EQ(path.code, 2);
  EXPECT_HAS(path.err, "./no/such/program: no such command, file or program on PATH");
  TempFolder folder;
  std::ofstream(folder.path() / "train.py") << "print(1)\n";
  EXPECT_HAS(RunTrireme({"launch", "--cpu", (folder.path() / "train.py").string()}).err, "python3 -u");
  std::ofstream(folder.path() / "broken") << "no program\n";
  fs::permissions(folder.path() / "broken", fs::perms::owner_all);
  const Outcome broken = RunTrireme({"launch", "--cpu", (folder.path() / "broken").string()});
  EXPECT_EQ(broken.code, 126);
  EXPECT_HAS(broken.err, "could not be started: Exec format error");
}

TEST(Launch, LCH_01_HostfileThatIsNotThere) {
  const Outcome o = RunTrireme({"launch", "--hostfile", "hosts_does_not_exist", kHelper, "*:print=started"});
  EXPECT_EQ(o.code, 78);
  EXPECT_HAS(o.err, "error HST004: hosts_does_not_exist");
  EXPECT_EQ(o.out, "");
}

TEST(Launch, HostfileOfThisMachineGivesTheRanks) {
  TempFolder folder;
  const std::string file = (folder.path() / "hosts").string();
  std::ofstream(file) << "# one machine\nlocalhost slots=2\n";
  const Outcome o = RunTrireme({"launch", "--cpu", "-H", file, kHelper, "*:env=WORLD_SIZE"});
  EXPECT_EQ(o.out, "WORLD_SIZE=2\n") << o.err;
  std::ofstream(file) << "localhost slots=2\nworker-1 slots=2\n";
  EXPECT_HAS(RunTrireme({"launch", "--cpu", "-H", file, kHelper}).err, "names 2 hosts");
}

TEST(Launch, LCH_03_SlotsThatAreNotThere) {
  TempFolder folder;
  const std::string file = (folder.path() / "hosts").string();
  std::ofstream(file) << "localhost slots=2\n";
  const Outcome o =
      RunTrireme({"launch", "--cpu", "--hostfile", file, "--include", "localhost:2,3", kHelper, "*:print=started"});
  EXPECT_EQ(o.code, 78);
  EXPECT_HAS(o.err, "host localhost has slots 0,1, asked 2,3");
  EXPECT_HAS(o.err, "raise slots=");
  EXPECT_EQ(o.out, "");
}

TEST(Launch, LCH_12_AskedPortIsTaken) {
  const Listener listener(0);
  ASSERT_TRUE(listener.ok());
  const Outcome o =
      RunTrireme({"launch", "--cpu", "--master_port", std::to_string(listener.port()), kHelper, "*:print=started"});
  EXPECT_EQ(o.code, 69);
  EXPECT_HAS(o.err, "port " + std::to_string(listener.port()) + " is taken by process " + std::to_string(getpid()));
  EXPECT_EQ(o.out, "");
}

TEST(Launch, LCH_12_TwoJobsGetTwoPorts) {
  Command first(kTrireme, {"launch", "--cpu", "--log_level", "info", kHelper, "*:env=MASTER_PORT", "*:sleep=60000"});
  ASSERT_TRUE(first.WaitFor("MASTER_PORT=29"));
  const Outcome second = RunTrireme({"launch", "--cpu", kHelper, "*:env=MASTER_PORT"});
  EXPECT_EQ(second.code, 0);
  kill(first.pid(), SIGTERM);
  const Outcome end = first.Wait();
  EXPECT_EQ(end.out.rfind("MASTER_PORT=", 0), 0U);
  EXPECT_EQ(second.out.rfind("MASTER_PORT=", 0), 0U);
  EXPECT_NE(end.out, second.out);
  EXPECT_HAS(second.err, "port 29500 is taken: this job uses");
}

TEST(Launch, LCH_13_LauncherInsideAJobOfRanks) {
  const Outcome torchrun =
      RunTrireme({"launch", "--cpu", kHelper, "*:print=started"}, {{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(torchrun.code, 2);
  EXPECT_HAS(torchrun.err, "this launcher is itself rank 1 of 2");
  EXPECT_EQ(torchrun.out, "");
  const Outcome srun = RunTrireme({"launch", "--cpu", kHelper}, {{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}});
  EXPECT_HAS(srun.err, "started by srun");
}

TEST(Launch, DryRunStartsNothing) {
  const Outcome o = RunTrireme({"launch", "--cpu", "--num_procs", "2", "--dry-run", kHelper, "*:print=started"});
  EXPECT_EQ(o.code, 0);
  EXPECT_HAS(o.out, "rank 1:");
  EXPECT_HAS(o.out, "LOCAL_RANK=1");
  EXPECT_LACKS(o.out, "\nstarted\n");
}

TEST(Launch, LogsHoldTheWholeOutput) {
  TempFolder folder;
  const std::string logs = (folder.path() / "a" / "b").string();  // made with its parents
  const Outcome o = RunTrireme({"launch", "--cpu", "--num_gpus", "2", "--enable_each_rank_log", logs, kHelper,
                                "*:flood=20000", "1:eprint=at the end"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, "");
  EXPECT_EQ(FileText(logs + "/latest_rank0.log").size(), 20000U * 100);
  EXPECT_EQ(FileText(logs + "/latest_rank1.log").size(), 20000U * 100 + 11);
}

TEST(Launch, SeveralRanksOnTheConsoleCarryTheirNumber) {
  const Outcome o = RunTrireme(
      {"launch", "--cpu", "--num_gpus", "3", "--tee_ranks", "0,2", kHelper, "*:flood=1000", "2:write=no end"});
  ASSERT_EQ(o.code, 0) << o.err;
  size_t lines = 0;
  for (size_t begin = 0; begin < o.out.size(); ++lines) {
    const size_t end = o.out.find('\n', begin);
    ASSERT_NE(end, std::string::npos);
    const std::string line = o.out.substr(begin, end - begin);
    EXPECT_TRUE(line.starts_with("[0] 0") || line.starts_with("[2] 0") || line == "[2] no end") << line;
    EXPECT_EQ(line.size(), line == "[2] no end" ? 10U : 103U);
    begin = end + 1;
  }
  EXPECT_EQ(lines, 2001U);
}

// A folder as it is installed: trireme with an engine beside it.
class Installed : public Test {
 protected:
  Installed() { fs::copy_file(kTrireme, folder_.path() / "trireme"); }
  void AddEngine() { fs::copy_file(kEngine, folder_.path() / "trireme-engine"); }
  Outcome RunHere(const std::vector<std::string>& words) {
    return Command((folder_.path() / "trireme").string(), words).Wait();
  }
  TempFolder folder_;
};

TEST_F(Installed, EngineCommandsRunTheEngineBesideTheProgram) {
  AddEngine();
  const std::string version(Version());
  EXPECT_EQ(RunHere({"train", "--lr", "0.1"}).out, "engine rank=none expects=" + version + ": train --lr 0.1\n");
  EXPECT_EQ(RunHere({"generate"}).out, "engine rank=none expects=" + version + ": generate\n");
  const Outcome o =
      RunHere({"launch", "--cpu", "--num_gpus", "2", "--tee_ranks=1", "--pass_local_rank", "train", "--lr", "0.1"});
  EXPECT_EQ(o.out, "engine rank=1 expects=" + version + ": train --lr 0.1\n") << o.err;
}

TEST_F(Installed, EngineThatIsMissingIsNamed) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"train"}, {"launch", "--cpu", "train"}}) {
    const Outcome o = RunHere(words);
    EXPECT_EQ(o.code, 69);
    EXPECT_HAS(o.err, "trireme-engine: cannot be executed: No such file or directory");
  }
}

TEST(Engine, VersionMismatchIsRefused) {
  const Outcome o = Command(kEngine, {"train"}, {{"TRIREME_EXPECT_VERSION", "9.8.7"}}).Wait();
  EXPECT_EQ(o.code, 69);
  EXPECT_HAS(o.err, "trireme is version 9.8.7, trireme-engine in the same folder is version " + std::string(Version()));
  EXPECT_EQ(o.out, "");
}

}  // namespace
}  // namespace trireme::testing
