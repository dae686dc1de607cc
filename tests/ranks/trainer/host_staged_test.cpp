// Training over host-staged communication, without a GPU: the same bits as over the communicators below it, and an
// error instead of a hang when a rank fails.
#include <gtest/gtest.h>

#include "engine/comm/host_staged.h"
#include "tests/ranks/trainer/trains_alike.h"
#include "tests/support/thread_device.h"

namespace trireme::test {
namespace {

struct Layout {
  const char* name;
  TinyRun run;
};

// Parts of 1000 bytes: every bucket takes several.
TinyRun Staged(TinyRun run) {
  run.carry = [](std::unique_ptr<Communicator> host) {
    return MakeHostStagedCommunicator(std::move(host), std::make_unique<ThreadStagingDevice>(ThreadDeviceOptions{}),
                                      1000);
  };
  return run;
}

const std::vector<Layout>& Layouts() {
  static const std::vector<Layout> layouts = {
      {"tp2_sequence", {.world = 2, .accumulation = 3, .clip = 0.5, .heads = 4, .tp = 2, .sequence_parallel = false}},
      {"pp2", {.world = 2, .accumulation = 6, .clip = 0.5, .pp = 2}},
      {"zero1", {.world = 2, .zero_stage = 1, .accumulation = 3, .clip = 0.5}},
      {"zero3", {.world = 2, .zero_stage = 3, .accumulation = 3, .clip = 0.5, .evaluates = true}},
      {"tp2_pp2_bf16",
       {.world = 4, .accumulation = 6, .fp64 = false, .bf16 = true, .clip = 0.5, .heads = 4, .tp = 2, .pp = 2}},
  };
  return layouts;
}

class HostStagedTraining : public ::testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, HostStagedTraining, ::testing::ValuesIn(Layouts()),
                         [](const auto& layout) { return layout.param.name; });

TEST_P(HostStagedTraining, EqualsTheCommunicatorsBelowItBitwise) {
  const Curve want = Train(GetParam().run), got = Train(Staged(GetParam().run));
  ASSERT_EQ(want.failed, "");
  ASSERT_EQ(got.failed, "");
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.weights, want.weights);
  EXPECT_TRUE(got.ranks_agree);
}

TEST_P(HostStagedTraining, ARankThatFailsIsNamed) {
  const auto comms = MakeInProcessWorld(GetParam().run.world, std::chrono::seconds(60));
  comms->Inject({.op = OpKind::kAllReduce, .rank = 1, .nth = 5, .kind = Fault::Kind::kThrow});
  const Curve curve = Train(Staged(GetParam().run), comms);
  EXPECT_NE(curve.failed.find("rank 1"), std::string::npos) << curve.failed;
  EXPECT_NE(curve.failed.find("COM015"), std::string::npos) << curve.failed;
  EXPECT_NE(curve.failed.find("all_reduce #"), std::string::npos) << curve.failed;
}

}  // namespace
}  // namespace trireme::test
