// LayerNorm, RMSNorm and column sums on the CPU.
#include <vector>

#include "engine/kernels/backend.h"
#include "engine/kernels/cpu/dispatch.h"

namespace trireme::kernels {
namespace {

constexpr int64_t kColumnBlock = 64;  // columns of one thread's turn: sums never depend on how many threads there are

// target (+)= column sums over `rows` rows; f(level, T{}, first, last, sums) makes those of columns [first, last).
template <typename F>
void SumColumns(at::ScalarType type, int64_t rows, const at::Tensor& target, bool add, F&& f) {
  const int64_t width = target.numel();
  auto sums = [&]<typename T, typename G>(T element, G) {
    Parallel((width + kColumnBlock - 1) / kColumnBlock, rows * kColumnBlock, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kColumnBlock, last = std::min(width, first + kColumnBlock);
        Acc<T> column_sums[kColumnBlock];
        AtLevel([&](auto level) { f(level, element, first, last, column_sums); });
        WriteSums(column_sums, Data<G>(target) + first, last - first, add);
      }
    });
  };
  ForType(type, [&]<typename T>(T element) {
    if (target.scalar_type() == type) {
      sums(element, T{});
    } else {
      sums(element, Acc<T>{});
    }
  });
}

}  // namespace

template <>
void Backend<CpuDevice>::NormForward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                     double epsilon, const at::Tensor& y, const at::Tensor& mean,
                                     const at::Tensor& rstd) {
  const int64_t width = x.size(1);
  ForType(x.scalar_type(), [&]<typename T>(T) {
    Parallel(x.size(0), 2 * width, [&](int64_t begin, int64_t end) {
      auto* means = Data<Acc<T>>(mean);
      AtLevel([&](auto level) {
        NormVectors<decltype(level), T>::Forward(Data<T>(x) + begin * width, Data<T>(weight), Data<T>(bias),
                                                 static_cast<Acc<T>>(epsilon), Data<T>(y) + begin * width,
                                                 means == nullptr ? nullptr : means + begin, Data<Acc<T>>(rstd) + begin,
                                                 end - begin, width);
      });
    });
  });
}

template <>
void Backend<CpuDevice>::LinearBackwardBias(const at::Tensor& dy, const at::Tensor& dbias, bool add) {
  const int64_t rows = dy.size(0), width = dy.size(1);
  SumColumns(dy.scalar_type(), rows, dbias, add,
             [&]<typename Level, typename T>(Level, T, int64_t first, int64_t last, Acc<T>* sums) {
               NormVectors<Level, T>::ColumnSums(Data<T>(dy), rows, width, first, last, sums);
             });
}

template <>
void Backend<CpuDevice>::NormBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                                      const at::Tensor& rstd, const at::Tensor& weight,
                                      const at::Tensor& residual_gradient, const at::Tensor& dx,
                                      const at::Tensor& dweight, const at::Tensor& dbias, bool add) {
  const int64_t rows = x.size(0), width = x.size(1);
  SumColumns(x.scalar_type(), rows, dweight, add,
             [&]<typename Level, typename T>(Level, T, int64_t first, int64_t last, Acc<T>* sums) {
               NormVectors<Level, T>::WeightSums(Data<T>(dy), Data<T>(x), Data<Acc<T>>(mean), Data<Acc<T>>(rstd), rows,
                                                 width, first, last, sums);
             });
  if (dbias.defined()) LinearBackwardBias(dy, dbias, add);
  ForType(x.scalar_type(), [&]<typename T>(T) {
    Parallel(rows, 3 * width, [&](int64_t begin, int64_t end) {
      const T* residual = Data<T>(residual_gradient);
      const auto* means = Data<Acc<T>>(mean);
      AtLevel([&](auto level) {
        NormVectors<decltype(level), T>::Backward(
            Data<T>(dy) + begin * width, Data<T>(x) + begin * width, means == nullptr ? nullptr : means + begin,
            Data<Acc<T>>(rstd) + begin, Data<T>(weight), residual == nullptr ? nullptr : residual + begin * width,
            Data<T>(dx) + begin * width, end - begin, width);
      });
    });
  });
}

}  // namespace trireme::kernels
