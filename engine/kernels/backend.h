// The same functions as kernels.h after its checks, once a device. kernels.cpp checks arguments and calls one of the
// two.
#pragma once
#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/philox.h"

namespace trireme::kernels {

// Where in a row of qkv, counted in heads, the queries and keys lie: i < num_heads + num_kv_heads.
inline int64_t RotatedHead(const AttentionShape& shape, int64_t i) { return shape.interleaved ? i / 2 * 3 + i % 2 : i; }

struct CpuDevice {};   // defined in cpu/
struct CudaDevice {};  // defined in cuda/

template <typename Device>
struct Backend {
  // bias, mean, dbias undefined: RMSNorm.
  static void NormForward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                          const at::Tensor& y, const at::Tensor& mean, const at::Tensor& rstd);
  static void NormBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
                           const at::Tensor& weight, const at::Tensor& residual_gradient, const at::Tensor& dx,
                           const at::Tensor& dweight, const at::Tensor& dbias, bool add);
  static void GeluTanhForward(const at::Tensor& fc, const at::Tensor& act);
  static void GeluTanhBackward(const at::Tensor& fc, const at::Tensor& dact, const at::Tensor& dfc);
  static void GeluForward(const at::Tensor& fc, const at::Tensor& act);
  static void GeluBackward(const at::Tensor& fc, const at::Tensor& dact, const at::Tensor& dfc);
  static void SwiGluForward(const at::Tensor& gate_up, const at::Tensor& act);
  static void SwiGluBackward(const at::Tensor& gate_up, const at::Tensor& dact, const at::Tensor& dgate_up);
  static void Rotate(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& cosines,
                     const at::Tensor& sines, int64_t first_position, bool inverse);
  static void Dropout(const at::Tensor& x, const at::Tensor& residual, const DropoutMask& mask, int64_t sequence_length,
                      const at::Tensor& y);
  static void LinearForward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& residual, const at::Tensor& y);
  static void LinearBackwardInput(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& dx);
  static void LinearBackwardWeight(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& dweight, bool add,
                                   const at::Tensor& workspace);
  static void LinearBackwardBias(const at::Tensor& dy, const at::Tensor& dbias, bool add);
  static void EmbeddingForward(const at::Tensor& tokens, const at::Tensor& token_table,
                               const at::Tensor& position_table, const at::Tensor& x);
  static void EmbeddingBackward(const at::Tensor& dx, const at::Tensor& tokens, const at::Tensor& dtoken_table,
                                const at::Tensor& dposition_table, bool add);
  // train: logits become gradients, kLossSum and kTokens grow; else kEvalLossSum and kEvalTokens.
  static void CrossEntropy(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row, int64_t vocab_size,
                           double gradient_scale, const at::Tensor& row_losses, const at::Tensor& state, bool train);
  static void VocabularyStatistics(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row,
                                   const VocabularyPart& part, const at::Tensor& maxima, const at::Tensor& sums);
  static void VocabularyLoss(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row,
                             const VocabularyPart& part, const at::Tensor& maxima, const at::Tensor& sums,
                             double gradient_scale, const at::Tensor& state, bool train);
  static void SumOfSquares(const at::Tensor& gradient, const at::Tensor& state);
  static void FinishStepStats(const at::Tensor& state, const StepStatsOptions& options);
  static void AdamUpdate(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                         const at::Tensor& gradient, const at::Tensor& weights, const at::Tensor& state,
                         const at::Tensor& learning_rates, const at::Tensor& betas, const AdamOptions& options);
  static void SgdUpdate(const at::Tensor& master, const at::Tensor& momentum_buffer, const at::Tensor& gradient,
                        const at::Tensor& weights, const at::Tensor& state, const at::Tensor& learning_rates,
                        const SgdOptions& options);
  static void AdagradUpdate(const at::Tensor& master, const at::Tensor& sum, const at::Tensor& gradient,
                            const at::Tensor& weights, const at::Tensor& state, const at::Tensor& learning_rates,
                            const AdagradOptions& options);
  static void LionUpdate(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& gradient,
                         const at::Tensor& weights, const at::Tensor& state, const at::Tensor& learning_rates,
                         const at::Tensor& betas, const LionOptions& options);
  static void LambMoments(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                          const at::Tensor& gradient, const at::Tensor& squares, const at::Tensor& state,
                          const at::Tensor& learning_rates, const at::Tensor& betas, const LambOptions& options);
  static void LambUpdate(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                         const at::Tensor& weights, const at::Tensor& squares, const at::Tensor& state,
                         const at::Tensor& learning_rates, const at::Tensor& betas, const LambOptions& options);
  static void CastCopy(const at::Tensor& source, const at::Tensor& destination);
  static void AddInto(const at::Tensor& source, const at::Tensor& destination);
  static void FindNonFinite(const at::Tensor& values, const at::Tensor& result);
  static void Checksum(const at::Tensor& values, const at::Tensor& result);
};

}  // namespace trireme::kernels

// Runs a function of Backend on the device of `tensor`.
#ifdef TRIREME_HAS_CUDA
#define TRIREME_RUN(tensor, Function, ...) \
  ((tensor).is_cuda() ? Backend<CudaDevice>::Function(__VA_ARGS__) : Backend<CpuDevice>::Function(__VA_ARGS__))
#else
#define TRIREME_RUN(tensor, Function, ...)                                                                     \
  do {                                                                                                         \
    TRIREME_CHECK((tensor).is_cpu(), "a program without GPU code got a tensor on " + (tensor).device().str()); \
    Backend<CpuDevice>::Function(__VA_ARGS__);                                                                 \
  } while (false)
#endif
