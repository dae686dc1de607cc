#include "launcher/job.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/error.h"

namespace trireme::launcher {
namespace {

using Words = std::vector<std::string>;

LocalJob Job(Words flags, const DeviceChoice& choice, const Surroundings& around) {
  flags.push_back("prog");
  const LaunchOptions options = ParseLaunchOptions(flags);
  return MakeJob(options, "/bin/prog", {"-x"}, choice, 29503, around);
}

TEST(Job, EnvironmentOfEachRank) {
  const LocalJob job = Job({}, {{"2", "4"}, 2, "localhost"}, {"node7", 9, false});
  ASSERT_EQ(job.ranks.size(), 2U);
  EXPECT_EQ(job.ranks[1].words, (Words{"/bin/prog", "-x"}));
  EXPECT_EQ(job.ranks[1].device, "GPU 4");
  EXPECT_EQ(job.ranks[1].environment, (std::map<std::string, std::string>{{"RANK", "1"},
                                                                          {"LOCAL_RANK", "1"},
                                                                          {"WORLD_SIZE", "2"},
                                                                          {"LOCAL_WORLD_SIZE", "2"},
                                                                          {"LOCAL_SIZE", "2"},
                                                                          {"CROSS_RANK", "0"},
                                                                          {"CROSS_SIZE", "1"},
                                                                          {"NODE_RANK", "0"},
                                                                          {"GROUP_RANK", "0"},
                                                                          {"GROUP_WORLD_SIZE", "1"},
                                                                          {"MASTER_ADDR", "127.0.0.1"},
                                                                          {"MASTER_PORT", "29503"},
                                                                          {"CUDA_VISIBLE_DEVICES", "2,4"},
                                                                          {"OMP_NUM_THREADS", "4"}}));
}

TEST(Job, LCH_04_EachRanksDeviceIsNamed) {
  EXPECT_EQ(DescribeJob(Job({}, {{"2", "GPU-8932f937"}, 2, "localhost"}, {"node7", 8, false})),
            "world size 2 on host node7: rank 0 on GPU 2, rank 1 on GPU-8932f937; meeting at 127.0.0.1:29503");
  EXPECT_EQ(DescribeJob(Job({}, {{}, 4, "localhost"}, {"node7", 8, false})),
            "world size 4 on host node7 on the CPU, OMP_NUM_THREADS 2 each; meeting at 127.0.0.1:29503");
}

TEST(Job, WhatIsSetByTheUserStays) {
  const LocalJob job = Job({"--master_addr", "10.0.1.3"}, {{}, 1, "localhost"}, {"node7", 8, true});
  EXPECT_EQ(job.ranks[0].environment.at("MASTER_ADDR"), "10.0.1.3");
  EXPECT_FALSE(job.ranks[0].environment.contains("OMP_NUM_THREADS"));
  EXPECT_FALSE(job.ranks[0].environment.contains(
      "CUDA_VISIBLE_DEVICES"));  // no GPU was found: what CUDA sees is not ours to hide
  EXPECT_EQ(Job({"--cpu"}, {{}, 1, "localhost"}, {"node7", 8, true}).ranks[0].environment.at("CUDA_VISIBLE_DEVICES"),
            "");
}

TEST(Job, MoreRanksThanCoresHaveOneThreadEach) {
  EXPECT_EQ(Job({}, {{}, 5, "localhost"}, {"node7", 2, false}).ranks[4].environment.at("OMP_NUM_THREADS"), "1");
}

TEST(Job, RanksAreBoundToCoresWhereAsked) {
  const DeviceChoice choice{{}, 2, "localhost"};
  const Surroundings around{"node7", 8, false, false, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}};
  EXPECT_TRUE(Job({}, choice, around).ranks[0].cores.empty());
  const LocalJob bound = Job({"--bind_cores_to_rank"}, choice, around);
  EXPECT_EQ(bound.ranks[1].cores, (Cpus{2, 3, 6, 7}));
  EXPECT_EQ(bound.ranks[1].environment.at("OMP_NUM_THREADS"), "2");  // a thread a core, not a hardware thread
  EXPECT_EQ(DescribeJob(bound),
            "world size 2 on host node7 on the CPU, OMP_NUM_THREADS 2 each, cores 0-1,4-5 | 2-3,6-7; meeting at "
            "127.0.0.1:29503");
  const LocalJob listed = Job({"--bind_cores_to_rank", "--bind_core_list", "0-2,4-6"}, choice, around);
  EXPECT_EQ(listed.ranks[1].cores, (Cpus{4, 5, 6}));
  EXPECT_EQ(listed.ranks[1].environment.at("OMP_NUM_THREADS"), "3");
  EXPECT_THROW(Job({"--bind_core_list", "0-1"}, choice, around), Error);  // DeepSpeed takes it in silence, to no effect
  EXPECT_THROW(Job({"--bind_cores_to_rank"}, choice, {"node7", 8, false, /*kmp_affinity=*/true, {{0}, {1}}}), Error);
  const LocalJob with_quota = Job({"--bind_cores_to_rank"}, choice, {"node7", 2, false, false, around.cores});
  EXPECT_EQ(with_quota.ranks[1].environment.at("OMP_NUM_THREADS"), "1");
  const LocalJob crowd = Job({"--bind_cores_to_rank"}, {{}, 5, "localhost"}, around);
  EXPECT_EQ(crowd.ranks[4].cores, crowd.ranks[0].cores);
  EXPECT_EQ(crowd.ranks[4].environment.at("OMP_NUM_THREADS"), "1");
}

TEST(Job, RanksThatShareGpusAreTold) {
  const LocalJob shared = Job({"--oversubscribe"}, {{"0", "1"}, 3, "localhost"}, {"node7", 8, false});
  for (const RankSpec& rank : shared.ranks) EXPECT_EQ(rank.environment.at("TRIREME_OVERSUBSCRIBE"), "1");
  EXPECT_EQ(shared.ranks[2].device, "GPU 0");
  const LocalJob enough = Job({"--oversubscribe"}, {{"0", "1"}, 2, "localhost"}, {"node7", 8, false});
  EXPECT_FALSE(enough.ranks[0].environment.contains("TRIREME_OVERSUBSCRIBE"));
  const LocalJob cpu = Job({"--oversubscribe"}, {{}, 3, "localhost"}, {"node7", 8, false});
  EXPECT_FALSE(cpu.ranks[0].environment.contains("TRIREME_OVERSUBSCRIBE"));
}

TEST(Job, ShownRanks) {
  const DeviceChoice choice{{}, 4, "localhost"};
  const Surroundings around{"node7", 8, false};
  EXPECT_EQ(Job({}, choice, around).shown_ranks, std::set<int>{0});
  EXPECT_EQ(Job({"--tee_ranks", "1,2-3"}, choice, around).shown_ranks, (std::set<int>{1, 2, 3}));
  EXPECT_EQ(Job({"--tee_ranks", "all"}, choice, around).shown_ranks.size(), 4U);
  EXPECT_TRUE(Job({"--enable_each_rank_log", "d"}, choice, around).shown_ranks.empty());
  EXPECT_THROW(Job({"--tee_ranks", "4"}, choice, around), Error);
}

}  // namespace
}  // namespace trireme::launcher
