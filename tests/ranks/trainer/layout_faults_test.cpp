// In layouts of tensor, sequence and pipeline parallelism: dropping or corrupting one collective of any kind makes the
// comparison with one rank fail; a gradient that is not finite on one rank is seen by all; delays change no bit.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "engine/base/error.h"
#include "tests/ranks/trainer/layouts.h"
#include "tests/ranks/trainer/trains_alike.h"
#include "tests/support/run_threads.h"

namespace trireme::test {
namespace {

constexpr PipelineSchedule kGPipe = PipelineSchedule::kGPipe, kZeroBubble = PipelineSchedule::kZeroBubble;

// Two steps: a dropped transfer leaves what memory held, which after one step would be what the run before received.
TinyRun Short(TinyModel model) {
  TinyRun run = OneRankRun(model, /*sgd=*/true);
  run.steps = 2;
  run.model->num_layers = 2;
  return run;
}

TinyRun ShortRunOf(const Layout& layout) {
  const TinyRun one = Short(layout.model);
  TinyRun run = RunOf(layout, one);
  run.model->num_layers = one.model->num_layers;
  // A fault may show one rank alone a value that is not finite: it would look for it while the others go on, and wait.
  run.find_bad_value = false;
  return run;
}

// The check of the equality tests; NaN and thrown errors fail it too.
bool EqualsOneRank(const Curve& got, const Curve& want) {
  return got.failed.empty() && got.ranks_agree && got.replicas_equal &&
         RelativeDifference(got.losses, want.losses) <= 1e-12 && RelativeDifference(got.norms, want.norms) <= 1e-12 &&
         WeightDifference(got.weights, want.weights) <= 1e-12;
}

struct Family {
  Layout layout;
  std::set<std::string> kinds;  // of collectives, as groups without their number and operations
};

const Family kFamilies[] = {
    {{.tp = 2}, {"tp all_reduce", "world all_reduce"}},
    {{.tp = 2, .sequence_parallel = true, .model = TinyModel::kGptUntied},
     {"tp all_gather", "tp all_reduce", "tp reduce_scatter", "world all_reduce"}},
    {{.tp = 3, .model = TinyModel::kLlama}, {"tp all_reduce", "world all_reduce"}},
    {{.pp = 2}, {"pp recv", "pp send", "tie all_reduce", "world all_reduce"}},
    {{.pp = 2, .schedule = kZeroBubble, .model = TinyModel::kLlama}, {"pp recv", "pp send", "world all_reduce"}},
    {{.pp = 2, .virtual_stages = 2, .model = TinyModel::kGptUntied}, {"pp recv", "pp send", "world all_reduce"}},
    {{.dp = 2, .tp = 2, .zero_stage = 3, .offload = Offload::kOptimizerAndWeights},
     {"dp all_gather", "dp reduce_scatter", "tp all_reduce", "world all_reduce"}},
    {{.dp = 2, .tp = 2, .pp = 2, .zero_stage = 0, .schedule = kGPipe},
     {"dp all_reduce", "pp recv", "pp send", "tie all_reduce", "tp all_reduce", "world all_reduce"}},
    {{.dp = 2, .tp = 2, .pp = 2, .sequence_parallel = true, .zero_stage = 1},
     {"dp all_gather", "dp reduce_scatter", "pp recv", "pp send", "tie all_reduce", "tp all_gather", "tp all_reduce",
      "tp reduce_scatter", "world all_reduce"}},
    {{.dp = 2, .tp = 2, .pp = 2, .zero_stage = 2, .schedule = kZeroBubble},
     {"dp all_gather", "dp reduce_scatter", "pp recv", "pp send", "tie all_reduce", "tp all_reduce",
      "world all_reduce"}},
    {{.dp = 2, .tp = 2, .pp = 2, .sequence_parallel = true, .zero_stage = 3, .model = TinyModel::kGptUntied},
     {"dp all_gather", "dp reduce_scatter", "pp recv", "pp send", "tp all_gather", "tp all_reduce", "tp reduce_scatter",
      "world all_reduce"}},
};

std::string KindOf(const OperationCount& operation) {
  std::string group = operation.group;
  while (!group.empty() && (std::isdigit(group.back()) || group.back() == '_')) group.pop_back();
  return group + " " + std::string(Name(operation.op));
}

// Up to three ranks: all. More: of each kind those of the first and of the last rank.
std::vector<OperationCount> Chosen(const std::vector<OperationCount>& all, int world) {
  if (world <= 3) return all;
  std::map<std::string, std::vector<OperationCount>> by_kind;
  for (const OperationCount& operation : all) by_kind[KindOf(operation)].push_back(operation);
  std::vector<OperationCount> chosen;
  for (const auto& [kind, operations] : by_kind) {
    chosen.push_back(operations.front());
    if (operations.size() > 1) chosen.push_back(operations.back());
  }
  return chosen;
}

// Two ranks: all of the first step, and the last. More: the first, one in the middle, the last.
std::vector<int64_t> ChosenNumbers(int64_t count, int world) {
  std::set<int64_t> numbers{0, count / 2, count - 1};
  if (world <= 2) {
    for (int64_t n = 0; n < (count + 1) / 2; ++n) numbers.insert(n);
  }
  return {numbers.begin(), numbers.end()};
}

class LayoutFaults : public ::testing::TestWithParam<size_t> {
 protected:
  const Family& family() const { return kFamilies[GetParam()]; }

  // Corrupts elements all over the tensor, for a gathered embedding is read in part only: the rows of the micro-batch's
  // tokens.
  bool Noticed(const TinyRun& run, const Curve& want, const OperationCount& operation, int64_t nth, Fault::Kind kind) {
    const auto world = MakeInProcessWorld(run.world);
    const int64_t faults = kind == Fault::Kind::kCorrupt ? 40 : 1;
    for (int64_t i = 0; i < faults; ++i) {
      world->Inject({.group = operation.group,
                     .op = operation.op,
                     .rank = operation.rank,
                     .nth = nth,
                     .kind = kind,
                     .element = 25 * i,
                     .amount = 1e-3});
    }
    const Curve got = Train(run, world);
    EXPECT_EQ(world->FaultsHit(), faults);
    return !EqualsOneRank(got, want);
  }
};

TEST_P(LayoutFaults, EachKindOfCollectiveIsNoticed) {
  const TinyRun run = ShortRunOf(family().layout);
  const Curve want = Train(Short(family().layout.model));
  const auto counting = MakeInProcessWorld(run.world);
  const Curve got = Train(run, counting);
  ASSERT_TRUE(EqualsOneRank(got, want)) << got.failed;
  std::set<std::string> kinds;
  for (const OperationCount& operation : OperationsOfTraining(*counting)) kinds.insert(KindOf(operation));
  EXPECT_EQ(kinds, family().kinds);
  int64_t tried = 0;
  for (const OperationCount& operation : Chosen(OperationsOfTraining(*counting), run.world)) {
    for (const int64_t nth : ChosenNumbers(operation.count, run.world)) {
      for (const Fault::Kind kind : {Fault::Kind::kDrop, Fault::Kind::kCorrupt}) {
        EXPECT_TRUE(Noticed(run, want, operation, nth, kind))
            << Name(operation.op) << " #" << nth << " of rank " << operation.rank << " in " << operation.group
            << (kind == Fault::Kind::kDrop ? " dropped" : " corrupted");
        ++tried;
      }
    }
  }
  RecordProperty("faults", std::to_string(tried));
}

// One rank's gradient becomes infinite in the second step: every rank ends it with the same error, and no weight moves.
TEST_P(LayoutFaults, OneRanksOverflowIsSeenByAll) {
  for (const bool fp64 : {true, false}) {
    for (int bad = 0; bad < family().layout.world(); ++bad) {
      TinyRun run = ShortRunOf(family().layout);
      run.fp64 = fp64;
      run.steps = 1;
      const Curve one_step = Train(run);
      std::vector<std::unique_ptr<Trainer>> trainers(static_cast<size_t>(run.world));
      std::vector<std::string> errors(static_cast<size_t>(run.world));
      run.before_instruction = [&](int rank, const Instruction& instruction) {
        Trainer& trainer = *trainers[static_cast<size_t>(rank)];
        // Whole gradients are replicas once they are reduced.
        const Op before = run.world > run.tp * run.pp && run.zero_stage == 0 ? Op::kReduce : Op::kStepStats;
        if (rank != bad || instruction.op != before || trainer.steps_finished() == 0) return;
        for (const OwnedSlice& slice : trainer.state().OwnedSlices()) {
          const bool block = trainer.plan().units[static_cast<size_t>(slice.unit)].spec.kind == UnitKind::kBlock;
          if (!block || (run.tp > 1 && !slice.segment->parameter.split())) continue;
          if (before == Op::kReduce && (slice.unit < instruction.units.first || slice.unit > instruction.units.last)) {
            continue;
          }
          trainer.state()
              .own_gradient(slice.unit)
              .narrow(0, slice.own_begin, 1)
              .fill_(std::numeric_limits<double>::infinity());
          return;
        }
      };
      EXPECT_EQ(RunThreadRanks(run.world,
                               [&](ThreadRank& self) {
                                 RankWorld world;
                                 world.rank = self.rank;
                                 world.world_size = self.world;
                                 world.world = self.MakeCommunicator("world");
                                 world.make_group = self.GroupMaker();
                                 auto& trainer = trainers[static_cast<size_t>(self.rank)];
                                 trainer = std::make_unique<Trainer>(SetupOf(run, self.rank), std::move(world));
                                 std::vector<double> losses, norms;
                                 TrainRank(run, *trainer, losses, norms);
                                 trainer->StartStep(SyntheticFill(*trainer));
                                 try {
                                   trainer->FinishStep();
                                 } catch (const Error& error) {
                                   errors[static_cast<size_t>(self.rank)] = error.id();
                                 }
                                 trainer->executor().Drain();
                               }),
                "");
      Weights weights;
      for (const auto& trainer : trainers) Collect(*trainer, weights);
      EXPECT_EQ(weights, one_step.weights) << "rank " << bad;
      EXPECT_EQ(errors, std::vector<std::string>(static_cast<size_t>(run.world), "TRN005")) << "rank " << bad;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, LayoutFaults, ::testing::Range<size_t>(0, std::size(kFamilies)),
                         [](const auto& family) { return Name(kFamilies[family.param].layout); });

const Layout kDelayed[] = {
    {.dp = 3, .zero_stage = 3},
    {.dp = 2, .tp = 2, .zero_stage = 2, .offload = Offload::kOptimizer},
    {.dp = 2, .pp = 2, .zero_stage = 3, .offload = Offload::kOptimizerAndWeights, .model = TinyModel::kLlama},
    {.dp = 2, .tp = 2, .pp = 2, .sequence_parallel = true, .zero_stage = 3},
    {.dp = 2, .tp = 2, .pp = 2, .zero_stage = 1, .schedule = kGPipe, .model = TinyModel::kLlama},
    {.dp = 2, .pp = 4, .zero_stage = 2, .recompute = Recompute::kFull, .schedule = kZeroBubble},
    {.pp = 3, .virtual_stages = 2, .model = TinyModel::kGptUntied},
    {.tp = 6, .sequence_parallel = true, .model = TinyModel::kQwen},
};

// One source of random numbers a rank, which its lanes share.
class RandomPauses {
 public:
  RandomPauses(int ranks, unsigned seed) : generators_(static_cast<size_t>(ranks)) {
    for (std::mt19937& generator : generators_) generator.seed(seed++);
  }
  void operator()(int rank) {
    int64_t microseconds = 0;
    {
      const std::lock_guard lock(mutex_);
      std::mt19937& generator = generators_[static_cast<size_t>(rank)];
      if (generator() % 6 == 0) microseconds = static_cast<int64_t>(generator() % 1500);
    }
    if (microseconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  }

 private:
  std::mutex mutex_;
  std::vector<std::mt19937> generators_;
};

class LayoutDelays : public ::testing::TestWithParam<size_t> {};

// Before instructions on every lane and before operations of every communicator.
TEST_P(LayoutDelays, ChangeNoBit) {
  const TinyRun run = RunOf(kDelayed[GetParam()], [] {
    TinyRun one = OneRankRun(kDelayed[GetParam()].model, /*sgd=*/false);
    one.steps = 3;
    return one;
  }());
  const Curve want = Train(run);
  ASSERT_EQ(want.failed, "");
  for (const unsigned seed : {1u, 2u}) {
    const auto world = MakeInProcessWorld(run.world, std::chrono::seconds(60));
    std::mt19937 generator(seed);
    for (int i = 0; i < 40; ++i) {
      world->Inject({.rank = static_cast<int>(generator() % static_cast<unsigned>(run.world)),
                     .nth = static_cast<int64_t>(generator() % 200),
                     .kind = Fault::Kind::kDelay,
                     .delay = std::chrono::milliseconds(generator() % 4)});
    }
    TinyRun delayed = run;
    const auto pauses = std::make_shared<RandomPauses>(run.world, seed);
    std::set<Lane> lanes;
    std::mutex mutex;
    delayed.before_instruction = [&, pauses](int rank, const Instruction& instruction) {
      {
        const std::lock_guard lock(mutex);
        lanes.insert(instruction.lane);
      }
      (*pauses)(rank);
    };
    const Curve got = Train(delayed, world);
    ASSERT_EQ(got.failed, "");
    EXPECT_GT(world->FaultsHit(), 3);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.norms, want.norms);
    EXPECT_EQ(got.weights, want.weights);
    for (const Lane lane : {Lane::kCompute, Lane::kDp, Lane::kUp, Lane::kDown}) EXPECT_TRUE(lanes.contains(lane));
    EXPECT_EQ(lanes.contains(Lane::kPp), run.pp > 1);
    EXPECT_EQ(lanes.contains(Lane::kCpu), run.offload_optimizer > 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayoutDelays, ::testing::Range<size_t>(0, std::size(kDelayed)),
                         [](const auto& layout) { return Name(kDelayed[layout.param]); });

}  // namespace
}  // namespace trireme::test
