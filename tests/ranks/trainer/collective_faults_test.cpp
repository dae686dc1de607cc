// Dropping or corrupting any one collective of a run makes the comparison with one rank fail; delays change nothing.
#include <gtest/gtest.h>

#include "tests/ranks/trainer/tiny_run.h"

namespace trireme::test {
namespace {

class CollectiveFaults : public ::testing::TestWithParam<int> {};

TinyRun RunOf(int stage) {
  TinyRun run{.world = 2, .zero_stage = stage, .accumulation = 2, .global_batch = 8, .steps = 3, .sgd = true};
  // A fault may show one rank alone a value that is not finite: it would look for it while the others go on, and wait.
  run.find_bad_value = false;
  return run;
}

// The same check that the equality tests make; NaN and thrown errors fail it too.
bool EqualsOneRank(const Curve& got, const Curve& want) {
  return got.failed.empty() && got.ranks_agree && got.replicas_equal &&
         RelativeDifference(got.losses, want.losses) <= 1e-12 && RelativeDifference(got.norms, want.norms) <= 1e-12 &&
         WeightDifference(got.weights, want.weights) <= 1e-12;
}

// A gathered embedding is read in part only: by the head its token table (element 0), by the embedding its position
// table (element 1536) and the rows of the micro-batch's tokens. So a corrupted collective is noticed if one of the two
// elements is.
bool Noticed(const TinyRun& run, const Curve& want, const OperationCount& operation, int64_t nth, Fault::Kind kind) {
  for (const int64_t element : {1536, 0}) {
    const auto world = MakeInProcessWorld(run.world);
    world->Inject({.group = operation.group,
                   .op = operation.op,
                   .rank = operation.rank,
                   .nth = nth,
                   .kind = kind,
                   .element = element,
                   .amount = 1e-3});
    const Curve got = Train(run, world);
    EXPECT_EQ(world->FaultsHit(), 1);
    if (!EqualsOneRank(got, want)) return true;
    if (kind == Fault::Kind::kDrop) return false;
  }
  return false;
}

TEST_P(CollectiveFaults, EachOneIsNoticed) {
  const TinyRun run = RunOf(GetParam());
  TinyRun alone = run;
  alone.world = 1;
  alone.zero_stage = 0;
  const Curve want = Train(alone);

  const auto counting = MakeInProcessWorld(2);
  ASSERT_TRUE(EqualsOneRank(Train(run, counting), want));
  int64_t tried = 0;
  for (const OperationCount& operation : OperationsOfTraining(*counting)) {
    for (int64_t nth = 0; nth < operation.count; ++nth) {
      for (const Fault::Kind kind : {Fault::Kind::kDrop, Fault::Kind::kCorrupt}) {
        EXPECT_TRUE(Noticed(run, want, operation, nth, kind))
            << Name(operation.op) << " #" << nth << " of rank " << operation.rank << " in " << operation.group
            << (kind == Fault::Kind::kDrop ? " dropped" : " corrupted") << ", ZeRO-" << GetParam();
        ++tried;
      }
    }
  }
  RecordProperty("faults", std::to_string(tried));
  EXPECT_GT(tried, 20);
}

TEST_P(CollectiveFaults, DelaysChangeNothing) {
  const TinyRun run = RunOf(GetParam());
  const Curve want = Train(run);
  for (int64_t nth = 0; nth < 6; ++nth) {
    const auto world = MakeInProcessWorld(2);
    world->Inject({.rank = static_cast<int>(nth % 2),
                   .nth = nth,
                   .kind = Fault::Kind::kDelay,
                   .delay = std::chrono::milliseconds(15)});
    const Curve got = Train(run, world);
    EXPECT_EQ(got.failed, "");
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.weights, want.weights);
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, CollectiveFaults, ::testing::Values(0, 1, 2, 3), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace trireme::test
