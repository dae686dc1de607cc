// Dynamic batching: however a step's samples are cut into micro-batches, and on whatever ranks, it is the step of one
// large padded batch, in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/optim/lr_schedule.h"
#include "tests/ranks/trainer/folder.h"
#include "tests/ranks/trainer/trains_alike.h"

namespace trireme::test {
namespace {

constexpr int64_t kPacks = 6, kMaxTokens = 48, kLongest = 16, kSamples = 150;

uint64_t Next(uint64_t& x) { return (x = x * 6364136223846793005ull + 1442695040888963407ull) >> 33; }

// Many short ones, some long ones.
class Sentences final : public data::SequenceSource {
 public:
  Sentences() {
    uint64_t x = 99;
    for (int64_t i = 0; i < kSamples; ++i) {
      const auto draw = static_cast<int64_t>(Next(x) % 100);
      lengths_.push_back(draw < 70 ? 1 + draw % 6 : 7 + draw % 9);
    }
  }
  int64_t num_samples() const override { return kSamples; }
  int64_t Length(int64_t sample) const override { return lengths_[static_cast<size_t>(sample)]; }
  void Read(int64_t sample, std::span<int32_t> ids) const override {
    uint64_t x = static_cast<uint64_t>(sample) * 2654435761u + 12345;
    for (int32_t& id : ids) id = static_cast<int32_t>(Next(x) % 61);
  }

 private:
  std::vector<int64_t> lengths_;
};

std::shared_ptr<const data::DynamicBatches> Batches(bool repeats = true) {
  return std::make_shared<const data::DynamicBatches>(std::make_shared<Sentences>(),
                                                      data::DynamicBatchOptions{.packs = kPacks,
                                                                                .max_tokens = kMaxTokens,
                                                                                .longest = kLongest,
                                                                                .length_multiple = 8,
                                                                                .order = data::StreamOrder::kRandom,
                                                                                .repeats = repeats});
}

// The trainer's own way: every rank computes the step.
TinyRun Sampled(TinyRun run) {
  run.global_batch = kPacks;
  run.max_tokens = kMaxTokens;
  run.next = [source = Batches()](const Trainer& trainer) {
    return trainer.BatchFrom(source, trainer.consumed_samples());
  };
  return run;
}

// One rank with the same samples in micro-batches of `rows` each, all padded to the longest there can be.
TinyRun Cut(TinyRun run, int64_t rows) {
  constexpr int64_t kMost = 60;  // more than any step has
  run.global_batch = (kMost + rows - 1) / rows;
  run.max_tokens = rows * kLongest;
  const RateScaling scaling = run.scaling;
  const int64_t micro_batches = run.global_batch;
  run.next = [source = Batches(), rows, scaling, micro_batches](const Trainer& trainer) {
    const data::DynamicStep step = source->At(trainer.consumed_samples());
    auto cut = std::make_shared<data::DynamicStep>();
    cut->samples = step.samples;
    StepBatch batch;
    for (int64_t m = 0; m < micro_batches; ++m) {
      const int64_t left = std::clamp<int64_t>(step.num_samples() - m * rows, 0, rows);
      cut->packs.push_back(left > 0 ? MicroBatchShape{left, kLongest, m * rows} : MicroBatchShape{1, 8, kMost});
    }
    batch.shapes = cut->packs;
    batch.num_samples = step.num_samples();
    batch.rate_factor = RateFactor(scaling, step.num_samples(), kPacks);
    batch.fill = [source, cut](int64_t m, const at::Tensor& ids) {
      source->Fill(*cut, m, {ids.mutable_data_ptr<int32_t>(), static_cast<size_t>(ids.numel())});
    };
    return batch;
  };
  return run;
}

TinyRun Base(bool sgd) {
  TinyRun run{.steps = 5, .sgd = sgd, .clip = sgd ? 0 : 0.5};
  run.layers = 4;
  run.heads = 2;
  run.scaling = RateScaling::kSqrt;
  run.dropout = 0.1;
  return run;
}

// All samples of a step in one micro-batch.
const Curve& OneBatch(bool sgd) {
  static const Curve with_sgd = Train(Cut(Base(true), 60)), with_adamw = Train(Cut(Base(false), 60));
  return sgd ? with_sgd : with_adamw;
}

// What the tests below train on: long rows and short ones in one step, more samples in one step than in another.
TEST(DynamicBatches, StepsHaveMicroBatchesOfDifferentShapes) {
  const auto source = Batches();
  std::set<int64_t> samples;
  for (int64_t position = 0; position < kSamples; position += source->At(position).num_samples()) {
    const data::DynamicStep step = source->At(position);
    EXPECT_NE(step.packs.front().length, step.packs.back().length);
    samples.insert(step.num_samples());
  }
  EXPECT_GT(samples.size(), 2u);
  EXPECT_LE(*samples.rbegin(), 60);
}

class DynamicSplits : public ::testing::TestWithParam<int64_t> {};

TEST_P(DynamicSplits, AreOnePaddedBatch) { ExpectTrainsAlike(Train(Cut(Base(true), GetParam())), OneBatch(true)); }

INSTANTIATE_TEST_SUITE_P(Rows, DynamicSplits, ::testing::Values(1, 7, 20));

struct Layout {
  int dp, tp, pp, virtual_stages, stage;
  bool sequence_parallel;
  PipelineSchedule schedule;
  Recompute recompute;
};

constexpr PipelineSchedule kGPipe = PipelineSchedule::kGPipe, k1F1B = PipelineSchedule::kOneForwardOneBackward,
                           kZeroBubble = PipelineSchedule::kZeroBubble;

std::vector<Layout> Layouts() {
  const Recompute none = Recompute::kNone, full = Recompute::kFull;
  return {{1, 1, 1, 1, 0, false, k1F1B, none},      {1, 1, 1, 1, 0, false, k1F1B, full},
          {2, 1, 1, 1, 0, false, k1F1B, none},      {2, 1, 1, 1, 1, false, k1F1B, none},
          {2, 1, 1, 1, 2, false, k1F1B, full},      {2, 1, 1, 1, 3, false, k1F1B, none},
          {3, 1, 1, 1, 2, false, k1F1B, none},      {3, 1, 1, 1, 3, false, k1F1B, full},
          {1, 1, 2, 1, 0, false, kGPipe, none},     {1, 1, 2, 1, 0, false, k1F1B, none},
          {1, 1, 2, 2, 0, false, k1F1B, full},      {1, 1, 2, 1, 0, false, kZeroBubble, none},
          {1, 2, 1, 1, 0, false, k1F1B, none},      {1, 2, 1, 1, 0, true, k1F1B, none},
          {2, 2, 1, 1, 3, true, k1F1B, full},       {2, 1, 2, 1, 1, false, k1F1B, none},
          {1, 2, 2, 1, 0, true, kZeroBubble, none}, {2, 2, 2, 1, 2, true, k1F1B, none}};
}

class DynamicLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(DynamicLayouts, EqualOneRankWithOnePaddedBatch) {
  const Layout layout = GetParam();
  const bool sgd = layout.stage % 2 == 0;
  TinyRun run = Sampled(Base(sgd));
  run.world = layout.dp * layout.tp * layout.pp;
  run.tp = layout.tp;
  run.pp = layout.pp;
  run.virtual_stages = layout.virtual_stages;
  run.zero_stage = layout.stage;
  run.sequence_parallel = layout.sequence_parallel;
  run.schedule = layout.schedule;
  run.recompute = layout.recompute;
  ExpectTrainsAlike(Train(run), OneBatch(sgd));
}

INSTANTIATE_TEST_SUITE_P(Layouts, DynamicLayouts, ::testing::ValuesIn(Layouts()));

// What keeps, splits, copies or makes again the parts of a micro-batch does so at every shape.
TEST(DynamicBatches, RecomputationPoliciesAndOffload) {
  RecomputeConfig cheap, split, on_host;
  cheap.runs = {{Recompute::kCheap, 0}};
  split.runs = on_host.runs = {{Recompute::kFull, 0}};
  split.partition_activations = on_host.cpu_checkpointing = true;
  on_host.layers_per_checkpoint = 2;
  TinyRun offloaded = Sampled(Base(false)), shards = offloaded, recomputed = Sampled(Base(true)), parts = recomputed,
          copies = recomputed;
  offloaded.offload_optimizer = shards.offload_optimizer = 1;
  offloaded.world = shards.world = 2;
  offloaded.zero_stage = 2;
  shards.zero_stage = 3;
  shards.offload_param = true;
  recomputed.activations = cheap;
  recomputed.world = 2;
  recomputed.pp = 2;
  parts.activations = split;
  parts.world = 2;
  parts.tp = 2;
  copies.activations = on_host;
  for (const TinyRun& run : {offloaded, shards}) ExpectTrainsAlike(Train(run), OneBatch(false));
  for (const TinyRun& run : {recomputed, parts, copies}) ExpectTrainsAlike(Train(run), OneBatch(true));
}

// The step's factor reaches every update rule, on the CPU's own kernel too.
TEST(DynamicBatches, EveryOptimizerTakesTheFactor) {
  for (const OptimizerType type : {OptimizerType::kAdam, OptimizerType::kAdamW, OptimizerType::kSgd,
                                   OptimizerType::kAdagrad, OptimizerType::kLion, OptimizerType::kLamb}) {
    TinyRun scaled = Sampled(Base(false));
    scaled.steps = 1;
    scaled.optimizer = OptimizerConfig{};
    scaled.optimizer->type = type;
    TinyRun faster = scaled, offloaded = scaled;
    const auto with_factor = [source = Batches()](double factor) {
      return [source, factor](const Trainer& trainer) {
        StepBatch batch = trainer.BatchFrom(source, 0);
        batch.rate_factor = factor;
        return batch;
      };
    };
    scaled.next = offloaded.next = with_factor(2);
    faster.next = with_factor(1);
    faster.optimizer->lr = 2 * scaled.optimizer->lr;
    const Curve want = Train(faster), got = Train(scaled);
    ASSERT_EQ(want.failed, "");
    ASSERT_EQ(got.failed, "");
    EXPECT_EQ(WeightDifference(got.weights, want.weights), 0) << Name(type);
    scaled.next = with_factor(1);
    EXPECT_GT(WeightDifference(Train(scaled).weights, want.weights), 1e-7) << Name(type);
    if (type != OptimizerType::kAdam && type != OptimizerType::kAdamW) continue;
    offloaded.zero_stage = 1;
    offloaded.offload_optimizer = 1;
    offloaded.world = 2;
    EXPECT_LE(WeightDifference(Train(offloaded).weights, want.weights), 1e-12) << Name(type);
  }
}

// The factor is the whole difference between the two rates.
TEST(DynamicBatches, TheLearningRateFollowsTheBatch) {
  TinyRun scaled = Sampled(Base(false)), plain = scaled;
  scaled.steps = plain.steps = 1;
  scaled.scaling = RateScaling::kLinear;
  const int64_t samples = Batches()->At(0).num_samples();
  ASSERT_NE(samples, kPacks);
  plain.scaling = RateScaling::kNone;
  plain.next = [source = Batches(), samples](const Trainer& trainer) {
    StepBatch batch = trainer.BatchFrom(source, 0);
    EXPECT_EQ(batch.rate_factor, 1);
    batch.rate_factor = static_cast<double>(samples) / kPacks;
    return batch;
  };
  const Curve want = Train(plain), got = Train(scaled);
  ASSERT_EQ(want.failed, "");
  ASSERT_EQ(got.failed, "");
  EXPECT_EQ(WeightDifference(got.weights, want.weights), 0);
  plain.next = Sampled(Base(false)).next;
  EXPECT_GT(WeightDifference(Train(plain).weights, want.weights), 1e-6);
}

TEST(DynamicBatches, AResumedRunIsTheRunThatNeverStopped) {
  const Folder folder;
  TinyRun whole = Sampled(Base(false));
  whole.world = 2;
  whole.zero_stage = 2;
  TinyRun first = whole, second = whole, other = whole;
  first.steps = 2;
  first.save = second.load = other.load = folder.path;
  other.world = 3;
  other.zero_stage = 3;
  const Curve want = Train(whole), begun = Train(first), got = Train(second), elsewhere = Train(other);
  ASSERT_EQ(begun.failed, "");
  ASSERT_EQ(got.failed, "");
  ASSERT_EQ(elsewhere.failed, "");
  const std::vector<double> losses(want.losses.begin() + 2, want.losses.end());
  EXPECT_EQ(got.losses, losses);
  EXPECT_EQ(got.weights, want.weights);
  EXPECT_LE(RelativeDifference(elsewhere.losses, losses), 1e-12);
  EXPECT_LE(WeightDifference(elsewhere.weights, want.weights), 1e-12);
}

// Every token once, whatever the ranks, and training goes on as if there had been none.
TEST(DynamicBatches, EvaluationIsOnePass) {
  const auto source = Batches(/*repeats=*/false);
  int64_t tokens = 0;
  for (int64_t sample = 0; sample < kSamples; ++sample) tokens += source->samples().Length(sample);
  std::vector<Evaluation> evaluations;
  for (const auto& [world, pp] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
    TinyRun run = Sampled(Base(true));
    run.world = world;
    run.pp = pp;
    Evaluation evaluation;
    run.next = [&, step = run.next](const Trainer& trainer) {
      Trainer& mine = const_cast<Trainer&>(trainer);
      const Evaluation seen = mine.Evaluate(source, 0);
      if (trainer.steps_finished() == 0 && mine.world().rank == 0) evaluation = seen;
      return step(trainer);
    };
    run.steps = 2;
    const Curve curve = Train(run);
    ASSERT_EQ(curve.failed, "");
    EXPECT_LE(RelativeDifference(curve.losses, {OneBatch(true).losses[0], OneBatch(true).losses[1]}), 1e-12);
    EXPECT_EQ(evaluation.tokens, tokens);
    evaluations.push_back(evaluation);
  }
  for (const Evaluation& evaluation : evaluations) EXPECT_NEAR(evaluation.loss / evaluations[0].loss, 1, 1e-12);
}

}  // namespace
}  // namespace trireme::test
