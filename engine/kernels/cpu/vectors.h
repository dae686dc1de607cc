// The inner loops of the CPU kernels on plain pointers: one thread's share of the work. Definitions in *_vectors.cpp,
// compiled once a level.
#pragma once
#include <cstdint>

#include "engine/kernels/cpu/element.h"
#include "engine/kernels/philox.h"

namespace trireme::kernels {

// norm_vectors.cpp. mean and bias null: RMSNorm.
template <typename Level, typename T>
struct NormVectors {
  using A = Acc<T>;
  static void Forward(const T* x, const T* weight, const T* bias, A epsilon, T* y, A* mean, A* rstd, int64_t rows,
                      int64_t width);
  // residual may be null.
  static void Backward(const T* dy, const T* x, const A* mean, const A* rstd, const T* weight, const T* residual, T* dx,
                       int64_t rows, int64_t width);
  // dweight[c - begin] of the columns [begin, end), over all rows.
  static void WeightSums(const T* dy, const T* x, const A* mean, const A* rstd, int64_t rows, int64_t width,
                         int64_t begin, int64_t end, A* dweight);
  static void ColumnSums(const T* dy, int64_t rows, int64_t width, int64_t begin, int64_t end, A* sums);
};

// activation_vectors.cpp. Outputs may be inputs where kernels.h says so.
template <typename Level, typename T>
struct ActivationVectors {
  using A = Acc<T>;
  static void GeluTanhForward(const T* fc, T* act, int64_t count);
  static void GeluTanhBackward(const T* fc, const T* dact, T* dfc, int64_t count);
  static void GeluForward(const T* fc, T* act, int64_t count);
  static void GeluBackward(const T* fc, const T* dact, T* dfc, int64_t count);
  static void SwiGluForward(const T* gate, const T* up, T* act, int64_t count);
  static void SwiGluBackward(const T* gate, const T* up, const T* dact, T* dgate, T* dup, int64_t count);
  // One null: a copy of the other; both: zeros.
  static void AddRows(const T* a, const T* b, T* sum, int64_t count);
  static void AddToSum(const T* row, A* sum, int64_t count);
};

// position_vectors.cpp
template <typename Level, typename T>
struct PositionVectors {
  using A = Acc<T>;
  // Turns the `half` channels at `head` with the `half` ones after them, forward or back.
  static void Rotate(T* head, const A* cosines, const A* sines, int64_t half, bool inverse);
  // One row of `width` channels; residual may be null, y may be x.
  static void Dropout(const T* x, const T* residual, T* y, int64_t width, const DropoutMask& mask, uint32_t position,
                      uint32_t sample);
};

// loss_vectors.cpp
template <typename Level, typename T>
struct LossVectors {
  using A = Acc<T>;
  // Loss of one row; label in [0, vocab). With `write` the row becomes its gradient times scale, columns from vocab to
  // padded zero.
  static A Row(T* logits, int64_t vocab, int64_t padded, int64_t label, A scale, bool write);
};

// cast_vectors.cpp
template <typename Level, typename From, typename To>
struct CastVectors {
  static void Copy(const From* source, To* destination, int64_t count);
  static void Add(const From* source, To* destination, int64_t count);
};
template <typename Level, typename T>
struct SquareVectors {
  static double Sum(const T* values, int64_t count);
};

// adam_vectors.cpp, the only loops that exist for AVX-512 too. M: master and moments, G: gradient, W: weights (null:
// none). `stream`: weights go past the caches. No bit depends on it, on the level, or on where the buffers are cut.
template <typename M>
struct AdamStep {
  M beta1, beta2, epsilon, gradient_factor;
  M step_size;        // lr / c1
  M inverse_root;     // 1 / sqrt(c2)
  M coupled_decay;    // wd, added to the gradient (L2)
  M decoupled_decay;  // lr * wd, taken off the weight
};
template <typename Level, typename M, typename G, typename W>
struct AdamVectors {
  static void Update(M* master, M* exp_avg, M* exp_avg_sq, const G* gradient, W* weights, int64_t count,
                     const AdamStep<M>& step, bool stream);
};

// update_vectors.cpp. M, G, W as above.
template <typename M>
struct SgdStep {
  M momentum, keep, learning_rate, weight_decay, gradient_factor;  // keep: 1 - dampening
  bool nesterov, first;
};
template <typename M>
struct AdagradStep {
  M learning_rate, epsilon, weight_decay, gradient_factor;
};
template <typename M>
struct LionStep {
  M beta1, beta2, learning_rate, weight_decay, gradient_factor;
};
template <typename Level, typename M, typename G, typename W>
struct UpdateVectors {
  static void Sgd(M* master, M* buffer, const G* gradient, W* weights, int64_t count, const SgdStep<M>& step);
  static void Adagrad(M* master, M* sum, const G* gradient, W* weights, int64_t count, const AdagradStep<M>& step);
  static void Lion(M* master, M* exp_avg, const G* gradient, W* weights, int64_t count, const LionStep<M>& step);
};

// lamb_vectors.cpp
template <typename M>
struct LambStep {
  M beta1, beta2, epsilon, weight_decay, gradient_factor;
  bool epsilon_inside_root;
};
template <typename Level, typename M, typename G>
struct LambMomentVectors {
  // Writes u, without reading it.
  static void Update(const M* master, M* exp_avg, M* exp_avg_sq, const G* gradient, M* u, int64_t count,
                     const LambStep<M>& step);
};
template <typename Level, typename M, typename W>
struct LambVectors {
  // p -= rate u
  static void Apply(M* master, const M* exp_avg, const M* exp_avg_sq, W* weights, int64_t count,
                    const LambStep<M>& step, M rate);
};

// Calls f with the best level of this machine.
bool HasAvx2();
template <typename F>
auto AtLevel(F&& f) {
#ifdef TRIREME_KERNELS_AVX2
  if (HasAvx2()) return f(Avx2{});
#endif
  return f(Baseline{});
}

// As AtLevel, for loops that exist for AVX-512 too.
bool HasAvx512();
template <typename F>
auto AtWidestLevel(F&& f) {
#ifdef TRIREME_KERNELS_AVX2
  if (HasAvx512()) return f(Avx512{});
#endif
  return AtLevel(f);
}

}  // namespace trireme::kernels
