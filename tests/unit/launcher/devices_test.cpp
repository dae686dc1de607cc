// Which devices a job gets: DeepSpeed's grammar of hostfile and filters, and CUDA_VISIBLE_DEVICES as the universe.
#include "launcher/devices.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace trireme::launcher {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<std::string>;

LaunchOptions Options(std::vector<std::string> words) {
  words.push_back("prog");
  return ParseLaunchOptions(words);
}

DeviceChoice Choose(const std::vector<std::string>& words, int64_t gpus,
                    std::optional<std::string> visible = std::nullopt,
                    std::optional<HostSlots> hostfile = std::nullopt) {
  return ChooseDevices(Options(words), MakeDevices(gpus, std::move(visible)), hostfile);
}

std::string ErrorOf(const std::vector<std::string>& words, int64_t gpus,
                    std::optional<std::string> visible = std::nullopt,
                    std::optional<HostSlots> hostfile = std::nullopt) {
  try {
    Choose(words, gpus, std::move(visible), hostfile);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    return error.id() + " " + error.where() + ": " + error.message();
  }
  return "";
}

TEST(Devices, NumberOfGpus) {
  EXPECT_EQ(Choose({}, 4).tokens, (Tokens{"0", "1", "2", "3"}));
  EXPECT_EQ(Choose({}, 4).num_ranks, 4);
  EXPECT_EQ(Choose({"--num_gpus", "2"}, 4).tokens, (Tokens{"0", "1"}));
  for (const char* number : {"0", "-5"})
    EXPECT_EQ(Choose({"--num_gpus", number}, 4).num_ranks, 4);  // as DeepSpeed: no effect
  EXPECT_EQ(ErrorOf({"--num_gpus", "8"}, 4), "LCH027 --num_gpus: 8 ranks asked, 4 GPUs visible");
  const DeviceChoice over = Choose({"--num_gpus", "8", "--oversubscribe"}, 4);
  EXPECT_EQ(over.num_ranks, 8);
  EXPECT_EQ(over.tokens.size(), 4U);
}

TEST(Devices, CpuRanks) {
  EXPECT_EQ(Choose({}, 0).num_ranks, 1);
  EXPECT_EQ(Choose({"--num_gpus", "3"}, 0).num_ranks, 3);
  EXPECT_EQ(Choose({"--cpu", "--num_procs", "3"}, 8).num_ranks, 3);
  EXPECT_TRUE(Choose({"--cpu", "--num_procs", "3"}, 8).tokens.empty());
  EXPECT_EQ(Choose({"--include", "localhost:0-2"}, 0).num_ranks, 3);
}

TEST(Devices, FiltersOfThisMachine) {
  EXPECT_EQ(Choose({"-i", "localhost:2,0,2"}, 4).tokens, (Tokens{"0", "2"}));
  EXPECT_EQ(Choose({"-i", "localhost"}, 4).tokens.size(), 4U);
  EXPECT_EQ(Choose({"-i", "localhost: 0 , 1"}, 4).tokens, (Tokens{"0", "1"}));
  EXPECT_EQ(Choose({"-i", "localhost:0-2"}, 4).tokens, (Tokens{"0", "1", "2"}));
  EXPECT_EQ(Choose({"-i", "localhost:0@localhost:3"}, 4).tokens, (Tokens{"0", "3"}));
  EXPECT_EQ(Choose({"-e", "localhost:1"}, 4).tokens, (Tokens{"0", "2", "3"}));
  for (const char* bad : {"localhost:", "localhost:0:1", "@localhost:0", "localhost:0,x", "localhost:2-1", "foo:1",
                          "jeff", "localhost:1@*"}) {
    EXPECT_TRUE(ErrorOf({"-i", bad}, 4).starts_with("LCH024")) << bad;
  }
  EXPECT_TRUE(ErrorOf({"-e", "localhost"}, 4).starts_with("LCH028"));
}

TEST(Devices, LCH_03_SlotBeyondThoseDeclared) {
  EXPECT_EQ(ErrorOf({"--include", "work1:2,3"}, 8, std::nullopt, HostSlots{"work1", 2}),
            "LCH026 --include work1:2,3: host work1 has slots 0,1, asked 2,3");
  EXPECT_EQ(ErrorOf({"--exclude", "localhost:4"}, 4),
            "LCH026 --exclude localhost:4: host localhost has slots 0,1,2,3, asked 4");
  EXPECT_EQ(ErrorOf({}, 4, std::nullopt, HostSlots{"work1", 8}),
            "LCH027 hostfile entry work1: 8 ranks asked, 4 GPUs visible");
}

TEST(Devices, LCH_04_VisibleDevicesAreTheUniverse) {
  EXPECT_EQ(Choose({}, 8, "2,4").tokens, (Tokens{"2", "4"}));
  EXPECT_EQ(Choose({}, 8, "3,1").tokens, (Tokens{"3", "1"}));  // the order stays
  EXPECT_EQ(Choose({}, 8, "3,3").tokens, (Tokens{"3"}));
  EXPECT_EQ(Choose({"--num_gpus", "2"}, 8, "5,6,7").tokens, (Tokens{"5", "6"}));
  EXPECT_EQ(Choose({"--num_nodes", "1"}, 8, "2,3").tokens, (Tokens{"2", "3"}));
  EXPECT_EQ(Choose({"--include", "localhost:4"}, 8, "2,4").tokens, (Tokens{"4"}));
  EXPECT_EQ(ErrorOf({"--include", "localhost:0"}, 8, "2,4"),
            "LCH026 --include localhost:0: host localhost has slots 2,4, asked 0");
  EXPECT_EQ(Choose({}, 1, "GPU-8932f937").tokens, (Tokens{"GPU-8932f937"}));
  EXPECT_EQ(Choose({"--include", "localhost:1"}, 2, "GPU-aa,MIG-bb").tokens, (Tokens{"MIG-bb"}));
  EXPECT_EQ(ErrorOf({}, 8, ""), "LCH025 CUDA_VISIBLE_DEVICES=: hides all 8 GPUs of this machine");
  EXPECT_EQ(ErrorOf({}, 8, "-1"), "LCH025 CUDA_VISIBLE_DEVICES=-1: hides all 8 GPUs of this machine");
  EXPECT_EQ(ErrorOf({}, 4, "5"), "LCH025 CUDA_VISIBLE_DEVICES=5: names GPU 5, this machine has GPUs 0-3");
  EXPECT_EQ(Choose({"--cpu"}, 8, "").num_ranks, 1);
}

TEST(Devices, CountedFromDeviceFiles) {
  std::string name = (fs::temp_directory_path() / "trireme-gpus-XXXXXX").string();
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  const fs::path root = name;
  EXPECT_EQ(CountGpus(root), 0);
  fs::create_directories(root / "proc/driver/nvidia/gpus/0000:01:00.0");
  EXPECT_EQ(CountGpus(root), 1);  // no device files: what the driver lists
  fs::create_directories(root / "dev");
  for (const char* file : {"nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia"})
    std::ofstream(root / "dev" / file) << "";
  EXPECT_EQ(CountGpus(root), 2);
  fs::remove_all(root);
}

TEST(Devices, HostfileOfOneMachine) {
  std::string name = (fs::temp_directory_path() / "trireme-hosts-XXXXXX").string();
  close(mkstemp(name.data()));
  const auto read = [&](const std::string& text) -> std::string {
    std::ofstream(name) << text;
    try {
      const HostSlots host = ReadHostfile(name, {"node7", "localhost"});
      return host.host + " " + std::to_string(host.slots);
    } catch (const Error& error) {
      return error.id();
    }
  };
  EXPECT_EQ(read("# hosts\n\nnode7 slots=4\n"), "node7 4");
  EXPECT_EQ(read("localhost slots=2 max_slots=8\n"), "localhost 2");
  EXPECT_EQ(read("node7 slots=4\nnode8 slots=4\n"), "LCH020");
  EXPECT_EQ(read("node8 slots=4\n"), "LCH021");
  EXPECT_EQ(read("node7\n"), "HST001");
  fs::remove(name);
}

TEST(Devices, OwnNamesHoldTheLoopback) {
  const std::vector<std::string> names = OwnNames();
  for (const char* name : {"localhost", "127.0.0.1"})
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
}

}  // namespace
}  // namespace trireme::launcher
