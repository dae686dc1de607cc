// The inner loops of the CPU kernels on plain pointers: one thread's share of the work. Definitions in *_vectors.cpp,
// compiled once a level.
#pragma once
#include <cstdint>

#include "engine/kernels/cpu/element.h"

namespace trireme::kernels {

// norm_vectors.cpp
template <typename Level, typename T>
struct NormVectors {
  using A = Acc<T>;
  static void Forward(const T* x, const T* weight, const T* bias, A epsilon, T* y, A* mean, A* rstd, int64_t rows,
                      int64_t width);
  // residual may be null.
  static void Backward(const T* dy, const T* x, const A* mean, const A* rstd, const T* weight, const T* residual, T* dx,
                       int64_t rows, int64_t width);
  // dweight[c - begin] and dbias[c - begin] of the columns [begin, end), over all rows.
  static void WeightSums(const T* dy, const T* x, const A* mean, const A* rstd, int64_t rows, int64_t width,
                         int64_t begin, int64_t end, A* dweight, A* dbias);
  static void ColumnSums(const T* dy, int64_t rows, int64_t width, int64_t begin, int64_t end, A* sums);
};

// activation_vectors.cpp
template <typename Level, typename T>
struct ActivationVectors {
  using A = Acc<T>;
  static void GeluForward(const T* fc, T* act, int64_t count);
  static void GeluBackward(const T* fc, const T* dact, T* dfc, int64_t count);
  static void AddRows(const T* a, const T* b, T* sum,
                      int64_t count);  // b may be null: copies a; a may be null: copies b
  static void AddToSum(const T* row, A* sum, int64_t count);
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

// update_vectors.cpp. M: master and moments, G: gradient, W: weights (null: none).
template <typename M>
struct AdamStep {
  M beta1, beta2, correction1, correction2, learning_rate, epsilon, weight_decay, gradient_factor;
  bool decoupled;
};
template <typename M>
struct SgdStep {
  M momentum, keep, learning_rate, weight_decay, gradient_factor;  // keep: 1 - dampening
  bool nesterov, first;
};
template <typename Level, typename M, typename G, typename W>
struct UpdateVectors {
  static void Adam(M* master, M* exp_avg, M* exp_avg_sq, const G* gradient, W* weights, int64_t count,
                   const AdamStep<M>& step);
  static void Sgd(M* master, M* buffer, const G* gradient, W* weights, int64_t count, const SgdStep<M>& step);
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

}  // namespace trireme::kernels
