// GELU, SwiGLU, and the bias and residual of products whose library call cannot take them.
#include "engine/kernels/cuda/device.cuh"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// gelu(x) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
template <typename A>
__device__ inline A Sigmoid(A x) {
  const A twice = A(1.5957691216057307117597842397375) * (x + A(0.044715) * x * x * x);
  return A(1) / (A(1) + Exp(-twice));
}

struct TanhForward {
  template <typename A>
  __device__ A operator()(A x, A) const {
    return x * Sigmoid(x);
  }
};
struct TanhBackward {
  template <typename A>
  __device__ A operator()(A x, A dy) const {
    const A sigmoid = Sigmoid(x);
    const A inner = A(1.5957691216057307117597842397375) * (A(1) + A(3 * 0.044715) * x * x);
    return dy * (sigmoid + x * sigmoid * (A(1) - sigmoid) * inner);
  }
};

__device__ inline float NormalDistribution(float x) { return normcdff(x); }
__device__ inline double NormalDistribution(double x) { return normcdf(x); }

struct ExactForward {
  template <typename A>
  __device__ A operator()(A x, A) const {
    return x * NormalDistribution(x);
  }
};
struct ExactBackward {
  template <typename A>
  __device__ A operator()(A x, A dy) const {
    const A density = A(0.39894228040143267794) * Exp(A(-0.5) * x * x);
    return dy * (NormalDistribution(x) + x * density);
  }
};

// out = f(a, b); b may be null. out may be b.
template <typename T, int N, typename F>
__global__ void Elementwise(const T* __restrict__ a, const T* b, T* out, int64_t packs, F f) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const Pack<T, N> x = LoadPack<T, N>(a + i * N);
    Pack<T, N> y = x, result;
    if (b != nullptr) y = LoadPack<T, N>(b + i * N);
#pragma unroll
    for (int k = 0; k < N; ++k) Store(f(Load(x.values[k]), Load(y.values[k])), result.values[k]);
    StorePack<T, N>(result, out + i * N);
  }
}

template <typename F>
void Run(Element type, const void* a, const void* b, void* out, int64_t count, cudaStream_t stream, F f) {
  if (count == 0) return;
  ForElement(type, [&](auto element) {
    using T = decltype(element);
    auto launch = [&](auto size, int64_t begin, int64_t packs) {
      constexpr int N = decltype(size)::value;
      if (packs == 0) return;
      Elementwise<T, N, F><<<GridFor(packs, kThreads, kMostBlocks), kThreads, 0, stream>>>(
          static_cast<const T*>(a) + begin, b == nullptr ? nullptr : static_cast<const T*>(b) + begin,
          static_cast<T*>(out) + begin, packs, f);
    };
    const bool aligned = Aligned(a, 16) && Aligned(b, 16) && Aligned(out, 16);
    const int64_t packs = aligned ? count / kPackSize<T> : 0, tail = packs * kPackSize<T>;
    launch(std::integral_constant<int, kPackSize<T>>{}, 0, packs);
    launch(std::integral_constant<int, 1>{}, tail, count - tail);
  });
}

// dact null: act = silu(gate) * up goes to out, [rows, width]; else the gradients of both go to out, [rows, 2 width],
// which may be gate_up.
template <typename T, int N>
__global__ void SwiGluKernel(const T* gate_up, const T* dact, T* out, int64_t rows, int64_t width) {
  using A = Acc<T>;
  const int64_t row_packs = width / N, packs = rows * row_packs;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t row = i / row_packs, column = i % row_packs * N, at = 2 * row * width + column;
    const Pack<T, N> gate = LoadPack<T, N>(gate_up + at), up = LoadPack<T, N>(gate_up + at + width);
    Pack<T, N> first, second, gradient;
    if (dact != nullptr) gradient = LoadPack<T, N>(dact + row * width + column);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const A g = Load(gate.values[k]), u = Load(up.values[k]);
      const A sigmoid = A(1) / (A(1) + Exp(-g)), silu = g * sigmoid;
      if (dact == nullptr) {
        Store(silu * u, first.values[k]);
      } else {
        const A d = Load(gradient.values[k]);
        Store(d * u * (sigmoid + silu * (A(1) - sigmoid)), first.values[k]);
        Store(d * silu, second.values[k]);
      }
    }
    if (dact == nullptr) {
      StorePack<T, N>(first, out + row * width + column);
    } else {
      StorePack<T, N>(first, out + at);
      StorePack<T, N>(second, out + at + width);
    }
  }
}

void RunSwiGlu(Element type, const void* gate_up, const void* dact, void* out, int64_t rows, int64_t width,
               cudaStream_t stream) {
  if (rows * width == 0) return;
  ForElement(type, [&](auto element) {
    using T = decltype(element);
    auto launch = [&](auto size) {
      constexpr int N = decltype(size)::value;
      SwiGluKernel<T, N><<<GridFor(rows * width / N, kThreads, kMostBlocks), kThreads, 0, stream>>>(
          static_cast<const T*>(gate_up), static_cast<const T*>(dact), static_cast<T*>(out), rows, width);
    };
    if (width % kPackSize<T> == 0 && Aligned(gate_up, 16) && Aligned(dact, 16) && Aligned(out, 16)) {
      launch(std::integral_constant<int, kPackSize<T>>{});
    } else {
      launch(std::integral_constant<int, 1>{});
    }
  });
}

template <typename T>
__global__ void AddBiasResidualKernel(T* y, const T* bias, const T* residual, int64_t count, int64_t width) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    Acc<T> value = Load(y[i]);
    if (bias != nullptr) value += Load(bias[i % width]);
    if (residual != nullptr) value += Load(residual[i]);
    Store(value, y[i]);
  }
}

}  // namespace

void GeluTanhForward(Element type, const void* fc, void* act, int64_t count, cudaStream_t stream) {
  Run(type, fc, nullptr, act, count, stream, TanhForward{});
  CheckLaunch("GeluTanhForward");
}

void GeluTanhBackward(Element type, const void* fc, const void* dact, void* dfc, int64_t count, cudaStream_t stream) {
  Run(type, fc, dact, dfc, count, stream, TanhBackward{});
  CheckLaunch("GeluTanhBackward");
}

void GeluForward(Element type, const void* fc, void* act, int64_t count, cudaStream_t stream) {
  Run(type, fc, nullptr, act, count, stream, ExactForward{});
  CheckLaunch("GeluForward");
}

void GeluBackward(Element type, const void* fc, const void* dact, void* dfc, int64_t count, cudaStream_t stream) {
  Run(type, fc, dact, dfc, count, stream, ExactBackward{});
  CheckLaunch("GeluBackward");
}

void SwiGluForward(Element type, const void* gate_up, void* act, int64_t rows, int64_t width, cudaStream_t stream) {
  RunSwiGlu(type, gate_up, nullptr, act, rows, width, stream);
  CheckLaunch("SwiGluForward");
}

void SwiGluBackward(Element type, const void* gate_up, const void* dact, void* dgate_up, int64_t rows, int64_t width,
                    cudaStream_t stream) {
  RunSwiGlu(type, gate_up, dact, dgate_up, rows, width, stream);
  CheckLaunch("SwiGluBackward");
}

void AddBiasResidual(Element type, void* y, const void* bias, const void* residual, int64_t rows, int64_t width,
                     cudaStream_t stream) {
  if (rows * width == 0) return;
  ForElement(type, [&](auto element) {
    using T = decltype(element);
    AddBiasResidualKernel<T><<<GridFor(rows * width, kThreads, kMostBlocks), kThreads, 0, stream>>>(
        static_cast<T*>(y), static_cast<const T*>(bias), static_cast<const T*>(residual), rows * width, width);
  });
  CheckLaunch("AddBiasResidual");
}

}  // namespace trireme::kernels::cuda
