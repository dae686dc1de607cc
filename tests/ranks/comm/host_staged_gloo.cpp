// Host-staged communication between processes, over Gloo; streams are threads.
#include <ATen/ops/zeros.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>

#include "engine/base/error.h"
#include "engine/comm/host_staged.h"
#include "tests/ranks/comm/operations.h"
#include "tests/support/run_ranks.h"
#include "tests/support/thread_device.h"

namespace trireme::test {
namespace {

using std::chrono::milliseconds;

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::unique_ptr<Communicator> Stage(std::unique_ptr<Communicator> host, int64_t staging_bytes = kStagingBytes) {
  return MakeHostStagedCommunicator(std::move(host), std::make_unique<ThreadStagingDevice>(ThreadDeviceOptions{}),
                                    staging_bytes);
}

TEST(HostStagedGloo, EveryOperationEqualsPlainSums) {
  EXPECT_EQ("", RunRanks(2, 120, [](RankContext& ctx) {
              const auto dp = Stage(ctx.MakeGloo("dp0"), 4096);
              CheckReductions(*dp, 1021, at::kFloat);
              CheckCopies(*dp, 1021, at::kBFloat16);
              dp->Barrier();
            }));
}

TEST(HostStagedGloo, StreamsGoOnWhileTheHostsExchange) {
  EXPECT_EQ("", RunRanks(2, 120, [](RankContext& ctx) {
              const auto dp = Stage(ctx.MakeGloo("dp0"), 4096);
              std::vector<at::Tensor> tensors;
              ThreadStream stream;
              for (int i = 0; i < 20; ++i) {
                tensors.push_back(Values(ctx.rank, 1021, at::kFloat, i));
                dp->AllReduce(tensors.back(), ReduceOp::kSum, &stream);
              }
              stream.Drain();
              for (int i = 0; i < 20; ++i) {
                EXPECT_TRUE(tensors[static_cast<size_t>(i)].equal(Reduced(2, 1021, at::kFloat, ReduceOp::kSum, i)));
              }
            }));
}

TEST(HostStagedGloo, HNG_07_AKilledProcessIsNamedAndNoStreamHangs) {
  const std::string failed = RunRanks(2, 60, [](RankContext& ctx) {
    const auto dp = Stage(ctx.MakeGloo("dp0", milliseconds(50'000)));
    const at::Tensor tensor = at::zeros({8});
    ThreadStream stream;
    dp->Barrier();
    if (ctx.rank == 1) kill(getpid(), SIGKILL);
    std::string text;
    try {
      dp->AllReduce(tensor, ReduceOp::kSum, &stream);
      stream.Drain();
      dp->CheckHealth();
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_TRUE(Contains(text, "COM014") && Contains(text, "all_reduce #1 fp32[8]")) << text;
    EXPECT_TRUE(Contains(text, "or ended: rank 1")) << text;
  });
  EXPECT_EQ(failed, "rank 1 killed by signal 9 (Killed)\n");
}

}  // namespace
}  // namespace trireme::test
