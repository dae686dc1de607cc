#include "launcher/cores.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/error_id.h"
#include "tests/support/kernel_files.h"

namespace trireme::launcher {
namespace {

using trireme::testing::IdOf;

const std::vector<Cpus> kFour = {{0, 4}, {1, 5}, {2, 6}, {3, 7}};  // two hardware threads a core

TEST(Cores, ListsAsDeepSpeedReadsThem) {
  EXPECT_EQ(ParseCoreList("0,2-4,9"), (Cpus{0, 2, 3, 4, 9}));
  EXPECT_EQ(ParseCoreList("7"), Cpus{7});
  for (const char* text : {"8,2-6", "0,2-6,5-9", "1,6-2", "", "a", "1-", "-1", "1, 2", "1,,2", "1-2-3", "99999"}) {
    EXPECT_EQ(IdOf([&] { ParseCoreList(text); }), "LCH003") << text;
  }
}

TEST(Cores, EachRankHasWholeCoresAndAsManyAsTheOthers) {
  EXPECT_EQ(ShareCores(kFour, "", 2), (std::vector<Cpus>{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(ShareCores(kFour, "", 3), (std::vector<Cpus>{{0, 4}, {1, 5}, {2, 6}}));
  EXPECT_EQ(ShareCores(kFour, "0-1,6-7", 2), (std::vector<Cpus>{{0, 1}, {6, 7}}));
  EXPECT_EQ(ShareCores(kFour, "0-1", 3), (std::vector<Cpus>{{0}, {1}, {0}}));  // in turn
  EXPECT_EQ(IdOf([] { ShareCores(kFour, "0,8", 1); }), "LCH013");
  EXPECT_EQ(IdOf([] { ShareCores({}, "", 2); }), "LCH013");
}

TEST(Cores, Text) {
  EXPECT_EQ(CoresText({0, 1, 2, 5, 8, 9}), "0-2,5,8-9");
  EXPECT_EQ(CoresText({}), "");
}

TEST(Cores, HardwareThreadsOfACoreStayTogether) {
  const std::vector<Cpus> single = AllowedCores("/nowhere");  // without topology each CPU is a core
  ASSERT_FALSE(single.empty());
  for (const Cpus& core : single) EXPECT_EQ(core.size(), 1U);
  if (single.size() < 2) GTEST_SKIP() << "this process may use one core only";
  const trireme::testing::KernelFiles kernel;
  const int first = single[0][0], second = single[1][0];
  for (const int cpu : {first, second}) {
    kernel.Write("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
                 std::to_string(first) + "," + std::to_string(second) + "\n");
  }
  const std::vector<Cpus> paired = AllowedCores(kernel.root());
  EXPECT_EQ(paired.size(), single.size() - 1);
  EXPECT_EQ(paired[0], (Cpus{first, second}));
}

}  // namespace
}  // namespace trireme::launcher
