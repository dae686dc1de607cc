// What the doctor says of machines that are folders and fake libraries.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/cli/findings.h"
#include "engine/cli/host_findings.h"
#include "engine/cli/nvml.h"
#include "tests/support/kernel_files.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

class Doctor : public ::testing::Test, protected testing::KernelFiles {
 protected:
  void SetUp() override { fs::create_directories(root_ / "dev/shm"); }

  HostSources Sources() const { return {.root = root_, .nvme_path = root_}; }
};

// The finding whose text has `part`; a failure if there is none.
Finding With(const Findings& findings, const std::string& part) {
  const auto found = std::ranges::find_if(findings, [&](const Finding& f) { return f.what.find(part) != f.what.npos; });
  if (found != findings.end()) return *found;
  ADD_FAILURE() << "no \"" << part << "\" in\n" << FindingsText(findings);
  return {};
}

TEST_F(Doctor, SeesAProcessorsQuotaAndWhatItLacks) {
  Write("proc/cpuinfo", "model name\t: Old Chip\nflags\t\t: fpu sse2\n");
  Write("proc/self/cgroup", "0::/jobs/one\n");
  Write("sys/fs/cgroup/jobs/cpu.max", "50000 100000\n");  // of the group above
  Write("proc/loadavg", "900.5 1 1 1/1 1\n");
  const Findings found = ProcessorFindings(Sources());
  EXPECT_EQ(With(found, "Old Chip").health, Health::kOk);
  EXPECT_EQ(With(found, "no AVX2").health, Health::kWarning);
  EXPECT_EQ(With(found, "grants 0.5 of").health, Health::kWarning);
  EXPECT_EQ(With(found, "900.5 programs").health, Health::kWarning);
}

TEST_F(Doctor, SeesMemoryAndTheControlGroupsLimitOfBothVersions) {
  Write("proc/meminfo", "MemTotal:  4194304 kB\nMemAvailable:  3145728 kB\nSwapTotal:  0 kB\n");
  EXPECT_EQ(With(MemoryFindings(Sources()), "4.00 GiB, of which 3.00 GiB are free").health, Health::kOk);
  EXPECT_EQ(MemoryFindings(Sources()).size(), 1U);
  Write("proc/self/cgroup", "4:memory:/\n0::/\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // none
  EXPECT_EQ(MemoryFindings(Sources()).size(), 1U);
  Write("sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(With(MemoryFindings(Sources()), "allows 1.00 GiB of 4.00 GiB").health, Health::kWarning);
  fs::remove(root_ / "sys/fs/cgroup/memory.max");
  Write("proc/self/cgroup", "0::/jobs/one\n");  // the limit of a group above counts
  Write("sys/fs/cgroup/jobs/memory.max", "2147483648\n");
  EXPECT_EQ(With(MemoryFindings(Sources()), "allows 2.00 GiB of 4.00 GiB").health, Health::kWarning);
  Write("proc/meminfo", "MemTotal:  4194304 kB\nMemAvailable:  1024 kB\n");
  EXPECT_EQ(With(MemoryFindings(Sources()), "4.00 GiB").health, Health::kWarning);
}

TEST_F(Doctor, SaysWhereSharedMemoryAndDiskAreMissing) {
  EXPECT_EQ(SharedMemoryFindings(Sources()).size(), 1U);
  fs::remove_all(root_ / "dev/shm");
  EXPECT_EQ(SharedMemoryFindings(Sources()).front().health, Health::kProblem);
  EXPECT_NE(DiskFindings(Sources()).front().what.find(" free of "), std::string::npos);
  EXPECT_EQ(DiskFindings({.root = root_, .nvme_path = root_ / "missing"}).front().health, Health::kProblem);
  EXPECT_TRUE(fs::is_empty(root_ / "dev"));
}

TEST_F(Doctor, ReadsInfinibandPorts) {
  EXPECT_EQ(With(NetworkFindings(Sources()), "no ports").health, Health::kOk);
  for (const auto& [device, state] : {std::pair{"mlx5_0", "4: ACTIVE\n"}, std::pair{"mlx5_1", "1: DOWN\n"}}) {
    const std::string port = std::string("sys/class/infiniband/") + device + "/ports/1/";
    Write(port + "state", state);
    Write(port + "rate", "200 Gb/sec (4X HDR)\n");
    Write(port + "link_layer", "InfiniBand\n");
  }
  const Findings found = NetworkFindings(Sources());
  EXPECT_EQ(With(found, "mlx5_0 port 1: 4: ACTIVE, 200 Gb/sec (4X HDR), InfiniBand").health, Health::kOk);
  EXPECT_EQ(With(found, "mlx5_1 port 1: 1: DOWN").health, Health::kWarning);
}

TEST_F(Doctor, HugePagesThatAreOffAreAWarning) {
  EXPECT_TRUE(HugePageFindings(Sources()).empty());
  Write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  EXPECT_EQ(With(HugePageFindings(Sources()), ": madvise").health, Health::kOk);
  Write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  EXPECT_EQ(With(HugePageFindings(Sources()), ": never").health, Health::kWarning);
}

TEST_F(Doctor, AMachineWithoutGpusIsWellAndOneWithoutTheirLibraryIsNot) {
  EXPECT_EQ(With(GpuFindings("libnothing.so", root_), "none").health, Health::kOk);
  fs::create_directories(root_ / "proc/driver/nvidia/gpus/0000:01:00.0");
  const Finding broken = With(GpuFindings("libnothing.so", root_), "1 GPU, but");
  EXPECT_EQ(broken.health, Health::kProblem);
  EXPECT_NE(broken.fix, "");
}

TEST_F(Doctor, DOC_05_DescribesGpusTheirLinksAndTroubles) {
  const Findings found = GpuFindings(FAKE_NVML, root_);
  EXPECT_EQ(With(found, "580.1, for CUDA up to 13.1; 2 GPUs").topic, "driver");
  EXPECT_EQ(With(found, "Fake 100, 100.00 GiB, of which 99.00 GiB are free").health, Health::kOk);
  EXPECT_EQ(With(found, "PCIe 5 x16, 4 of 4 NVLinks up").health, Health::kOk);
  const Finding slot = With(found, "PCIe 5 x8, 2 of 4 NVLinks up");
  EXPECT_EQ(slot.health, Health::kWarning);
  EXPECT_EQ(slot.topic, "gpu 1");
  EXPECT_EQ(With(found, "7 uncorrected memory errors").health, Health::kProblem);
  EXPECT_EQ(With(found, "two processors, through the host: GPUs 0-1").health, Health::kWarning);
  EXPECT_EQ(ExitCodeOf(found), 1);
}

TEST(FindingLines, TravelWhole) {
  const Findings found = {{Health::kOk, "engine", "version 1", "here", ""},
                          {Health::kProblem, "gpu 0", "two\nlines\tand a tab", "", "reset"}};
  Findings back = ReadFindingLines("[W] a library speaks\n" + FindingLines(found) + "finding\tnothing\n");
  ASSERT_EQ(back.size(), 2U);
  EXPECT_EQ(back[0], found[0]);
  EXPECT_EQ(back[1].what, "two lines and a tab");
  EXPECT_EQ(back[1].fix, "reset");
}

TEST(FindingsJson, CountsAndSurvivesAnyBytes) {
  const auto json = nlohmann::json::parse(
      FindingsJson({{Health::kWarning, "disk", "a \xff b", "\"x\"", "y"}, {Health::kProblem, "gpu", "z", "", "w"}}));
  EXPECT_FALSE(json["ok"].get<bool>());
  EXPECT_EQ(json["problems"], 1);
  EXPECT_EQ(json["warnings"], 1);
  EXPECT_EQ(json["findings"][0]["status"], "warning");
  EXPECT_EQ(json["findings"][0]["where"], "\"x\"");
  EXPECT_EQ(ExitCodeOf({{Health::kWarning, "a", "b", "", ""}}), 0);
}

}  // namespace
}  // namespace trireme::cli
