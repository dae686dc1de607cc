// The loss scaler of StepStats against DeepSpeed's DynamicLossScaler, written out from its specification, over long
// random sequences of overflows.
#include <random>

#include "tests/unit/kernels/kernel_cases.h"

namespace trireme::kernels {
namespace {

// In DeepSpeed's own terms: iterations and the last overflow's, not a tracker.
struct Model {
  double scale, floor;
  int64_t window, hysteresis, left;
  bool consecutive, ends;
  int64_t iteration = 0, last_overflow = -1;
  bool exhausted = false;

  void Update(bool overflow) {
    if (overflow) {
      if (hysteresis == 1 || left == 1) {
        exhausted = exhausted || (ends && scale == floor);
        scale = std::max(scale / 2, floor);
      } else {
        --left;
      }
      last_overflow = iteration;
    } else {
      if (consecutive) left = hysteresis;
      const int64_t stable = iteration - last_overflow - 1;
      if (stable > 0 && stable % window == 0) {
        if (!consecutive) left = hysteresis;
        scale *= 2;
      }
    }
    ++iteration;
  }
};

class ScalerTest : public KernelTest {
 protected:
  // A step with one token; the loss of an overflow is fine, its gradients are not.
  static void Step(const at::Tensor& state, bool overflow, const LossScaling& scaling) {
    state[kTokens] = 1;
    state[kSumOfSquares] = 4;
    if (overflow) state[kNonFinite] = 1;
    FinishStepStats(state, {.loss_scaling = scaling});
  }
  static std::vector<double> Slots(const at::Tensor& state) {
    const at::Tensor host = Exact(state);
    return {host.const_data_ptr<double>(), host.const_data_ptr<double>() + kStepStateSize};
  }
  static at::Tensor Start(double scale, double hysteresis) {
    const at::Tensor state = State();
    InitStepState(state, scale, hysteresis);
    return state;
  }
};

struct Golden {
  double scale;
  LossScaling scaling;
  std::vector<int> overflows;
  std::vector<double> want;
};

TEST_P(ScalerTest, GoldenTraces) {
  const std::vector<Golden> cases = {
      {16,
       {.dynamic = true, .window = 3, .hysteresis = 1},
       {0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
       {16, 16, 16, 32, 32, 32, 64, 64, 64, 128}},
      {16,
       {.dynamic = true, .window = 3, .hysteresis = 1},
       {1, 0, 0, 0, 0, 0, 0, 0, 0, 0},
       {8, 8, 8, 8, 16, 16, 16, 32, 32, 32}},
      {16,
       {.dynamic = true, .window = 3, .hysteresis = 2},
       {1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1},
       {16, 8, 4, 4, 2, 1, 1, 1, 1, 2, 2, 2, 1}},
      {16,
       {.dynamic = true, .window = 3, .hysteresis = 2, .consecutive_hysteresis = true},
       {1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1},
       {16, 16, 16, 16, 16, 8, 8, 8, 8, 16, 16, 16, 8}},
      {64, {}, {1, 0, 1}, {64, 64, 64}},
  };
  for (const Golden& golden : cases) {
    const at::Tensor state = Start(golden.scale, golden.scaling.hysteresis);
    std::vector<double> got;
    for (const int overflow : golden.overflows) {
      Step(state, overflow != 0, golden.scaling);
      got.push_back(Slots(state)[kLossScale]);
      EXPECT_EQ(Slots(state)[kSkip], overflow);
    }
    EXPECT_EQ(got, golden.want);
    EXPECT_EQ(Slots(state)[kScaleExhausted], 0);
  }
}

TEST_P(ScalerTest, OverflowAtTheFloorIsTheEndUnlessItClamps) {
  for (const bool ends : {true, false}) {
    const LossScaling scaling{.dynamic = true, .window = 3, .hysteresis = 1, .ends_at_floor = ends};
    const at::Tensor state = Start(4, 1);
    for (int i = 0; i < 2; ++i) Step(state, true, scaling);
    EXPECT_EQ(Slots(state)[kLossScale], 1);
    EXPECT_EQ(Slots(state)[kScaleExhausted], 0);
    Step(state, true, scaling);
    EXPECT_EQ(Slots(state)[kLossScale], 1);
    EXPECT_EQ(Slots(state)[kScaleExhausted], ends ? 1 : 0);
  }
}

TEST_P(ScalerTest, FollowsDeepSpeedOverRandomOverflows) {
  constexpr unsigned kSeed = 20261;
  std::mt19937 random(kSeed);
  const int sequences = OnGpu() ? 3 : 60, steps = OnGpu() ? 100 : 600;
  for (int sequence = 0; sequence < sequences; ++sequence) {
    const int64_t hysteresis = static_cast<int64_t>(random() % 5);  // 0 too: it never lowers the scale
    const LossScaling scaling{.dynamic = true,
                              .window = static_cast<double>(1 + random() % 9),
                              .hysteresis = static_cast<double>(hysteresis),
                              .consecutive_hysteresis = random() % 2 == 0,
                              .floor = random() % 4 == 0 ? 3.0 : 1.0,
                              .ends_at_floor = random() % 2 == 0};
    const auto one_in = static_cast<unsigned>(2 + random() % 12);
    Model model{.scale = 256,
                .floor = scaling.floor,
                .window = static_cast<int64_t>(scaling.window),
                .hysteresis = hysteresis,
                .left = hysteresis,
                .consecutive = scaling.consecutive_hysteresis,
                .ends = scaling.ends_at_floor};
    const at::Tensor state = Start(256, scaling.hysteresis);
    for (int step = 0; step < steps; ++step) {
      const bool overflow = random() % one_in == 0;
      Step(state, overflow, scaling);
      model.Update(overflow);
      const std::vector<double> got = Slots(state);
      ASSERT_EQ(got[kLossScale], model.scale) << "seed " << kSeed << " sequence " << sequence << " step " << step;
      ASSERT_EQ(got[kHysteresis], model.left) << "seed " << kSeed << " sequence " << sequence << " step " << step;
      ASSERT_EQ(got[kScaleExhausted] != 0, model.exhausted) << sequence << " step " << step;
      ASSERT_EQ(got[kSkip] != 0, overflow);
      if (model.scale > 1e30) break;
    }
    EXPECT_EQ(Slots(state)[kAppliedSteps] + Slots(state)[kSkippedSteps],
              static_cast<double>(std::min<int64_t>(steps, model.iteration)));
  }
}

// On the step on which the scale doubles gradients are divided by the scale that they were multiplied by; under the
// quirk by the new one, and clipping sees half of the norm.
TEST_P(ScalerTest, GrowthUnscalesWithTheScaleThatWasUsed) {
  for (const bool quirk : {false, true}) {
    const LossScaling scaling{.dynamic = true, .window = 1, .hysteresis = 1, .growth_quirk = quirk};
    const at::Tensor state = Start(8, 1);
    Step(state, false, scaling);
    EXPECT_EQ(Slots(state)[kUpdateFactor], 1.0 / 8);
    Step(state, false, scaling);
    EXPECT_EQ(Slots(state)[kLossScale], 16);
    EXPECT_EQ(Slots(state)[kGradientNorm], 2.0 / 8);
    EXPECT_EQ(Slots(state)[kUpdateFactor], quirk ? 1.0 / 16 : 1.0 / 8);
    Step(state, true, scaling);
    EXPECT_EQ(Slots(state)[kUpdateFactor], 0);
    EXPECT_EQ(Slots(state)[kLossScale], 8);
    for (int i = 0; i < 2; ++i) {
      state[kTokens] = 1;
      state[kSumOfSquares] = 64;
      FinishStepStats(state, {.max_norm = 0.25, .loss_scaling = scaling});
    }
    EXPECT_EQ(Slots(state)[kLossScale], 16);
    EXPECT_NEAR(Slots(state)[kUpdateFactor], quirk ? 0.25 / 0.5 / 16 : 0.25 / 1 / 8, 1e-6);
  }
}

TEST_P(ScalerTest, AStepWithoutATokenChangesNoScale) {
  const LossScaling scaling{.dynamic = true, .window = 1, .hysteresis = 1};
  const at::Tensor state = Start(8, 1);
  for (int i = 0; i < 3; ++i) FinishStepStats(state, {.loss_scaling = scaling});
  EXPECT_EQ(Slots(state)[kLossScale], 8);
  EXPECT_EQ(Slots(state)[kGrowthTracker], 0);
  EXPECT_EQ(Slots(state)[kSkippedSteps], 3);
}

// The head's gradient is multiplied by the scale as the device has it.
TEST_P(ScalerTest, CrossEntropyTakesTheScaleFromTheState) {
  const at::Tensor tokens = at::tensor({1, 2, 0}, Options().dtype(at::kInt)).view({1, 3});
  const at::Tensor start = Random({2, 4});
  std::vector<at::Tensor> got;
  for (const double scale : {1.0, 1024.0}) {
    const at::Tensor logits = start.clone(), losses = Empty({2}, Statistics()), state = Start(scale, 1);
    CrossEntropyForwardBackward(logits, tokens, 0, 3, 0.125, losses, state);
    got.push_back(logits);
  }
  EXPECT_TRUE(BitwiseEqual(got[0] * 1024, got[1]));
  EXPECT_GT(Exact(got[0]).abs().max().item<double>(), 0);
}

INSTANTIATE_TEST_SUITE_P(Cpu, ScalerTest, ::testing::Values(std::tuple{false, at::kFloat}), CaseName);
INSTANTIATE_TEST_SUITE_P(Gpu, ScalerTest, ::testing::Values(std::tuple{true, at::kFloat}), CaseName);

}  // namespace
}  // namespace trireme::kernels
