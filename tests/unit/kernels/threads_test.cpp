// The number of threads never shows in a result: sums have a fixed order.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <vector>

#include "engine/kernels/kernels.h"

namespace trireme::kernels {
namespace {

std::vector<at::Tensor> Reductions() {
  const int64_t rows = 512, width = 300;
  at::manual_seed(11);
  const at::Tensor x = at::randn({rows, width}), dy = at::randn({rows, width}), weight = at::randn({width});
  const at::Tensor mean = at::empty({rows}), rstd = at::empty({rows}), y = at::empty({rows, width}),
                   dx = at::empty({rows, width});
  const at::Tensor dweight = at::empty({width}), dbias = at::empty({width}), column_sums = at::empty({width});
  LayerNormForward(x, weight, weight, 1e-5, y, mean, rstd);
  LayerNormBackward(dy, x, mean, rstd, weight, {}, dx, dweight, dbias, false);
  LinearBackwardBias(dy, column_sums, false);
  const at::Tensor tokens = at::randint(200, {2, rows / 2 + 1}, at::kInt), dtable = at::empty({200, width});
  const at::Tensor dpositions = at::empty({rows / 2, width}), state = at::zeros({kStepStateSize}, at::kDouble),
                   losses = at::empty({rows});
  EmbeddingBackward(dx, tokens, dtable, dpositions, false);
  SumOfSquares(x.view(-1), state);
  CrossEntropyForwardBackward(x, tokens, 0, width, 1, losses, state);
  const at::Tensor rms = at::empty({rows, width}), drms = at::empty({rows, width}), drms_weight = at::empty({width});
  RmsNormForward(y, weight, 1e-5, rms, rstd);
  RmsNormBackward(dy, y, rstd, weight, {}, drms, drms_weight, false);
  const at::Tensor act = at::empty({rows, width / 2}), dgate_up = at::empty({rows, width});
  SwiGluForward(y, act);
  SwiGluBackward(y, act, dgate_up);
  const at::Tensor qkv = y.clone(), dropped = at::empty({rows, width});
  Rotate(qkv, {2, rows / 2, 3, 1, 60}, dy.narrow(1, 0, 30).contiguous(), y.narrow(1, 0, 30).contiguous(), 0, false);
  Dropout(y, dy, {.probability = 0.3, .sequence_length = rows / 2}, dropped);
  return {rms,  drms, drms_weight, act,   dgate_up,    qkv,    dropped,    y,     mean,
          rstd, dx,   dweight,     dbias, column_sums, dtable, dpositions, state, x};
}

TEST(ThreadsTest, ResultsDoNotDependOnThreads) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = Reductions();
  for (int threads : {2, 3, 5}) {
    at::set_num_threads(threads);
    const auto many = Reductions();
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_TRUE(at::equal(one[i], many[i])) << i << " with " << threads << " threads";
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace trireme::kernels
