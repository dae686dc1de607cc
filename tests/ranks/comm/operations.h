// Every operation against plain sums, for whichever back end made `group`. Values are small integers, whose sums each
// dtype holds exactly, so results are compared for equality.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <vector>

#include "engine/comm/communicator.h"

namespace trireme::test {

inline const std::vector<at::ScalarType>& ReducibleTypes() {
  static const std::vector<at::ScalarType> types{at::kDouble, at::kFloat, at::kBFloat16,
                                                 at::kHalf,   at::kLong,  at::kInt};
  return types;
}

// What rank `rank` holds: [n], different on every rank and at every place.
inline at::Tensor Values(int rank, int64_t n, at::ScalarType type, int64_t salt = 0) {
  return at::arange(n, at::kLong).add(salt).mul(rank + 2).add(rank).remainder(23).sub(7).to(type);
}

inline at::Tensor Reduced(int world, int64_t n, at::ScalarType type, ReduceOp op, int64_t salt = 0) {
  std::vector<at::Tensor> all;
  for (int r = 0; r < world; ++r) all.push_back(Values(r, n, at::kLong, salt));
  const at::Tensor stacked = at::stack(all);
  return (op == ReduceOp::kSum ? stacked.sum(0) : stacked.amax(0)).to(type);
}

inline void CheckReductions(Communicator& group, int64_t n, at::ScalarType type) {
  const int size = group.size();
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    const at::Tensor all = Values(group.rank(), n, type);
    group.AllReduce(all, op);
    EXPECT_TRUE(all.equal(Reduced(size, n, type, op)));

    const at::Tensor in = Values(group.rank(), size * n, type, 5);
    const at::Tensor before = in.clone();
    const at::Tensor part = at::full({n}, -99, type);
    group.ReduceScatter(in, part, op);
    const at::Tensor expected = Reduced(size, size * n, type, op, 5).narrow(0, group.rank() * n, n);
    EXPECT_TRUE(part.equal(expected));
    EXPECT_TRUE(in.equal(before)) << "reduce_scatter changed its input";
    group.ReduceScatter(in, in.narrow(0, group.rank() * n, n), op);
    EXPECT_TRUE(in.narrow(0, group.rank() * n, n).equal(expected)) << "in place";
  }
}

inline void CheckCopies(Communicator& group, int64_t n, at::ScalarType type) {
  const int size = group.size();
  std::vector<at::Tensor> parts;
  for (int r = 0; r < size; ++r) parts.push_back(Values(r, n, type));
  const at::Tensor expected = at::stack(parts).view({size * n});
  const at::Tensor out = at::full({size * n}, 99, type);
  group.AllGather(parts[group.rank()], out);
  EXPECT_TRUE(out.equal(expected));
  const at::Tensor in_place = at::full({size * n}, 99, type);
  in_place.narrow(0, group.rank() * n, n).copy_(parts[group.rank()]);
  group.AllGather(in_place.narrow(0, group.rank() * n, n), in_place);
  EXPECT_TRUE(in_place.equal(expected)) << "in place";

  for (int root = 0; root < size; ++root) {
    const at::Tensor tensor = Values(group.rank(), n, type, 11);
    group.Broadcast(tensor, root);
    EXPECT_TRUE(tensor.equal(Values(root, n, type, 11)));
  }
  if (size == 1) return;
  const int next = (group.rank() + 1) % size, previous = (group.rank() + size - 1) % size;
  const at::Tensor received = at::full({n}, 99, type);
  group.GroupStart();
  group.Send(Values(group.rank(), n, type), next);
  group.Recv(received, previous);
  group.GroupEnd();
  EXPECT_TRUE(received.equal(Values(previous, n, type)));
  if (group.rank() == 0) {  // and one by one, along a chain
    group.Send(received, 1);
  } else {
    group.Recv(received, group.rank() - 1);
    if (group.rank() + 1 < size) group.Send(received, group.rank() + 1);
    EXPECT_TRUE(received.equal(Values(size - 1, n, type)));
  }
}

inline void CheckEverything(Communicator& group) {
  for (const int64_t n : {0, 1, 7, 1021, 12289}) {
    for (const at::ScalarType type : ReducibleTypes()) {
      SCOPED_TRACE(::testing::Message() << "n " << n << " type " << type);
      CheckReductions(group, n, type);
      CheckCopies(group, n, type);
      if (::testing::Test::HasFailure()) return;
    }
    CheckCopies(group, n, at::kByte);
    group.Barrier();
  }
}

// 16-bit sums are taken in fp32 and rounded once: 256 + 1 + 1 is 258 in bf16, and 256 where each addition rounds.
inline void CheckSixteenBitSums(Communicator& group) {
  const at::Tensor tensor = at::full({5}, group.rank() == 0 ? 256 : 1, at::kBFloat16);
  group.AllReduce(tensor, ReduceOp::kSum);
  EXPECT_TRUE(tensor.equal(at::full({5}, 256 + group.size() - 1, at::kBFloat16)));
}

}  // namespace trireme::test
