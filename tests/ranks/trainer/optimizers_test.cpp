// Adagrad, Lion and Lamb in every kind of layout: the same training as on one rank, in double precision; resumed, the
// same bits. Lamb's norms are over whole tensors, whoever holds which part.
#include <gtest/gtest.h>

#include "tests/ranks/trainer/folder.h"
#include "tests/ranks/trainer/trains_alike.h"

namespace trireme::test {
namespace {

OptimizerConfig OptimizerOf(OptimizerType type) {
  OptimizerConfig optimizer;
  optimizer.type = type;
  optimizer.lr = type == OptimizerType::kLion ? 3e-4 : 1e-2;
  optimizer.betas = {0.9, 0.99};
  optimizer.weight_decay = 0.1;
  optimizer.lr_decay = 0.05;
  optimizer.initial_accumulator_value = 1e-3;
  optimizer.decoupled_weight_decay = type != OptimizerType::kAdagrad;
  return optimizer;
}

TinyRun Base(OptimizerType type) {
  TinyRun run{.accumulation = 2, .global_batch = 24, .steps = 6, .heads = 6};
  run.optimizer = OptimizerOf(type);
  return run;
}

const Reference& OneRank(OptimizerType type) {
  static const Reference adagrad = ReferenceOf(Base(OptimizerType::kAdagrad)),
                         lion = ReferenceOf(Base(OptimizerType::kLion)), lamb = ReferenceOf(Base(OptimizerType::kLamb));
  return type == OptimizerType::kAdagrad ? adagrad : type == OptimizerType::kLion ? lion : lamb;
}

struct Layout {
  OptimizerType type;
  int tp, pp, dp, stage;
  bool offload = false;  // of the optimizer; Lamb: of the weights, which leaves its norms on the device
};

// Lamb in all products; the others, whose update sees nothing but its own elements, in some.
std::vector<Layout> Layouts() {
  std::vector<Layout> layouts;
  for (const int dp : {1, 2, 3}) {
    for (int stage = 0; stage <= (dp > 1 ? 3 : 0); ++stage) {
      for (const auto& [tp, pp] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
        if (tp * pp * dp > 1) layouts.push_back({OptimizerType::kLamb, tp, pp, dp, stage});
      }
      for (const OptimizerType type : {OptimizerType::kAdagrad, OptimizerType::kLion}) {
        if (dp > 1 || stage > 0) layouts.push_back({type, 1, 1, dp, stage});
        if (dp == 1 + stage % 2) layouts.push_back({type, 2, 2, dp, stage});
      }
    }
  }
  for (const OptimizerType type : {OptimizerType::kAdagrad, OptimizerType::kLion, OptimizerType::kLamb}) {
    layouts.push_back({type, 1, 1, 1, 3, true});
    layouts.push_back({type, 2, 2, 2, 3, true});
  }
  return layouts;
}

class OptimizerEquality : public ::testing::TestWithParam<Layout> {};

TEST_P(OptimizerEquality, EqualsOneRankInFp64) {
  const Layout layout = GetParam();
  const Reference& one_rank = OneRank(layout.type);
  TinyRun run = one_rank.run;
  run.world = layout.tp * layout.pp * layout.dp;
  run.tp = layout.tp;
  run.pp = layout.pp;
  run.zero_stage = layout.stage;
  if (layout.type == OptimizerType::kLamb) {
    run.offload_param = layout.offload;
  } else {
    run.offload_optimizer = layout.offload ? 0.5 : 0;
  }
  run.sequence_parallel = layout.tp > 1 && layout.stage % 2 == 1;
  ExpectTrainsAlike(Train(run), one_rank.curve);
}

INSTANTIATE_TEST_SUITE_P(Layouts, OptimizerEquality, ::testing::ValuesIn(Layouts()), [](const auto& layout) {
  const Layout& l = layout.param;
  return std::string(Name(l.type)) + "Tp" + std::to_string(l.tp) + "Pp" + std::to_string(l.pp) + "Dp" +
         std::to_string(l.dp) + "Zero" + std::to_string(l.stage) + (l.offload ? "Offload" : "");
});

class OptimizerResume : public ::testing::TestWithParam<OptimizerType> {};

TEST_P(OptimizerResume, SameLayoutIsBitwise) {
  const Folder folder;
  TinyRun whole = Base(GetParam());
  whole.fp64 = false;
  whole.bf16 = GetParam() == OptimizerType::kLamb;  // separate masters
  whole.world = 4;
  whole.zero_stage = 2;
  whole.tp = 2;
  TinyRun first = whole, second = whole;
  first.steps = 3;
  first.save = second.load = folder.path;
  const Curve want = Train(whole), begun = Train(first), got = Train(second);
  ASSERT_EQ(want.failed + begun.failed + got.failed, "");
  EXPECT_EQ(got.losses, std::vector<double>(want.losses.begin() + 3, want.losses.end()));
  EXPECT_EQ(got.weights, want.weights);
  EXPECT_TRUE(want.replicas_equal);
}

INSTANTIATE_TEST_SUITE_P(Types, OptimizerResume,
                         ::testing::Values(OptimizerType::kAdagrad, OptimizerType::kLion, OptimizerType::kLamb),
                         [](const auto& type) { return std::string(Name(type.param)); });

// Checkpoints hold what the rule keeps under the names that PyTorch and DeepSpeed have for it.
TEST(Optimizers, OtherLayoutsResumeLamb) {
  const Folder folder;
  TinyRun first = Base(OptimizerType::kLamb);
  first.world = 4;
  first.zero_stage = 3;
  first.tp = 2;
  const Curve want = Train(first);
  first.steps = 3;
  first.save = folder.path;
  ASSERT_EQ(Train(first).failed, "");
  TinyRun other = Base(OptimizerType::kLamb);
  other.world = 6;
  other.pp = 2;
  other.zero_stage = 1;
  other.load = folder.path;
  const Curve got = Train(other);
  ASSERT_EQ(got.failed, "");
  EXPECT_LE(RelativeDifference(got.losses, std::vector<double>(want.losses.begin() + 3, want.losses.end())), 1e-12);
  EXPECT_LE(WeightDifference(got.weights, want.weights), 1e-12);
}

// Lamb's own collectives: a step has one of norms for each bucket over dp, and one over tp.
TEST(Optimizers, DroppedAndCorruptedNormsAreNoticed) {
  TinyRun alone = Base(OptimizerType::kLamb);
  alone.optimizer->max_coeff = 1e6;  // so that no bound hides a norm
  alone.optimizer->min_coeff = 0;
  alone.steps = 2;
  TinyRun run = alone;
  run.world = 4;
  run.tp = 2;
  run.zero_stage = 2;  // gradients travel in reduce-scatters: every all-reduce over dp is of norms
  const Curve want = Train(alone);
  const auto counting = MakeInProcessWorld(run.world);
  ExpectTrainsAlike(Train(run, counting), want);
  int64_t tried = 0;
  for (const OperationCount& operation : OperationsOfTraining(*counting)) {
    if (operation.op != OpKind::kAllReduce || !operation.group.starts_with("dp") || operation.rank > 1) continue;
    for (int64_t nth = 0; nth < operation.count / 2; ++nth) {  // of the first step: its weights decide the second loss
      for (const Fault::Kind kind : {Fault::Kind::kDrop, Fault::Kind::kCorrupt}) {
        // Of embedding and head some ranks hold no part of a tensor, or padding alone: they have nothing to miss.
        const bool of_block = nth > 0 && nth + 1 < operation.count / 2;
        if (kind == Fault::Kind::kDrop && !of_block) continue;
        const auto world = MakeInProcessWorld(run.world);
        world->Inject({.group = operation.group,
                       .op = operation.op,
                       .rank = operation.rank,
                       .nth = nth,
                       .kind = kind,
                       .element = 0,
                       .amount = 1e-3});
        const Curve got = Train(run, world);
        EXPECT_EQ(world->FaultsHit(), 1);
        EXPECT_FALSE(got.failed.empty() && got.replicas_equal && RelativeDifference(got.losses, want.losses) <= 1e-12 &&
                     WeightDifference(got.weights, want.weights) <= 1e-12)
            << operation.group << " #" << nth << (kind == Fault::Kind::kDrop ? " dropped" : " corrupted");
        ++tried;
      }
    }
  }
  EXPECT_GE(tried, 8);
}

}  // namespace
}  // namespace trireme::test
