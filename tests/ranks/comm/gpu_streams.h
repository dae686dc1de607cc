// What the tests of host-staged communication on one GPU share: streams, and every operation on two of them.
#pragma once
#include <ATen/ops/zeros.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "engine/comm/host_staged.h"
#include "tests/ranks/comm/operations.h"

namespace trireme::test {

class CudaStream {
 public:
  CudaStream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  ~CudaStream() { cudaStreamDestroy(stream_); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  operator CommStream() const { return stream_; }
  void Drain() { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }
  bool Idle() { return cudaStreamQuery(stream_) == cudaSuccess; }

 private:
  cudaStream_t stream_ = nullptr;
};

// On the GPU, and there for every stream.
inline at::Tensor OnGpu(const at::Tensor& tensor) {
  const at::Tensor there = tensor.to(at::Device(at::kCUDA, 0));
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  return there;
}

struct GotAndWanted {
  at::Tensor got, want;
};

// Every operation on two streams in turn, enqueued without a wait. All memory is there before: its allocation may wait
// for streams, also for another rank's.
inline void CheckOnStreams(Communicator& group, int64_t n, at::ScalarType type) {
  const int size = group.size(), rank = group.rank(), next = (rank + 1) % size, previous = (rank + size - 1) % size;
  CudaStream first, second;
  std::vector<GotAndWanted> pairs;
  const auto keep = [&](const at::Tensor& got, const at::Tensor& want) { pairs.push_back({OnGpu(got), want}); };
  std::vector<at::Tensor> parts;
  for (int r = 0; r < size; ++r) parts.push_back(Values(r, n, type));
  const at::Tensor mine = OnGpu(parts[static_cast<size_t>(rank)]), wide = OnGpu(Values(rank, size * n, type, 5));
  const at::Tensor empty = at::zeros({n}, type);
  constexpr std::array kOps = {ReduceOp::kSum, ReduceOp::kMax};
  for (const ReduceOp op : kOps) keep(Values(rank, n, type), Reduced(size, n, type, op));
  for (const ReduceOp op : kOps) keep(empty, Reduced(size, size * n, type, op, 5).narrow(0, rank * n, n));
  keep(at::zeros({size * n}, type), at::stack(parts).view({size * n}));
  keep(Values(rank, n, type, 11), Values(size - 1, n, type, 11));
  keep(empty, Values(previous, n, type));
  group.Barrier();
  for (size_t i = 0; i < kOps.size(); ++i) {
    group.AllReduce(pairs[i].got, kOps[i], first);
    group.ReduceScatter(wide, pairs[kOps.size() + i].got, kOps[i], second);
  }
  group.AllGather(mine, pairs[4].got, first);
  group.Broadcast(pairs[5].got, size - 1, second);
  group.GroupStart();
  group.Send(mine, next, first);
  group.Recv(pairs[6].got, previous, first);
  group.GroupEnd();
  first.Drain();
  second.Drain();
  group.CheckHealth();
  for (size_t i = 0; i < pairs.size(); ++i) EXPECT_TRUE(pairs[i].got.cpu().equal(pairs[i].want)) << "result " << i;
}

// As a trainer's first run: while it gets its memory and its kernels, no stream may wait for another rank.
inline void RunFirst(Communicator& group, int64_t most, const std::vector<at::ScalarType>& types) {
  WaitOnHost(group, true);
  for (const at::ScalarType type : types) CheckOnStreams(group, most, type);
  group.Barrier();
  WaitOnHost(group, false);
}

}  // namespace trireme::test
