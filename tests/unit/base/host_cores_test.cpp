// Quotas of control groups, out of folders that look like the kernel's.
#include "engine/base/host_cores.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/kernel_files.h"

namespace trireme {
namespace {

class HostCoresTest : public ::testing::Test, protected testing::KernelFiles {};

TEST_F(HostCoresTest, WithoutAGroupTheMaskCounts) {
  const HostCores cores = ReadHostCores(root_);
  EXPECT_GE(cores.allowed, 1);
  EXPECT_TRUE(std::isinf(cores.quota));
  EXPECT_EQ(cores.usable(), cores.allowed);
}

TEST_F(HostCoresTest, TheTightestGroupCounts) {
  Write("proc/self/cgroup", "0::/jobs/seven\n");
  Write("sys/fs/cgroup/jobs/seven/cpu.max", "max 100000\n");
  Write("sys/fs/cgroup/jobs/cpu.max", "50000 100000\n");
  Write("sys/fs/cgroup/cpu.max", "300000 100000\n");
  EXPECT_EQ(ReadHostCores(root_).quota, 0.5);
  EXPECT_EQ(ReadHostCores(root_).usable(), 1);
}

TEST_F(HostCoresTest, OfTheOldKindOfGroups) {
  Write("proc/self/cgroup", "11:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n0::\n");
  Write("sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "150000\n");
  Write("sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us", "100000\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(ReadHostCores(root_).quota, 1.5);
}

// The kernel's word is missing, or leads out of what can be seen here.
TEST_F(HostCoresTest, WithoutAPathTheTopCounts) {
  Write("sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(ReadHostCores(root_).quota, 2);
  Write("proc/self/cgroup", "0::/../other\n");
  Write("sys/fs/other/cpu.max", "50000 100000\n");
  EXPECT_EQ(ReadHostCores(root_).quota, 2);
  Write("proc/self/cgroup", "7:cpu,cpuacct:/\n0::/\n");  // both versions at once, the first under both its names
  Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n");
  Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(ReadHostCores(root_).quota, 1.5);
}

// 1.5 cores keep two threads busy; a quota above the mask changes nothing.
TEST(HostCores, UsableAreWholeCores) {
  EXPECT_EQ((HostCores{.allowed = 8, .quota = 1.5}.usable()), 2);
  EXPECT_EQ((HostCores{.allowed = 8, .quota = 0.2}.usable()), 1);
  EXPECT_EQ((HostCores{.allowed = 2, .quota = 6}.usable()), 2);
}

}  // namespace
}  // namespace trireme
