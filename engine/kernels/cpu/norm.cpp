// LayerNorm, GELU and column sums on the CPU.
#include <vector>

#include "engine/kernels/backend.h"
#include "engine/kernels/cpu/dispatch.h"

namespace trireme::kernels {
namespace {

constexpr int64_t kColumnBlock = 64;  // columns of one thread's turn: sums never depend on how many threads there are

int64_t ColumnBlocks(int64_t width) { return (width + kColumnBlock - 1) / kColumnBlock; }

}  // namespace

template <>
void Backend<CpuDevice>::LayerNormForward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                          double epsilon, const at::Tensor& y, const at::Tensor& mean,
                                          const at::Tensor& rstd) {
  const int64_t width = x.size(1);
  ForType(x.scalar_type(), [&]<typename T>(T) {
    Parallel(x.size(0), 2 * width, [&](int64_t begin, int64_t end) {
      AtLevel([&](auto level) {
        NormVectors<decltype(level), T>::Forward(
            Data<T>(x) + begin * width, Data<T>(weight), Data<T>(bias), static_cast<Acc<T>>(epsilon),
            Data<T>(y) + begin * width, Data<Acc<T>>(mean) + begin, Data<Acc<T>>(rstd) + begin, end - begin, width);
      });
    });
  });
}

template <>
void Backend<CpuDevice>::LayerNormBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                                           const at::Tensor& rstd, const at::Tensor& weight,
                                           const at::Tensor& residual_gradient, const at::Tensor& dx,
                                           const at::Tensor& dweight, const at::Tensor& dbias, bool add) {
  const int64_t rows = x.size(0), width = x.size(1);
  auto weights = [&]<typename T, typename G>(T, G) {
    Parallel(ColumnBlocks(width), rows * kColumnBlock, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kColumnBlock, last = std::min(width, first + kColumnBlock);
        Acc<T> weight_sums[kColumnBlock], bias_sums[kColumnBlock];
        AtLevel([&](auto level) {
          NormVectors<decltype(level), T>::WeightSums(Data<T>(dy), Data<T>(x), Data<Acc<T>>(mean), Data<Acc<T>>(rstd),
                                                      rows, width, first, last, weight_sums, bias_sums);
        });
        WriteSums(weight_sums, Data<G>(dweight) + first, last - first, add);
        WriteSums(bias_sums, Data<G>(dbias) + first, last - first, add);
      }
    });
  };
  ForType(x.scalar_type(), [&]<typename T>(T type) {
    if (dweight.scalar_type() == x.scalar_type()) {
      weights(type, T{});
    } else {
      weights(type, Acc<T>{});
    }
    Parallel(rows, 3 * width, [&](int64_t begin, int64_t end) {
      const T* residual = Data<T>(residual_gradient);
      AtLevel([&](auto level) {
        NormVectors<decltype(level), T>::Backward(
            Data<T>(dy) + begin * width, Data<T>(x) + begin * width, Data<Acc<T>>(mean) + begin,
            Data<Acc<T>>(rstd) + begin, Data<T>(weight), residual == nullptr ? nullptr : residual + begin * width,
            Data<T>(dx) + begin * width, end - begin, width);
      });
    });
  });
}

template <>
void Backend<CpuDevice>::LinearBackwardBias(const at::Tensor& dy, const at::Tensor& dbias, bool add) {
  const int64_t rows = dy.size(0), width = dy.size(1);
  auto sums = [&]<typename T, typename G>(T, G) {
    Parallel(ColumnBlocks(width), rows * kColumnBlock, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kColumnBlock, last = std::min(width, first + kColumnBlock);
        Acc<T> column_sums[kColumnBlock];
        AtLevel([&](auto level) {
          NormVectors<decltype(level), T>::ColumnSums(Data<T>(dy), rows, width, first, last, column_sums);
        });
        WriteSums(column_sums, Data<G>(dbias) + first, last - first, add);
      }
    });
  };
  ForType(dy.scalar_type(), [&]<typename T>(T type) {
    if (dbias.scalar_type() == dy.scalar_type()) {
      sums(type, T{});
    } else {
      sums(type, Acc<T>{});
    }
  });
}

template <>
void Backend<CpuDevice>::GeluTanhForward(const at::Tensor& fc, const at::Tensor& act) {
  ForType(fc.scalar_type(), [&]<typename T>(T) {
    Parallel(fc.numel(), 4, [&](int64_t begin, int64_t end) {
      AtLevel([&](auto level) {
        ActivationVectors<decltype(level), T>::GeluForward(Data<T>(fc) + begin, Data<T>(act) + begin, end - begin);
      });
    });
  });
}

template <>
void Backend<CpuDevice>::GeluTanhBackward(const at::Tensor& fc, const at::Tensor& dact, const at::Tensor& dfc) {
  ForType(fc.scalar_type(), [&]<typename T>(T) {
    Parallel(fc.numel(), 4, [&](int64_t begin, int64_t end) {
      AtLevel([&](auto level) {
        ActivationVectors<decltype(level), T>::GeluBackward(Data<T>(fc) + begin, Data<T>(dact) + begin,
                                                            Data<T>(dfc) + begin, end - begin);
      });
    });
  });
}

}  // namespace trireme::kernels
