// Activations, rotary positions and dropout on the CPU.
#include "engine/kernels/backend.h"
#include "engine/kernels/cpu/dispatch.h"

namespace trireme::kernels {
namespace {

// f(level, T{}, begin, end) on threads, over `count` items of `cost` elements each.
template <typename F>
void Run(const at::Tensor& tensor, int64_t count, int64_t cost, F&& f) {
  ForType(tensor.scalar_type(), [&]<typename T>(T type) {
    Parallel(count, cost,
             [&](int64_t begin, int64_t end) { AtLevel([&](auto level) { f(level, type, begin, end); }); });
  });
}

}  // namespace

template <>
void Backend<CpuDevice>::GeluTanhForward(const at::Tensor& fc, const at::Tensor& act) {
  Run(fc, fc.numel(), 4, [&]<typename Level, typename T>(Level, T, int64_t begin, int64_t end) {
    ActivationVectors<Level, T>::GeluTanhForward(Data<T>(fc) + begin, Data<T>(act) + begin, end - begin);
  });
}

template <>
void Backend<CpuDevice>::GeluTanhBackward(const at::Tensor& fc, const at::Tensor& dact, const at::Tensor& dfc) {
  Run(fc, fc.numel(), 4, [&]<typename Level, typename T>(Level, T, int64_t begin, int64_t end) {
    ActivationVectors<Level, T>::GeluTanhBackward(Data<T>(fc) + begin, Data<T>(dact) + begin, Data<T>(dfc) + begin,
                                                  end - begin);
  });
}

template <>
void Backend<CpuDevice>::GeluForward(const at::Tensor& fc, const at::Tensor& act) {
  Run(fc, fc.numel(), 4, [&]<typename Level, typename T>(Level, T, int64_t begin, int64_t end) {
    ActivationVectors<Level, T>::GeluForward(Data<T>(fc) + begin, Data<T>(act) + begin, end - begin);
  });
}

template <>
void Backend<CpuDevice>::GeluBackward(const at::Tensor& fc, const at::Tensor& dact, const at::Tensor& dfc) {
  Run(fc, fc.numel(), 4, [&]<typename Level, typename T>(Level, T, int64_t begin, int64_t end) {
    ActivationVectors<Level, T>::GeluBackward(Data<T>(fc) + begin, Data<T>(dact) + begin, Data<T>(dfc) + begin,
                                              end - begin);
  });
}

template <>
void Backend<CpuDevice>::SwiGluForward(const at::Tensor& gate_up, const at::Tensor& act) {
  const int64_t width = act.size(1);
  Run(act, act.size(0), 4 * width, [&]<typename Level, typename T>(Level, T, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* gate = Data<T>(gate_up) + 2 * row * width;
      ActivationVectors<Level, T>::SwiGluForward(gate, gate + width, Data<T>(act) + row * width, width);
    }
  });
}

template <>
void Backend<CpuDevice>::SwiGluBackward(const at::Tensor& gate_up, const at::Tensor& dact, const at::Tensor& dgate_up) {
  const int64_t width = dact.size(1);
  Run(dact, dact.size(0), 4 * width, [&]<typename Level, typename T>(Level, T, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* gate = Data<T>(gate_up) + 2 * row * width;
      T* dgate = Data<T>(dgate_up) + 2 * row * width;
      ActivationVectors<Level, T>::SwiGluBackward(gate, gate + width, Data<T>(dact) + row * width, dgate, dgate + width,
                                                  width);
    }
  });
}

template <>
void Backend<CpuDevice>::Rotate(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& cosines,
                                const at::Tensor& sines, int64_t first_position, bool inverse) {
  const int64_t heads = shape.num_heads + shape.num_kv_heads, half = cosines.size(1);
  Run(qkv, shape.tokens(), heads * half, [&]<typename Level, typename T>(Level, T, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t table_row = (first_position + row % shape.sequence_length) * half;
      const Acc<T>*cosine = Data<Acc<T>>(cosines) + table_row, *sine = Data<Acc<T>>(sines) + table_row;
      for (int64_t head = 0; head < heads; ++head) {
        T* channels = Data<T>(qkv) + row * shape.width() + RotatedHead(shape, head) * shape.head_size;
        PositionVectors<Level, T>::Rotate(channels, cosine, sine, half, inverse);
      }
    }
  });
}

template <>
void Backend<CpuDevice>::Dropout(const at::Tensor& x, const at::Tensor& residual, const DropoutMask& mask,
                                 int64_t sequence_length, const at::Tensor& y) {
  const int64_t width = x.size(1);
  Run(x, x.size(0), 4 * width, [&]<typename Level, typename T>(Level, T, int64_t begin, int64_t end) {
    const T* added = Data<T>(residual);
    for (int64_t row = begin; row < end; ++row) {
      const auto position =
          static_cast<uint32_t>(mask.first_position + static_cast<uint64_t>((mask.first_row + row) % sequence_length));
      const auto sample =
          static_cast<uint32_t>(mask.first_sample + static_cast<uint64_t>((mask.first_row + row) / sequence_length));
      PositionVectors<Level, T>::Dropout(Data<T>(x) + row * width, added == nullptr ? nullptr : added + row * width,
                                         Data<T>(y) + row * width, width, mask, position, sample);
    }
  });
}

}  // namespace trireme::kernels
