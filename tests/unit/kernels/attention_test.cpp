#include "tests/unit/kernels/kernel_cases.h"

namespace trireme::kernels {
namespace {

class AttentionTest : public KernelTest {};

struct Parts {
  at::Tensor query, key, value;  // [micro, heads, sequence, head size], key and value repeated
};

// By the words of kernels.h, channel block by channel block.
Parts Split(const at::Tensor& qkv, const AttentionShape& s) {
  const at::Tensor rows = qkv.view({s.micro_batch_size, s.sequence_length, s.width()});
  auto heads = [&](int64_t count, auto place) {
    std::vector<at::Tensor> all;
    for (int64_t i = 0; i < count; ++i) all.push_back(rows.narrow(2, place(i) * s.head_size, s.head_size));
    return at::stack(all, 1);
  };
  const int64_t group = s.num_heads / s.num_kv_heads;
  if (s.interleaved) {
    return {heads(s.num_heads, [](int64_t i) { return 3 * i; }),
            heads(s.num_heads, [](int64_t i) { return 3 * i + 1; }),
            heads(s.num_heads, [](int64_t i) { return 3 * i + 2; })};
  }
  return {heads(s.num_heads, [](int64_t i) { return i; }),
          heads(s.num_heads, [&](int64_t i) { return s.num_heads + i / group; }),
          heads(s.num_heads, [&](int64_t i) { return s.num_heads + s.num_kv_heads + i / group; })};
}

at::Tensor Reference(const at::Tensor& qkv, const AttentionShape& s) {
  const Parts p = Split(qkv, s);
  const at::Tensor scores = p.query.matmul(p.key.transpose(-1, -2)) / std::sqrt(static_cast<double>(s.head_size));
  const at::Tensor mask = at::ones({s.sequence_length, s.sequence_length}, at::kBool).triu(1);
  const at::Tensor weights = scores.masked_fill(mask, -std::numeric_limits<double>::infinity()).softmax(-1);
  return weights.matmul(p.value).transpose(1, 2).reshape({s.tokens(), s.query_width()});
}

const AttentionShape kShapes[] = {{1, 1, 1, 1, 8}, {2, 7, 3, 3, 16}, {3, 33, 2, 2, 64},      {1, 130, 4, 4, 32},
                                  {2, 9, 3, 3, 5}, {2, 9, 4, 2, 16}, {1, 33, 6, 1, 8},       {2, 130, 4, 2, 64},
                                  {3, 5, 6, 3, 5}, {1, 1, 4, 1, 8},  {2, 9, 3, 3, 16, true}, {1, 33, 2, 2, 5, true}};

TEST_P(AttentionTest, ForwardAndBackwardEqualPlainSoftmax) {
  for (const AttentionShape& shape : kShapes) {
    const std::string text = std::to_string(shape.sequence_length) + " x " + std::to_string(shape.num_heads) + ":" +
                             std::to_string(shape.num_kv_heads) + " x " + std::to_string(shape.head_size);
    const at::Tensor qkv = Random({shape.tokens(), shape.width()}),
                     dout = Random({shape.tokens(), shape.query_width()});
    std::vector<at::Tensor> pool;
    AttentionForward(qkv, shape, pool);
    at::Tensor ref = Exact(qkv).requires_grad_();
    const at::Tensor want = Reference(ref, shape);
    want.backward(Exact(dout));
    EXPECT_LT(RelativeError(AttentionOutput(pool), want.detach()), Tolerance()) << text;
    const at::Tensor dqkv = Empty({shape.tokens(), shape.width()});
    AttentionBackward(dout, qkv, shape, pool, dqkv);
    EXPECT_LT(RelativeError(dqkv, ref.grad()), 3 * Tolerance()) << text;
  }
}

// What stays until Backward: the output and the log-sum-exp, and on GPUs the state of a random generator. No repeated
// key, no view that keeps a larger buffer.
TEST_P(AttentionTest, PoolHoldsTheOutputAndTheLogSumExp) {
  for (const AttentionShape& shape : {AttentionShape{2, 64, 6, 1, 16}, AttentionShape{2, 64, 4, 4, 16, true}}) {
    std::vector<at::Tensor> pool;
    AttentionForward(Random({shape.tokens(), shape.width()}), shape, pool);
    size_t held = 0;
    for (const at::Tensor& tensor : pool) held += tensor.storage().nbytes();
    const auto tokens = static_cast<size_t>(shape.tokens());
    const size_t want = tokens * static_cast<size_t>(shape.query_width()) * c10::elementSize(Type()) +
                        tokens * static_cast<size_t>(shape.num_heads) * c10::elementSize(Statistics());
    EXPECT_GE(held, want);
    EXPECT_LE(held, want + (OnGpu() ? 64 : 0));
  }
}

// A prompt, single tokens, and several at once into a cache give what the whole sequence gives.
TEST_P(AttentionTest, DecodingThroughACacheEqualsTheWholeSequence) {
  for (const AttentionShape& whole : {AttentionShape{2, 12, 4, 2, 16}, AttentionShape{1, 12, 6, 1, 8},
                                      AttentionShape{3, 12, 2, 2, 5}, AttentionShape{2, 12, 3, 3, 8, true}}) {
    const at::Tensor qkv = Random({whole.tokens(), whole.width()});
    const at::Tensor want = Reference(Exact(qkv), whole).view({whole.micro_batch_size, 12, whole.query_width()});
    const std::vector<int64_t> cache_shape = {whole.micro_batch_size, whole.num_kv_heads, 15, whole.head_size};
    const at::Tensor keys = Empty(cache_shape), values = Empty(cache_shape);
    const at::Tensor rows = qkv.view({whole.micro_batch_size, 12, whole.width()});
    int64_t past = 0;
    for (int64_t count : {5, 1, 1, 3, 2}) {
      AttentionShape part = whole;
      part.sequence_length = count;
      const at::Tensor out = Empty({part.tokens(), part.query_width()});
      AttentionDecode(rows.narrow(1, past, count).contiguous().view({part.tokens(), part.width()}), part, keys, values,
                      past, out);
      EXPECT_LT(RelativeError(out, want.narrow(1, past, count).reshape({part.tokens(), part.query_width()})),
                Tolerance())
          << past << "+" << count << ", " << whole.num_heads << ":" << whole.num_kv_heads;
      past += count;
    }
    const at::Tensor value = Split(qkv, whole).value;  // a repeated head is as good as the first of its group
    const int64_t group = whole.num_heads / whole.num_kv_heads;
    EXPECT_TRUE(BitwiseEqual(values.narrow(2, 0, 12), value.slice(1, 0, whole.num_heads, group)));
  }
}

TRIREME_INSTANTIATE_KERNEL_TEST(AttentionTest);

}  // namespace
}  // namespace trireme::kernels
