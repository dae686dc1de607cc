#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/kernels/kernel_cases.h"

namespace trireme::kernels {
namespace {

class UpdateTest : public KernelTest {
 protected:
  static at::ScalarType Master() { return Statistics(); }
  static at::Tensor Tensor(std::vector<double> values, at::ScalarType type) {
    return at::tensor(values, at::kDouble).to(type).to(Options().device());
  }
  // StepStats of a step whose gradients need no factor.
  static void Step(const at::Tensor& state) {
    state[kTokens] = 1;
    FinishStepStats(state, {});
  }
};

double Slot(const at::Tensor& state, int slot) { return Exact(state)[slot].item<double>(); }

// Values of three steps in exact arithmetic: p0 = [1, -2, 0.5], lr 0.01, decay 0.1, betas 0.9/0.999, eps 1e-8.
const std::vector<std::vector<double>> kGradients = {{0.1, -0.2, 0.3}, {-0.4, 0.05, 0.2}, {0.25, 0.3, -0.1}};

TEST_P(UpdateTest, AdamGoldenValues) {
  struct Golden {
    AdamOptions options;
    std::vector<double> want;
  };
  const std::vector<Golden> cases = {
      {{.weight_decay = 0.1, .decoupled = true}, {0.992996781, -1.98254857, 0.473308754}},
      {{.weight_decay = 0.1, .decoupled = false}, {0.989435806, -1.97593267, 0.47349335}},
      {{.weight_decay = 0.1, .decoupled = true, .bias_correction = false}, {0.991098986, -1.95841895, 0.398427314}}};
  for (const Golden& golden : cases) {
    const at::Tensor master = Tensor({1, -2, 0.5}, Master()), m = Tensor({0, 0, 0}, Master()),
                     v = Tensor({0, 0, 0}, Master());
    const at::Tensor weights = Empty({3}), state = State();
    const at::Tensor rates = Tensor({0.01}, at::kDouble), betas = Tensor({0.9, 0.999}, at::kDouble).view({1, 2});
    for (const auto& gradient : kGradients) {
      Step(state);
      AdamUpdate(master, m, v, Tensor(gradient, Master()), weights, state, rates, betas, golden.options);
    }
    EXPECT_LT((Exact(master) - at::tensor(golden.want, at::kDouble)).abs().max().item<double>(),
              Master() == at::kDouble ? 6e-9 : 1e-6);
    EXPECT_TRUE(BitwiseEqual(weights, master.to(Type())));
    EXPECT_EQ(Slot(state, kAppliedSteps), 3);
  }
}

TEST_P(UpdateTest, SgdGoldenValues) {
  const at::Tensor master = Tensor({1, -2, 0.5}, Master()), buffer = Tensor({9, 9, 9}, Master()), state = State();
  for (const auto& gradient : kGradients) {
    Step(state);
    SgdUpdate(master, buffer, Tensor(gradient, Master()), {}, state, Tensor({0.01}, at::kDouble),
              {.momentum = 0.9, .weight_decay = 0.1});
  }
  const at::Tensor want = at::tensor({0.996784598, -1.9873267, 0.486280797}, at::kDouble);
  EXPECT_LT((Exact(master) - want).abs().max().item<double>(), Master() == at::kDouble ? 6e-9 : 1e-6);
}

TEST_P(UpdateTest, SgdNesterovAndDampeningAgainstTheFormula) {
  at::Tensor p = at::tensor({1.0, -2.0}, at::kDouble), b;
  const at::Tensor master = p.to(Master()).to(Options().device()), buffer = Empty({2}, Master()), state = State();
  for (int step = 0; step < 4; ++step) {
    const at::Tensor g = at::tensor({0.3 * step - 0.2, 0.1}, at::kDouble);
    b = step == 0 ? g : 0.8 * b + 0.75 * g;
    p = p - 0.1 * (g + 0.8 * b);
    Step(state);
    SgdUpdate(master, buffer, g.to(Master()).to(Options().device()), {}, state, Tensor({0.1}, at::kDouble),
              {.momentum = 0.8, .dampening = 0.25, .nesterov = true});
  }
  EXPECT_LT(RelativeError(master, p), Master() == at::kDouble ? 1e-14 : 1e-6);
}

TEST_P(UpdateTest, TablesFollowAppliedStepsAndSkippedStepsChangeNothing) {
  const at::Tensor master = Tensor({1}, Master()), state = State(), gradient = Tensor({1}, Master());
  const at::Tensor rates = Tensor({0.5, 0.25, 0.125}, at::kDouble);
  auto update = [&] { SgdUpdate(master, {}, gradient, {}, state, rates, {}); };
  Step(state);
  update();
  EXPECT_EQ(Exact(master).item<double>(), 0.5);
  state[kTokens] = 1;
  state[kNonFinite] = 1;
  FinishStepStats(state, {});
  update();
  EXPECT_EQ(Exact(master).item<double>(), 0.5);
  EXPECT_EQ(Slot(state, kSkippedSteps), 1);
  Step(state);
  update();
  EXPECT_EQ(Exact(master).item<double>(), 0.25);
  for (int i = 0; i < 2; ++i) {  // past its end the table's last row holds
    Step(state);
    update();
  }
  EXPECT_EQ(Exact(master).item<double>(), 0);
  EXPECT_EQ(Slot(state, kAppliedSteps), 4);
}

// A step's factor is as good as a table that holds the product (powers of two: the same bits).
TEST_P(UpdateTest, TheStepsFactorMultipliesTheLearningRate) {
  const at::Tensor start = Random({5}).to(Master()), gradient = Random({5});
  const at::Tensor betas = Tensor({0.9, 0.99}, at::kDouble).view({1, 2});
  const auto updated = [&](double rate, double factor) {
    const at::Tensor sgd = start.clone(), adam = start.clone(), m = start.clone(), v = start.abs(), state = State();
    state[kTokens] = 1;
    FinishStepStats(state, {.rate_factor = factor});
    SgdUpdate(sgd, {}, gradient, {}, state, Tensor({rate}, at::kDouble), {});
    AdamUpdate(adam, m, v, gradient, {}, state, Tensor({rate}, at::kDouble), betas, {.weight_decay = 0.1});
    return at::cat({sgd, adam});
  };
  EXPECT_TRUE(at::equal(updated(0.25, 0.5), updated(0.125, 1)));
  EXPECT_FALSE(at::equal(updated(0.25, 0.5), updated(0.25, 1)));
}

// One element before an update by Adam.
struct Element {
  float p, m, v, g;
};

// The formula of DeepSpeed's CPU Adam. c1, c2: corrections of the bias out of exact
// powers of the betas. DeepSpeed's running fp32 products are equal to them at t = 1, but lose so many digits of c2
// right after (80 units in the last place of the update at t = 3) that nothing else could be seen.
Element CpuForm(Element e, float decay, float rate, float c1, float c2) {
  e.m = 0.9f * e.m + (1 - 0.9f) * e.g;
  e.v = 0.999f * e.v + (1 - 0.999f) * e.g * e.g;
  if (decay > 0) e.p += -rate * decay * e.p;
  e.p += -rate / c1 * (e.m / (std::sqrt(e.v) * (1 / std::sqrt(c2)) + 1e-8f));
  return e;
}

// Weights and gradients of many sizes, moments as earlier steps leave them.
std::vector<Element> Elements(int64_t count, bool first_step, float c1, float c2) {
  std::mt19937 generator(17);
  std::normal_distribution<float> normal;
  std::vector<Element> elements(static_cast<size_t>(count));
  for (Element& e : elements) {
    e.g = normal(generator) * std::pow(10.0f, 2 * normal(generator) - 3);
    e.p = normal(generator) * std::pow(10.0f, normal(generator) - 2);
    const float scale = std::abs(e.g * normal(generator));
    e.m = first_step ? 0 : c1 * scale * normal(generator) * 0.5f;
    e.v = first_step ? 0 : c2 * scale * scale + e.m * e.m * 0.1f;
  }
  return elements;
}

// Largest difference in units in the last place of max(|weight|, learning rate).
double DifferenceFromCpuForm(int steps, double decay, double rate) {
  const auto c1 = static_cast<float>(1 - std::pow(static_cast<double>(0.9f), steps));
  const auto c2 = static_cast<float>(1 - std::pow(static_cast<double>(0.999f), steps));
  const std::vector<Element> before = Elements(200001, steps == 1, c1, c2);
  const auto count = static_cast<int64_t>(before.size());
  const at::Tensor all = at::empty({4, count}, at::kFloat), state = at::zeros({kStepStateSize}, at::kDouble);
  auto* values = all.mutable_data_ptr<float>();
  for (int64_t i = 0; i < count; ++i) {
    const Element& e = before[static_cast<size_t>(i)];
    values[i] = e.p, values[count + i] = e.m, values[2 * count + i] = e.v, values[3 * count + i] = e.g;
  }
  state[kUpdateFactor] = 1;
  state[kAppliedSteps] = steps;
  state[kRateFactor] = 1;
  AdamUpdate(all[0], all[1], all[2], all[3], {}, state, at::full({1}, rate, at::kDouble),
             at::tensor({0.9, 0.999}, at::kDouble).view({1, 2}), {.weight_decay = decay});
  double worst = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Element& e = before[static_cast<size_t>(i)];
    const Element want = CpuForm(e, static_cast<float>(decay), static_cast<float>(rate), c1, c2);
    EXPECT_EQ(want.m, values[count + i]);
    EXPECT_EQ(want.v, values[2 * count + i]);
    const float size = std::max(std::abs(e.p), static_cast<float>(rate));
    const float unit = std::nextafter(size, INFINITY) - size;
    worst = std::max(worst, static_cast<double>(std::abs(values[i] - want.p) / unit));
  }
  return worst;
}

TEST(CpuAdamTest, OneStepIsWithinFourUnitsInTheLastPlaceOfDeepSpeedsCpuForm) {
  for (const int steps : {1, 2, 10, 100}) {
    for (const double decay : {0.0, 0.1}) {
      for (const double rate : {1e-4, 1e-2}) {
        const double worst = DifferenceFromCpuForm(steps, decay, rate);
        EXPECT_LE(worst, 4) << steps << " " << decay << " " << rate;
      }
    }
  }
}

// Cut anywhere, with any tail, every element gets the same bits.
TEST_P(UpdateTest, TailsEqualBodiesBitwise) {
  const int64_t count = 133;
  const at::Tensor start = Random({count}).to(Master()), gradient = Random({count}), state = State();
  const at::Tensor rates = Tensor({0.01}, at::kDouble), betas = Tensor({0.9, 0.95}, at::kDouble).view({1, 2});
  auto run = [&](const std::vector<int64_t>& cuts) {
    const at::Tensor p = start.clone(), m = start * 0.1, v = start * start, w = Empty({count});
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      auto part = [&](const at::Tensor& t) { return t.narrow(0, cuts[i], cuts[i + 1] - cuts[i]); };
      AdamUpdate(part(p), part(m), part(v), part(gradient), part(w), state, rates, betas, {.weight_decay = 0.1});
    }
    return std::vector<at::Tensor>{p, m, v, w};
  };
  Step(state);
  const auto whole = run({0, count});
  std::vector<int64_t> cuts = {0, 1, 3, 6, 10, 15, 21, 28, 36, 45, 55, 66, 78, 91, 105, 120, 133};
  const auto pieces = run(cuts);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(BitwiseEqual(whole[i], pieces[i])) << i;
}

TEST_P(UpdateTest, SumOfSquaresAndNorm) {
  for (int64_t count : {1, 2, 15, 16, 17, 31, 33, 1000, 100003}) {
    const at::Tensor gradient = Random({count}), state = State();
    SumOfSquares(gradient, state);
    SumOfSquares(gradient, state);
    const double want = 2 * Exact(gradient).square().sum().item<double>();
    EXPECT_NEAR(Slot(state, kSumOfSquares) / want, 1, 1e-13);
    EXPECT_EQ(Slot(state, kNonFinite), 0);
  }
  const at::Tensor state = State();
  for (const auto& gradient : kGradients) SumOfSquares(Tensor(gradient, Master()), state);
  state[kTokens] = 4;
  state[kLossSum] = 10;
  FinishStepStats(state, {.nominal_tokens = 4, .max_norm = 0.5});
  EXPECT_NEAR(Slot(state, kGradientNorm), 0.71063352, 3e-8);
  EXPECT_NEAR(Slot(state, kUpdateFactor), 0.703596555, 1e-7);
  EXPECT_EQ(Slot(state, kLoss), 2.5);
  EXPECT_EQ(Slot(state, kStepTokens), 4);
  EXPECT_EQ(Slot(state, kTokens), 0);
  EXPECT_EQ(Slot(state, kSumOfSquares), 0);
}

TEST_P(UpdateTest, RealTokensAndLossScaleFoldIntoNormAndFactor) {
  const at::Tensor state = State();
  InitStepState(state, 8);
  SumOfSquares(Tensor({3, 4}, Master()), state);
  state[kTokens] = 50;
  FinishStepStats(state, {.nominal_tokens = 100});
  EXPECT_DOUBLE_EQ(Slot(state, kGradientNorm), 5.0 * 100 / 50 / 8);
  EXPECT_DOUBLE_EQ(Slot(state, kUpdateFactor), 100.0 / 50 / 8);
  FinishStepStats(state, {.nominal_tokens = 100});  // a step without a token
  EXPECT_EQ(Slot(state, kSkip), 1);
  EXPECT_EQ(Slot(state, kUpdateFactor), 0);
}

TEST_P(UpdateTest, NUM_07_NonFiniteGradientsNeverMultiply) {
  for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const at::Tensor state = State(), gradient = Random({40}), master = Tensor({1}, Master());
    gradient[33] = bad;
    SumOfSquares(gradient, state);
    EXPECT_EQ(Slot(state, kNonFinite), 1);
    state[kTokens] = 1;
    FinishStepStats(state, {.max_norm = 1});
    EXPECT_EQ(Slot(state, kSkip), 1);
    EXPECT_EQ(Slot(state, kUpdateFactor), 0);
    EXPECT_FALSE(std::isfinite(Slot(state, kGradientNorm)));
    EXPECT_EQ(Slot(state, kAppliedSteps), 0);
  }
  const at::Tensor state = State();
  state[kTokens] = 1;
  FinishStepStats(state, {.max_norm = 1});  // a zero gradient: no division by zero
  EXPECT_EQ(Slot(state, kUpdateFactor), 1);
}

TRIREME_INSTANTIATE_KERNEL_TEST(UpdateTest);

}  // namespace
}  // namespace trireme::kernels
