#include "tests/unit/kernels/kernel_cases.h"

namespace trireme::kernels {
namespace {

class LinearTest : public KernelTest {};
class AttentionTest : public KernelTest {};

TEST_P(LinearTest, ForwardAndBackwardEqualMatmul) {
  const std::vector<std::array<int64_t, 3>> shapes = {{1, 1, 1}, {3, 5, 7}, {17, 31, 33}, {64, 48, 96}, {130, 64, 8}};
  for (const auto& [rows, in, out] : shapes) {
    const at::Tensor x = Random({rows, in}), w = Random({out, in}), bias = Random({out}),
                     residual = Random({rows, out});
    const at::Tensor plain = Exact(x).matmul(Exact(w).t());
    const at::Tensor y = Empty({rows, out});
    LinearForward(x, w, {}, {}, y);
    EXPECT_LT(RelativeError(y, plain), Tolerance());
    LinearForward(x, w, bias, {}, y);
    EXPECT_LT(RelativeError(y, plain + Exact(bias)), Tolerance());
    LinearForward(x, w, bias, residual, y);
    EXPECT_LT(RelativeError(y, plain + Exact(bias) + Exact(residual)), Tolerance());
    const at::Tensor dy = Random({rows, out}), dx = Empty({rows, in});
    LinearBackwardInput(dy, w, dx);
    EXPECT_LT(RelativeError(dx, Exact(dy).matmul(Exact(w))), Tolerance());
    const at::Tensor want = Exact(dy).t().matmul(Exact(x));
    for (at::ScalarType type : {Type(), Statistics()}) {
      const at::Tensor dw = Empty({out, in}, type), dbias = Empty({out}, type);
      // Room for two rows and a half: the product goes through it in pieces.
      const at::Tensor workspace = at::empty({in * 5}, Options().dtype(at::kByte));
      LinearBackwardWeight(dy, x, dw, false, workspace);
      LinearBackwardBias(dy, dbias, false);
      EXPECT_LT(RelativeError(dw, want), Tolerance());
      EXPECT_LT(RelativeError(dbias, Exact(dy).sum(0)), Tolerance());
      LinearBackwardWeight(dy, x, dw, true, workspace);
      LinearBackwardBias(dy, dbias, true);
      EXPECT_LT(RelativeError(dw, 2 * want), Tolerance());
      EXPECT_LT(RelativeError(dbias, 2 * Exact(dy).sum(0)), Tolerance());
    }
  }
}

// 256 micro-batches, a gradient of 1 and then 2^-9 each: the fp32 sum is exact, a bf16 sum stays at 1.
TEST_P(LinearTest, NUM_15_SmallMicroBatchesCountInTheAccumulationType) {
  const at::Tensor dy = at::ones({1, 8}, Options().dtype(Type())), x = at::ones({1, 8}, Options().dtype(Type()));
  const at::Tensor small = x * 0x1p-9, workspace = at::empty({1024}, Options().dtype(at::kByte));
  for (at::ScalarType type : {Type(), Statistics()}) {
    const at::Tensor dw = Empty({8, 8}, type), dbias = Empty({8}, type);
    LinearBackwardWeight(dy, x, dw, false, workspace);
    LinearBackwardBias(dy, dbias, false);
    for (int micro_batch = 1; micro_batch < 256; ++micro_batch) {
      LinearBackwardWeight(dy, small, dw, true, workspace);
      LinearBackwardBias(small, dbias, true);
    }
    const double want = type == at::kBFloat16 ? 1 : 1 + 255 * 0x1p-9;
    EXPECT_EQ(Exact(dw).min().item<double>(), want);
    EXPECT_EQ(Exact(dw).max().item<double>(), want);
    EXPECT_EQ(Exact(dbias).max().item<double>(), want);
  }
}

TEST_P(AttentionTest, ForwardAndBackwardEqualPlainSoftmax) {
  struct Case {
    int64_t micro, sequence, heads, head_size;
  };
  for (const Case& c :
       {Case{1, 1, 1, 8}, Case{2, 7, 3, 16}, Case{3, 33, 2, 64}, Case{1, 130, 4, 32}, Case{2, 9, 3, 5}}) {
    const int64_t width = c.heads * c.head_size, tokens = c.micro * c.sequence;
    const at::Tensor qkv = Random({tokens, 3 * width}), dout = Random({tokens, width});
    const AttentionShape shape{c.micro, c.sequence, c.heads, c.heads, c.head_size};
    std::vector<at::Tensor> pool;
    AttentionForward(qkv, shape, pool);
    at::Tensor ref = Exact(qkv).requires_grad_();
    const at::Tensor parts = ref.view({c.micro, c.sequence, 3, c.heads, c.head_size}).permute({2, 0, 3, 1, 4});
    const at::Tensor scores = parts[0].matmul(parts[1].transpose(-1, -2)) / std::sqrt(static_cast<double>(c.head_size));
    const at::Tensor mask = at::ones({c.sequence, c.sequence}, at::kBool).triu(1);
    const at::Tensor out =
        scores.masked_fill(mask, -std::numeric_limits<double>::infinity()).softmax(-1).matmul(parts[2]);
    const at::Tensor want = out.transpose(1, 2).reshape({tokens, width});
    want.backward(Exact(dout));
    EXPECT_LT(RelativeError(AttentionOutput(pool), want.detach()), Tolerance()) << c.sequence;
    const at::Tensor dqkv = Empty({tokens, 3 * width});
    AttentionBackward(dout, qkv, shape, pool, dqkv);
    EXPECT_LT(RelativeError(dqkv, ref.grad()), 3 * Tolerance()) << c.sequence;
  }
}

TRIREME_INSTANTIATE_KERNEL_TEST(LinearTest);
TRIREME_INSTANTIATE_KERNEL_TEST(AttentionTest);

}  // namespace
}  // namespace trireme::kernels
