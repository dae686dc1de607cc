// Each wrong input gives one clear message and its exit code, and nothing is lost.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/cli/train/train_command.h"

namespace trireme::testing {
namespace {

int CountOf(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// `parts` must all stand in what the user sees, and there must be one error, not one a rank.
void ExpectError(const Outcome& outcome, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(outcome.code, code) << outcome.err;
  for (const std::string& part : parts)
    EXPECT_NE(outcome.err.find(part), std::string::npos) << "missing: " << part << "\nin: " << outcome.err;
}

Outcome TrainWith(const TinyJob& job, const std::string& config_text) {
  job.WriteConfig("wrong.json", config_text);
  return RunTrireme(job.Train(2, {"--train-iters", "2"}, "wrong.json"));
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(WrongInput, MissingConfig) {
  const TinyJob job;
  ExpectError(RunTrireme(job.Train(1, {"--train-iters", "2"}, "absent.json")), 78, {"absent.json", "fix:"});
}

TEST(WrongInput, JsonErrorNamesLineAndColumn) {
  const TinyJob job;
  const Outcome outcome = TrainWith(job, "{\n  \"train_batch_size\": 8,\n  \"steps_per_print\": [1, 2}\n}");
  ExpectError(outcome, 78, {"wrong.json:3", "fix:"});
}

TEST(WrongInput, MisspeltKeyIsSuggested) {
  const TinyJob job;
  ExpectError(TrainWith(job, Replaced(kTinyConfig, "gradient_clipping", "gradient_cliping")), 78,
              {"gradient_cliping", "did you mean \"gradient_clipping\"", "wrong.json:5"});
}

TEST(WrongInput, WrongType) {
  const TinyJob job;
  ExpectError(TrainWith(job, Replaced(kTinyConfig, "\"stage\": 2", "\"stage\": \"two\"")), 78,
              {"zero_optimization.stage", "two", "wrong.json:6"});
}

TEST(WrongInput, TriangleThatDoesNotMultiplyOutShowsTheNearest) {
  const TinyJob job;
  ExpectError(TrainWith(job, Replaced(kTinyConfig, "\"train_micro_batch_size_per_gpu\": 2",
                                      "\"train_micro_batch_size_per_gpu\": 3")),
              78, {"train_batch_size", "8", "3", "fix:"});
}

TEST(WrongInput, DAT_06_VocabularySmallerThanATokenInTheData) {
  const TinyJob job;
  std::filesystem::remove(job.Path("text.tokenizer.json"));
  ExpectError(RunTrireme(job.Train(2, {"--train-iters", "2", "--vocab-size", "100"})), 65,
              {"text", "100", "document", "fix:"});
}

TEST(WrongInput, DAT_07_TruncatedBin) {
  const TinyJob job;
  std::filesystem::resize_file(job.Path("text.bin"), 900);
  ExpectError(RunTrireme(job.Train(1, {"--train-iters", "2"})), 65, {"text.bin", "900", "fix:"});
}

TEST(WrongInput, UnknownModel) {
  const TinyJob job;
  ExpectError(RunTrireme({"launch", "--cpu", "train", "--deepspeed_config", job.Path("config.json"), "--model_name",
                          "gpt-1.3", "--data-path", job.Path("text"), "--train-iters", "1"}),
              78, {"gpt-1.3", "gpt-1.3b", "fix:"});
}

TEST(WrongInput, MissingDataAndMissingCheckpoint) {
  const TinyJob job;
  std::filesystem::remove(job.Path("text.idx"));
  ExpectError(RunTrireme(job.Train(1, {"--train-iters", "2", "--vocab-size", "257"})), 65, {"text.idx", "fix:"});
  const TinyJob other;
  ExpectError(RunTrireme(other.Train(1, {"--train-iters", "2", "--load", other.Path("nowhere")})), 65,
              {"nowhere", "fix:"});
}

TEST(WrongInput, FlagsOfGenerate) {
  ExpectError(RunTrireme({"generate", "--prompt", "x"}), 2, {"USE003", "--load", "fix:"});
  ExpectError(RunTrireme({"generate", "--promt", "x"}), 2, {"USE001", "did you mean --prompt?"});
  ExpectError(RunTrireme({"generate", "--load", "x", "--max_new_tokens", "many"}), 2, {"USE002", "many"});
  ExpectError(RunTrireme({"generate", "--load", "x", "--top-k", "-1"}), 2, {"USE002", "--top-k", "-1"});
  const Outcome help = RunTrireme({"generate", "--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* line : {"--load DIR", "--top-k K", "[0.8]", "[200]", "[1234]"})
    EXPECT_NE(help.out.find(line), std::string::npos) << line << " is not in\n" << help.out;
}

TEST(WrongInput, OutputsAreCheckedBeforeTheFirstStep) {
  const TinyJob job;
  ExpectError(RunTrireme(job.Train(1, {"--train-iters", "2", "--save", job.Path("text.txt")})), 69,
              {"--save", "text.txt", "fix:"});
  ExpectError(RunTrireme(job.Train(1, {"--train-iters", "2", "--trace", "/dev/full"})), 69,
              {"--trace /dev/full", "no regular file"});
  ExpectError(RunTrireme(job.Train(1, {"--train-iters", "2", "--log-json", job.Path("nowhere/x")})), 69,
              {"nowhere/x", "fix:"});
  ExpectError(RunTrireme(job.Train(1, {})), 2, {"--train-iters", "is not given"});
}

TEST(WrongInput, ARunFromTheBeginningDoesNotReplaceAnother) {
  const TinyJob job;
  ASSERT_EQ(RunTrireme(job.Train(1, {"--train-iters", "2", "--save", job.Path("ckpt")})).code, 0);
  ExpectError(RunTrireme(job.Train(1, {"--train-iters", "1", "--save", job.Path("ckpt")})), 65,
              {"global_step2", "another run", "add --load " + job.Path("ckpt")});
}

TEST(WrongInput, PortInUse) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const TinyJob job;
  std::vector<std::string> words = job.Train(2, {"--train-iters", "2"});
  words.insert(words.begin() + 1, {"--master_port", port});
  ExpectError(RunTrireme(words), 69, {port, "fix:"});
  ::close(listener);
}

TEST(WrongInput, KilledRankEndsTheJobAndIsNamed) {
  const TinyJob job;
  Command command(kTrireme, job.Train(2, {"--train-iters", "100000", "--eval-interval", "0", "--save", job.Path("ckpt"),
                                          "--save-interval", "3"}));
  ASSERT_TRUE(command.WaitFor("step 6/"));
  pid_t victim = -1;
  for (const pid_t pid : command.Running()) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
    const std::string environment{std::istreambuf_iterator<char>(file), {}};
    std::ifstream name_file("/proc/" + std::to_string(pid) + "/comm");
    std::string name;
    std::getline(name_file, name);
    if (name.starts_with("trireme-engine") && environment.find(std::string("\0RANK=1", 7)) != std::string::npos)
      victim = pid;
  }
  ASSERT_GT(victim, 0);
  ::kill(victim, SIGKILL);
  const Outcome outcome = command.Wait();
  EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.err;
  const size_t at = outcome.err.find("[launcher] rank 1 was at step ");  // with the operation that it had begun last
  ASSERT_NE(at, std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.substr(at, outcome.err.find('\n', at) - at).find("(lane "), std::string::npos) << outcome.err;
  EXPECT_TRUE(command.Left(5).empty());
  // The last complete checkpoint is there and can be resumed.
  const Outcome resumed = RunTrireme({"inspect", job.Path("ckpt"), "--verify"});
  EXPECT_EQ(resumed.code, 0) << resumed.out << resumed.err;
}

TEST(WrongInput, DiskFullAtASaveKeepsThePreviousCheckpoint) {
  const TinyJob job;
  const std::string disk = job.Path("disk");
  std::filesystem::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=100m") != 0)
    GTEST_SKIP() << "a small file system cannot be mounted here: " << std::strerror(errno);
  const Outcome first = RunTrireme(job.Train(2, {"--train-iters", "2", "--save", disk + "/ckpt"}));
  if (first.code == 0) {
    std::ofstream(disk + "/filler") << std::string(60 << 20, 'x');
    const Outcome full =
        RunTrireme(job.Train(2, {"--train-iters", "4", "--load", disk + "/ckpt", "--save", disk + "/ckpt"}));
    ExpectError(full, 65, {"global_step4", "earlier checkpoints are untouched", "free"});
    EXPECT_EQ(CountOf(full.err, "error TRN010"), 1) << full.err;
  }
  const Outcome verified = first.code == 0 ? RunTrireme({"inspect", disk + "/ckpt", "--verify"}) : Outcome{};
  ::umount2(disk.c_str(), MNT_DETACH);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
}

}  // namespace
}  // namespace trireme::testing
