// Adagrad, Lion and LAMB against ATen in double precision.
#include <ATen/Parallel.h>

#include "tests/unit/kernels/kernel_cases.h"

namespace trireme::kernels {
namespace {

class OptimizersTest : public KernelTest {
 protected:
  static at::ScalarType Master() { return Statistics(); }
  static at::Tensor OnDevice(const at::Tensor& values, at::ScalarType type) {
    return values.to(type).to(Options().device());
  }
  static at::Tensor Masters(const at::Tensor& values) { return OnDevice(values, Master()); }
  static at::Tensor Table(std::vector<double> values) { return at::tensor(values, at::kDouble).to(Options().device()); }
  static at::Tensor Squares() { return at::zeros({2}, Options().dtype(at::kDouble)); }
  static void Step(const at::Tensor& state) {
    state[kTokens] = 1;
    FinishStepStats(state, {});
  }
  static double RuleTolerance() { return Master() == at::kDouble ? 1e-13 : 2e-6; }
};

// p0 = [1, -2, 0.5], three gradients, lr 0.01, decay 0.1: exact arithmetic.
const std::vector<std::vector<double>> kGradients = {{0.1, -0.2, 0.3}, {-0.4, 0.05, 0.2}, {0.25, 0.3, -0.1}};
at::Tensor Start() { return at::tensor({1.0, -2.0, 0.5}, at::kDouble); }

TEST_P(OptimizersTest, LionGoldenValues) {
  const at::Tensor p = Masters(Start()), m = Masters(at::zeros({3}, at::kDouble)), state = State();
  for (const auto& gradient : kGradients) {
    Step(state);
    LionUpdate(p, m, Masters(at::tensor(gradient, at::kDouble)), {}, state, Table({0.01}),
               Table({0.9, 0.99}).view({1, 2}), {.weight_decay = 0.1});
  }
  const at::Tensor want = at::tensor({0.987012989, -2.00401599, 0.48853149}, at::kDouble);
  EXPECT_LT((Exact(p) - want).abs().max().item<double>(), Master() == at::kDouble ? 6e-9 : 1e-6);
}

TEST_P(OptimizersTest, LambGoldenValues) {
  const at::Tensor p = Masters(Start()), m = Masters(at::zeros({3}, at::kDouble)), v = m.clone(), state = State();
  const at::Tensor rates = Table({0.01}), betas = Table({0.9, 0.999}).view({1, 2});
  const std::vector<double> ratios = {0.403373405, 0.436324725, 0.733857771};
  for (size_t step = 0; step < 3; ++step) {
    const at::Tensor squares = Squares();
    Step(state);
    LambMoments(p, m, v, Masters(at::tensor(kGradients[step], at::kDouble)), squares, state, rates, betas,
                {.weight_decay = 0.1});
    EXPECT_NEAR(Exact(squares.sqrt()[0] / squares.sqrt()[1]).item<double>(), ratios[step],
                Master() == at::kDouble ? 1e-8 : 1e-5);  // 1 - beta2 in fp32
    LambUpdate(p, m, v, {}, squares, state, rates, betas, {.weight_decay = 0.1});
  }
  const at::Tensor want = at::tensor({0.998311806, -1.99551989, 0.487494713}, at::kDouble);
  EXPECT_LT((Exact(p) - want).abs().max().item<double>(), Master() == at::kDouble ? 6e-9 : 1e-6);
}

TEST_P(OptimizersTest, AdagradAgainstATen) {
  const int64_t count = 1000;
  const double lr = 0.02, decay = 0.1, eps = 1e-8, lr_decay = 0.1;
  const at::Tensor p = Masters(at::randn({count}, at::kDouble)), sum = at::full_like(p, 0.25), w = Empty({count}),
                   state = State();
  at::Tensor want = Exact(p), want_sum = Exact(sum);
  for (int step = 0; step < 5; ++step) {
    const at::Tensor gradient = Random({count}), g = Exact(gradient) + decay * want;
    want_sum = want_sum + g * g;
    want = want - lr / (1 + step * lr_decay) * g / (want_sum.sqrt() + eps);
    Step(state);
    AdagradUpdate(p, sum, gradient, w, state, Table({lr}),
                  {.epsilon = eps, .weight_decay = decay, .lr_decay = lr_decay});
  }
  EXPECT_LT(RelativeError(p, want), RuleTolerance());
  EXPECT_LT(RelativeError(sum, want_sum), RuleTolerance());
  EXPECT_TRUE(BitwiseEqual(w, p.to(Type())));
}

TEST_P(OptimizersTest, LionAgainstATenAndItsZeros) {
  const int64_t count = 1000;
  const at::Tensor p = Masters(at::randn({count}, at::kDouble)), m = at::zeros_like(p), w = Empty({count}),
                   state = State();
  at::Tensor want = Exact(p), want_m = Exact(m);
  for (int step = 0; step < 5; ++step) {
    at::Tensor gradient = Random({count});
    gradient[0] = 0;
    const at::Tensor g = Exact(gradient);
    want = want * (1 - 0.01 * 0.3) - 0.01 * at::sign(0.9 * want_m + 0.1 * g);
    want_m = 0.99 * want_m + 0.01 * g;
    Step(state);
    LionUpdate(p, m, gradient, w, state, Table({0.01}), Table({0.9, 0.99}).view({1, 2}), {.weight_decay = 0.3});
  }
  EXPECT_LT(RelativeError(p, want), RuleTolerance());
  EXPECT_LT(RelativeError(m, want_m), RuleTolerance());
  EXPECT_TRUE(BitwiseEqual(w, p.to(Type())));
  const at::Tensor bad = Random({count});
  bad[7] = std::nan("");
  LionUpdate(p, m, bad, w, state, Table({0.01}), Table({0.9, 0.99}).view({1, 2}), {});
  EXPECT_TRUE(std::isnan(Exact(p)[7].item<double>()));
  EXPECT_EQ(1, at::isnan(Exact(p)).sum().item<int64_t>());
}

at::Tensor LambStepOf(const at::Tensor& p, const at::Tensor& m, const at::Tensor& v, const LambOptions& options) {
  const at::Tensor root = options.epsilon_inside_root ? (v + options.epsilon).sqrt() : v.sqrt() + options.epsilon;
  return m / root + options.weight_decay * p;
}

// In one piece and cut into parts whose sums are added; with each bound of the ratio in effect.
TEST_P(OptimizersTest, LambAgainstATen) {
  const int64_t count = 5003;  // several blocks, a tail
  const std::vector<LambOptions> cases = {
      {.weight_decay = 0.1},
      {.bias_correction = false, .epsilon_inside_root = true},
      {.weight_decay = 0.1, .max_coefficient = 0.2},
      {.min_coefficient = 3},
  };
  for (const LambOptions& options : cases) {
    const at::Tensor p = Masters(at::randn({count}, at::kDouble)), m = at::zeros_like(p), v = at::zeros_like(p),
                     w = Empty({count}), state = State();
    const at::Tensor rates = Table({0.01}), betas = Table({0.9, 0.99}).view({1, 2});
    at::Tensor want = Exact(p), want_m = Exact(m), want_v = Exact(v);
    for (int step = 1; step <= 4; ++step) {
      const at::Tensor gradient = Random({count}), g = Exact(gradient), squares = Squares();
      want_m = 0.9 * want_m + 0.1 * g;
      want_v = 0.99 * want_v + 0.01 * g * g;
      const at::Tensor u = LambStepOf(want, want_m, want_v, options);
      const double a =
          options.bias_correction ? 0.01 * std::sqrt(1 - std::pow(0.99, step)) / (1 - std::pow(0.9, step)) : 0.01;
      const double ratio =
          std::clamp((want.norm() / u.norm()).item<double>(), options.min_coefficient, options.max_coefficient);
      want = want - a * ratio * u;
      Step(state);
      for (const auto& [begin, length] : {std::pair<int64_t, int64_t>{0, 1001}, {1001, count - 1001}}) {
        const auto part = [&, begin = begin, length = length](const at::Tensor& t) {
          return t.narrow(0, begin, length);
        };
        LambMoments(part(p), part(m), part(v), part(gradient), squares, state, rates, betas, options);
      }
      LambUpdate(p, m, v, w, squares, state, rates, betas, options);
    }
    EXPECT_LT(RelativeError(p, want), RuleTolerance());
    EXPECT_LT(RelativeError(v, want_v), RuleTolerance());
    EXPECT_TRUE(BitwiseEqual(w, p.to(Type())));
  }
}

TEST_P(OptimizersTest, LambTakesTheWholeStepWhereANormIsZeroAndNothingIfSkipped) {
  const at::Tensor p = Masters(at::zeros({5}, at::kDouble)), m = at::zeros_like(p), v = at::zeros_like(p),
                   state = State(), squares = Squares();
  const at::Tensor rates = Table({0.5}), betas = Table({0.5, 0.5}).view({1, 2}), gradient = at::ones_like(p);
  Step(state);
  LambMoments(p, m, v, gradient, squares, state, rates, betas, {.bias_correction = false});
  EXPECT_EQ(Exact(squares)[0].item<double>(), 0);
  LambUpdate(p, m, v, {}, squares, state, rates, betas, {.bias_correction = false});
  EXPECT_NEAR(Exact(p)[0].item<double>(), -0.5 * 0.5 / std::sqrt(0.5), 1e-6);
  const at::Tensor kept = p.clone(), kept_m = m.clone();
  state[kTokens] = 1;
  state[kNonFinite] = 1;
  FinishStepStats(state, {});
  squares.zero_();
  LambMoments(p, m, v, gradient, squares, state, rates, betas, {});
  LambUpdate(p, m, v, {}, squares, state, rates, betas, {});
  EXPECT_TRUE(BitwiseEqual(p, kept));
  EXPECT_TRUE(BitwiseEqual(m, kept_m));
  EXPECT_EQ(Exact(squares).abs().sum().item<double>(), 0);
}

// Cut anywhere, with any tail, every element gets the same bits.
TEST_P(OptimizersTest, TailsEqualBodiesBitwise) {
  const int64_t count = 133;
  const at::Tensor start = Random({count}).to(Master()), gradient = Random({count}), state = State();
  const at::Tensor rates = Table({0.01}), betas = Table({0.9, 0.95}).view({1, 2});
  const at::Tensor squares = Table({3.0, 2.0});
  Step(state);
  enum { kAdagrad, kLion, kLamb };
  for (const int rule : {kAdagrad, kLion, kLamb}) {
    const auto run = [&](const std::vector<int64_t>& cuts) {
      const at::Tensor p = start.clone(), m = start * 0.1, v = start * start, w = Empty({count});
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        const auto part = [&](const at::Tensor& t) { return t.narrow(0, cuts[i], cuts[i + 1] - cuts[i]); };
        if (rule == kAdagrad) {
          AdagradUpdate(part(p), part(v), part(gradient), part(w), state, rates, {.weight_decay = 0.1});
        } else if (rule == kLion) {
          LionUpdate(part(p), part(m), part(gradient), part(w), state, rates, betas, {.weight_decay = 0.1});
        } else {
          LambMoments(part(p), part(m), part(v), part(gradient), {}, state, rates, betas, {.weight_decay = 0.1});
          LambUpdate(part(p), part(m), part(v), part(w), squares, state, rates, betas, {.weight_decay = 0.1});
        }
      }
      return std::vector<at::Tensor>{p, m, v, w};
    };
    const auto whole = run({0, count});
    const auto pieces = run({0, 1, 3, 6, 10, 15, 21, 28, 36, 45, 55, 66, 78, 91, 105, 120, 133});
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(BitwiseEqual(whole[i], pieces[i])) << rule << " " << i;
  }
}

TEST_P(OptimizersTest, LambSumsDoNotDependOnThreads) {
  if (OnGpu()) return;  // of the CPU alone; a skipped test would count the whole program as skipped
  const int64_t count = 100'003;
  const at::Tensor p = Masters(at::randn({count}, at::kDouble)), gradient = Random({count}), state = State();
  Step(state);
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> sums;
  for (const int used : {1, 3}) {
    at::set_num_threads(used);
    sums.push_back(Squares());
    LambMoments(p, at::zeros_like(p), at::zeros_like(p), gradient, sums.back(), state, Table({0.01}),
                Table({0.9, 0.99}).view({1, 2}), {.weight_decay = 0.1});
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(BitwiseEqual(sums[0], sums[1]));
}

TRIREME_INSTANTIATE_KERNEL_TEST(OptimizersTest);

}  // namespace
}  // namespace trireme::kernels
