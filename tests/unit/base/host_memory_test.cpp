// Limits of control groups, out of folders that look like the kernel's.
#include "engine/base/host_memory.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/kernel_files.h"

namespace trireme {
namespace {

class HostMemoryTest : public ::testing::Test, protected testing::KernelFiles {
 protected:
  HostMemoryTest() { Write("proc/meminfo", "MemTotal:       65536 kB\nMemFree: 100 kB\nMemAvailable:   40960 kB\n"); }

  static constexpr int64_t kMiB = 1 << 20;
};

TEST_F(HostMemoryTest, WithoutAGroupIsTheMachines) {
  const HostMemory memory = ReadHostMemory(root_);
  EXPECT_EQ(memory.limit, 64 * kMiB);
  EXPECT_EQ(memory.available, 40 * kMiB);
  EXPECT_FALSE(memory.is_group);
}

// The tightest of a group and those above it; caches of files give way.
TEST_F(HostMemoryTest, MEM_01_TheTightestGroupCounts) {
  Write("proc/self/cgroup", "0::/jobs/seven\n");
  Write("sys/fs/cgroup/jobs/seven/memory.max", "max\n");
  Write("sys/fs/cgroup/jobs/memory.max", std::to_string(32 * kMiB));
  Write("sys/fs/cgroup/jobs/memory.current", std::to_string(20 * kMiB));
  Write("sys/fs/cgroup/jobs/memory.stat", "anon 5\ninactive_file " + std::to_string(8 * kMiB) + "\n");
  const HostMemory memory = ReadHostMemory(root_);
  EXPECT_EQ(memory.limit, 32 * kMiB);
  EXPECT_EQ(memory.available, 20 * kMiB);
  EXPECT_TRUE(memory.is_group);
}

TEST_F(HostMemoryTest, OfTheOldKindOfGroups) {
  Write("proc/self/cgroup", "11:cpu,cpuacct:/\n4:memory:/docker/1\n");
  Write("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", std::to_string(16 * kMiB));
  Write("sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes", std::to_string(6 * kMiB));
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const HostMemory memory = ReadHostMemory(root_);
  EXPECT_EQ(memory.limit, 16 * kMiB);
  EXPECT_EQ(memory.available, 10 * kMiB);
}

// The own group's counter in both versions, else the machine's.
TEST_F(HostMemoryTest, OomKillsAreThoseOfTheOwnGroup) {
  EXPECT_EQ(OomKills(root_), 0);
  Write("proc/vmstat", "nr_free_pages 5\noom_kill 40\n");
  EXPECT_EQ(OomKills(root_), 40);
  Write("proc/self/cgroup", "4:memory:/docker/1\n");
  Write("sys/fs/cgroup/memory/docker/1/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
  EXPECT_EQ(OomKills(root_), 3);
  Write("proc/self/cgroup", "0::/jobs/seven\n");
  Write("sys/fs/cgroup/jobs/seven/memory.events", "low 0\noom 9\noom_kill 2\n");
  EXPECT_EQ(OomKills(root_), 2);
}

TEST(ProcessMemoryTest, SeesThisProcess) {
  const ProcessMemory memory = ReadProcessMemory();
  EXPECT_GT(memory.resident, 1 << 20);
  EXPECT_GE(memory.peak_resident, memory.resident);
  EXPECT_GE(ReadHostMemory().limit, memory.resident);
}

}  // namespace
}  // namespace trireme
