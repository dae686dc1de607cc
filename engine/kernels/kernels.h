// The fused operations: functions on preallocated tensors, one version a device (cpu/, cuda/), chosen by the tensors'
// device.
//   kernels::LinearForward(x, weight, bias, /*residual=*/{}, y);
//
// Common rules.
// - Compute types: fp64, fp32, bf16, fp16. Statistics and reductions are made in fp32 (fp64 for fp64), elementwise
// results rounded once.
// - Gradients of weights go to the accumulation type: the compute type itself, or fp32 beside a 16-bit compute type.
//   `add` false writes, true adds.
// - Tensors are contiguous and row-major unless said; outputs are passed as const at::Tensor& and written in place. An
// undefined tensor
//   ({}) is "none" where said. T = tokens of the micro-batch = micro * seq, h = hidden size, V = rows of the embedding,
//   padding included.
// - Nothing here synchronises with the host or allocates, but what LibTorch's attention returns, ATen's own scratch,
// and one scratch a
//   stream at its first use. CUDA work goes to the current stream.
// - Every result is the same from run to run, however many threads, except where said (attention on GPUs).
// - Wrong shapes, types or devices are our bugs: TRIREME_CHECK.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/kernels/step_state.h"

namespace trireme::kernels {

// ---- LayerNorm (arXiv:1607.06450). x, y: [T, h]; weight, bias: [h]; mean, rstd: [T] fp32 (fp64 for fp64), rstd = 1 /
// sqrt(var + epsilon).
void LayerNormForward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                      const at::Tensor& y, const at::Tensor& mean, const at::Tensor& rstd);
// dx = gradient of x (+ residual_gradient [T, h] where defined; it may be dx itself). dx may not alias dy.
// dweight, dbias: [h], accumulation type.
void LayerNormBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
                       const at::Tensor& weight, const at::Tensor& residual_gradient, const at::Tensor& dx,
                       const at::Tensor& dweight, const at::Tensor& dbias, bool add);

// ---- RMSNorm (arXiv:1910.07467): y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + epsilon). Shapes as LayerNorm's.
void RmsNormForward(const at::Tensor& x, const at::Tensor& weight, double epsilon, const at::Tensor& y,
                    const at::Tensor& rstd);
// As LayerNormBackward.
void RmsNormBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight,
                     const at::Tensor& residual_gradient, const at::Tensor& dx, const at::Tensor& dweight, bool add);

// ---- GELU, tanh form (arXiv:1606.08415, 2; Hugging Face "gelu_new"). Any shape. fc includes the bias. dfc may be
// dact.
void GeluTanhForward(const at::Tensor& fc, const at::Tensor& act);
void GeluTanhBackward(const at::Tensor& fc, const at::Tensor& dact, const at::Tensor& dfc);

// ---- GELU, exact form with the error function (Hugging Face "gelu"). As the tanh form.
void GeluForward(const at::Tensor& fc, const at::Tensor& act);
void GeluBackward(const at::Tensor& fc, const at::Tensor& dact, const at::Tensor& dfc);

// ---- SwiGLU (arXiv:2002.05202): act = silu(gate) * up. gate_up, dgate_up: [T, 2f], a row is gate | up; act, dact: [T,
// f]. dgate_up may be gate_up.
void SwiGluForward(const at::Tensor& gate_up, const at::Tensor& act);
void SwiGluBackward(const at::Tensor& gate_up, const at::Tensor& dact, const at::Tensor& dgate_up);

// ---- Linear. x: [T, in], weight: [out, in], y, dy: [T, out].
// y = x weight^T (+ bias [out]) (+ residual [T, out]); bias and residual may be {}. y may not alias x or residual.
void LinearForward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& residual,
                   const at::Tensor& y);
void LinearBackwardInput(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& dx);  // dx = dy weight
// dweight (+)= dy^T x. `workspace` (uint8) is used only on the CPU where dweight's type is not dy's: the product is
// made there in the compute type, as many rows at a time as fit (at least one row of `in` elements must).
void LinearBackwardWeight(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& dweight, bool add,
                          const at::Tensor& workspace);
void LinearBackwardBias(const at::Tensor& dy, const at::Tensor& dbias, bool add);  // dbias [out] (+)= column sums of dy

// ---- Heads of a fused query, key and value product. A row of qkv is q heads | k heads | v heads, or, interleaved (as
// GPT-NeoX), for each head q | k | v. Grouped-query attention (arXiv:2305.13245): query head i reads key head
// i / (num_heads / num_kv_heads).
struct AttentionShape {
  int64_t micro_batch_size = 0, sequence_length = 0;
  int64_t num_heads = 0, num_kv_heads = 0, head_size = 0;
  bool interleaved = false;  // needs num_kv_heads == num_heads
  int64_t tokens() const { return micro_batch_size * sequence_length; }
  int64_t query_width() const { return num_heads * head_size; }
  int64_t width() const { return (num_heads + 2 * num_kv_heads) * head_size; }
};

// ---- Rotary positions (arXiv:2104.09864, in halves as Hugging Face's rotate_half), in place on the queries and keys
// of qkv [T, width]. cosines, sines: [positions, r], fp32 (fp64 for fp64), r = half of the rotated channels of a head:
// channel c < r pairs with c + r, channels past 2r stay. Row (b, s) takes position first_position + s. `inverse` turns
// back: the gradient.
void Rotate(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& cosines, const at::Tensor& sines,
            int64_t first_position, bool inverse);

// ---- Causal self-attention through LibTorch's fused kernels, scale 1 / sqrt(head size).
// qkv: [T, width]. Replaces `pool` by what the kernel returns: pool[0] is the output, [1] the log-sum-exp, others the
// kernel's own. They live in LibTorch's allocator.
void AttentionForward(const at::Tensor& qkv, const AttentionShape& shape, std::vector<at::Tensor>& pool);
at::Tensor AttentionOutput(const std::vector<at::Tensor>& pool);  // [T, query width], a view of pool[0]
// dqkv: [T, width], may not alias qkv. Repeatable on GPUs only with at::globalContext().setDeterministicAlgorithms.
void AttentionBackward(const at::Tensor& dout, const at::Tensor& qkv, const AttentionShape& shape,
                       const std::vector<at::Tensor>& pool, const at::Tensor& dqkv);

// Generation: writes the new keys and values of qkv (rotated, [T, width]) into the cache (keys, values: [micro,
// num_kv_heads, capacity, head size], compute type) at positions past .. past + sequence_length - 1, and attends from
// the new queries to all of them. out: [T, query width]. May allocate.
void AttentionDecode(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& keys,
                     const at::Tensor& values, int64_t past, const at::Tensor& out);

// ---- Dropout whose mask is a function of what is dropped, not of who computes it: no layout, split or recomputation
// changes it. Philox4x32-10 (Salmon et al., SC11): channel c of a row takes word c % 4 at counter (c / 4, position,
// sample, 4 * layer + site) and is kept where that word >= probability * 2^32. The key mixes seed and step: words 0 and
// 1 at counter (step's low word, its high word, 0, 0) under the key (seed's low word, its high word).
struct DropoutKey {
  double probability = 0;
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_sample = 0;  // sample of row (0, 0) in the global batch; row (b, s) is sample first_sample + b
  int64_t layer = 0;         // 0: embedding, 1 ..: decoder layers
  int site = 0;              // which dropout of the layer
  int64_t sequence_length = 0;
  int64_t first_position = 0, first_channel = 0;  // of element (0, 0); first_channel is a multiple of 4
  int64_t first_row =
      0;  // row r of the call is row first_row + r of the micro-batch: (b, s) = that / and % sequence_length
};
// y = (residual, where defined) + x / (1 - probability) where kept, else 0. x, y, residual: [T, width]; y may be x.
void Dropout(const at::Tensor& x, const at::Tensor& residual, const DropoutKey& key, const at::Tensor& y);

// ---- Embedding. tokens: int32 [micro, seq + 1], the last column is only a label. token_table: [V, h], position_table:
// [positions, h], or {} (rotary families). An id outside [0, V) stands for a zero vector without gradient (memory stays
// safe; the data room has refused such ids).
void EmbeddingForward(const at::Tensor& tokens, const at::Tensor& token_table, const at::Tensor& position_table,
                      const at::Tensor& x);
// Each row's sum is made in fp32 (fp64) in the order of tokens and added once. Writing (add false) also zeroes the rows
// not met.
void EmbeddingBackward(const at::Tensor& dx, const at::Tensor& tokens, const at::Tensor& dtoken_table,
                       const at::Tensor& dposition_table, bool add);

// ---- Cross entropy of rows [first_row, first_row + rows) of the micro-batch. logits: [rows, V], columns >= vocab_size
// count as -inf. The label of row (b, s) is tokens[b, s + 1]; a negative label is no token: no loss, no gradient, not
// counted. row_losses: [rows] scratch, fp32 (fp64 for fp64). Sums are made in double, in the order of rows. Training:
// logits become d(sum of losses) * gradient_scale * state[kLossScale], the scale as it is on the device then;
// state[kLossSum], state[kTokens] grow.
void CrossEntropyForwardBackward(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row,
                                 int64_t vocab_size, double gradient_scale, const at::Tensor& row_losses,
                                 const at::Tensor& state);
// Evaluation: logits are kept; state[kEvalLossSum], state[kEvalTokens] grow.
void CrossEntropyForward(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row, int64_t vocab_size,
                         const at::Tensor& row_losses, const at::Tensor& state);

// ---- Cross entropy over ranks that hold a part of the vocabulary each (arXiv:1909.08053): statistics of the own part,
// a maximum and a sum over the ranks by the caller, then loss and gradient. Rows, labels and scale as above.
struct VocabularyPart {
  int64_t first_id = 0;    // of column 0
  int64_t vocab_size = 0;  // of the whole
  bool counts = true;      // whether this rank adds losses and tokens to the state: one of them does
  // Columns that are tokens; the others are padding.
  int64_t Columns(int64_t held) const {
    const int64_t left = vocab_size > first_id ? vocab_size - first_id : 0;
    return left < held ? left : held;
  }
};
// maxima: [rows], -inf where no column is a token; sums: [2, rows]: of exp(logit - maximum), and the label's logit
// where its column is here, else 0. fp32 (fp64 for fp64).
void VocabularyStatistics(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row,
                          const VocabularyPart& part, const at::Tensor& maxima, const at::Tensor& sums);
// With maxima and sums over all ranks (sums of exp(logit - maximum over all ranks)). train: logits become gradients.
void VocabularyLoss(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row, const VocabularyPart& part,
                    const at::Tensor& maxima, const at::Tensor& sums, double gradient_scale, const at::Tensor& state,
                    bool train);

// ---- StepState: double [kStepStateSize] on the device of the run.
// All 0, kLossScale and kHysteresis as said, kSkip 1 (nothing to update yet), kRateFactor 1.
void InitStepState(const at::Tensor& state, double loss_scale, double hysteresis = 0);
// state[kSumOfSquares] += sum of gradient^2 in double; state[kNonFinite] becomes 1 where that sum is not finite.
// gradient: any floating type, 1-D. Call it on elements that this rank owns and that count in the norm.
void SumOfSquares(const at::Tensor& gradient, const at::Tensor& state);

// Call order of one step: [SumOfSquares on own gradients, all-reduce (sum) of slots 0..3 over the world],
// FinishStepStats, updates. With q = kSumOfSquares, T = kTokens, S = kLossScale, a = nominal_tokens / (T * S):
//   kLoss = kLossSum / T; kGradientNorm = sqrt(q) * a; kUpdateFactor = a * min(1, max_norm / (kGradientNorm + 1e-6));
//   kSkip = 1 if T is 0, or if skip_non_finite and (kNonFinite > 0, or kLoss or kGradientNorm is not finite); else 0;
//   kAppliedSteps += 1 if not skipped, kSkippedSteps += 1 if skipped: BEFORE the update, so that no later instruction
//   writes StepState. So in an update t = kAppliedSteps (1 in the first) and the row of the tables of learning rates
//   and betas is kAppliedSteps - 1. kStepTokens = T; kRateFactor = rate_factor; kLossSum, kTokens, kSumOfSquares and
//   kNonFinite become 0 for the next step (the host sees what was not finite in kLoss and kGradientNorm, and kSkip).
//   Last kLossScale, kGrowthTracker, kHysteresis and kScaleExhausted change as LossScaling says; under its growth_quirk
//   kUpdateFactor is made with the new scale instead of S. A step without a token leaves them.
// If skipped, kUpdateFactor is 0: no NaN or infinity ever multiplies a gradient.
void FinishStepStats(const at::Tensor& state, const StepStatsOptions& options);

// ---- Updates: one call for a run of elements with equal weight decay. All 1-D, equal length; master, moments: fp32
// (fp64 in fp64 runs). gradient: any floating type; it is multiplied by state[kUpdateFactor] in the master's type.
// weights: the compute type, written with the rounded new master; {} where the master itself is the weights. If
// state[kSkip] is set nothing is written. learning_rates: double [n], betas: double [n, 2], both on state's device; row
// min(kAppliedSteps - 1, n - 1); the learning rate is multiplied by state[kRateFactor] (step_stats.h: LearningRate).
struct AdamOptions {
  double epsilon = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;  // AdamW; false: L2
  bool bias_correction = true;
};
// In the master's type: m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g; u = (m / c1) / (sqrt(v / c2) + eps) (+ wd p if
// decoupled); p -= lr u, where c = 1 - b^t. Rounded on GPUs in the order of DeepSpeed's fused Adam, which is this one,
// on the CPU in that of its CPU Adam: p -= (lr wd) p; p -= (lr / c1) (m / (sqrt(v) (1 / sqrt(c2)) + eps)).
// On the CPU one pass that moves each byte once: 28 bytes an element with a 16-bit gradient and 16-bit weights.
void AdamUpdate(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                const at::Tensor& gradient, const at::Tensor& weights, const at::Tensor& state,
                const at::Tensor& learning_rates, const at::Tensor& betas, const AdamOptions& options);
struct SgdOptions {
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  double weight_decay = 0;
};
// PyTorch's SGD: g += wd p; buf = momentum buf + (1 - dampening) g (buf = g when t is 1); p -= lr (nesterov ? g +
// momentum buf : buf). momentum_buffer: {} where momentum is 0.
void SgdUpdate(const at::Tensor& master, const at::Tensor& momentum_buffer, const at::Tensor& gradient,
               const at::Tensor& weights, const at::Tensor& state, const at::Tensor& learning_rates,
               const SgdOptions& options);
struct AdagradOptions {
  double epsilon = 1e-10;
  double weight_decay = 0;
  double lr_decay = 0;
};
// PyTorch's Adagrad (Duchi, Hazan, Singer: JMLR 12, 2011): g += wd p; s += g g; p -= c g / (sqrt(s) + eps), with
// c = lr / (1 + (t - 1) lr_decay) made in double. `sum` begins at the initial accumulator value.
void AdagradUpdate(const at::Tensor& master, const at::Tensor& sum, const at::Tensor& gradient,
                   const at::Tensor& weights, const at::Tensor& state, const at::Tensor& learning_rates,
                   const AdagradOptions& options);
struct LionOptions {
  double weight_decay = 0;
};
// Lion (arXiv:2302.06675), rounded in the order of DeepSpeed's: c = b1 m + (1 - b1) g; p = p (1 - lr wd) - lr sign(c);
// m = b2 m + (1 - b2) g. sign(0) is 0, and what is not a number stays one.
void LionUpdate(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& gradient,
                const at::Tensor& weights, const at::Tensor& state, const at::Tensor& learning_rates,
                const at::Tensor& betas, const LionOptions& options);

// LAMB (arXiv:1904.00962) with DeepSpeed's bounds, in two halves, since its step needs norms of a whole tensor:
//   u = m / (sqrt(v) + eps) + wd p, m and v as Adam's; a = lr sqrt(1 - b2^t) / (1 - b1^t) with bias correction, else
//   lr; r = clamp(|p| / |u|, min_coefficient, max_coefficient), 1 where a norm is 0; p -= (a r) u.
struct LambOptions {
  double epsilon = 1e-8;
  double weight_decay = 0;
  bool bias_correction = true;
  bool epsilon_inside_root = false;  // sqrt(v + eps)
  double max_coefficient = 10, min_coefficient = 0.01;
};
// Updates the moments of one part of a tensor. squares: double [2]; the sums of p^2 and u^2, in double and in an order
// that the length alone decides, are added to it. {}: no sums (another rank makes them).
void LambMoments(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                 const at::Tensor& gradient, const at::Tensor& squares, const at::Tensor& state,
                 const at::Tensor& learning_rates, const at::Tensor& betas, const LambOptions& options);
// The step itself, with the moments as LambMoments left them and squares over all parts of the tensor.
void LambUpdate(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                const at::Tensor& weights, const at::Tensor& squares, const at::Tensor& state,
                const at::Tensor& learning_rates, const at::Tensor& betas, const LambOptions& options);

// What AdamUpdate on this machine's CPU uses: "AVX-512", "AVX2" or "plain code".
std::string_view CpuLevel();

// ---- Flat buffers: 1-D, equal length, same device, any floating types.
void CastCopy(const at::Tensor& source, const at::Tensor& destination);  // round to nearest even
void AddInto(const at::Tensor& source,
             const at::Tensor& destination);  // destination += source, added in fp32 (fp64), rounded once

// ---- Looking into buffers: any floating type, contiguous. `result`: int64 [1] on the same device.
// result = min(result, 2 i + (1 if NaN, 0 if infinite)) of the first element i that is not finite; nothing changes
// where all are.
void FindNonFinite(const at::Tensor& values, const at::Tensor& result);
// result += sum over i of (bits of element i + c) * (2 i + 1) modulo 2^64, with c odd and fixed: any change of one
// element changes it, and no order of summation does.
void Checksum(const at::Tensor& values, const at::Tensor& result);

// ---- Initial values. Element j of `tensor` (1-D, any floating type, CPU or GPU) becomes normal number
// element_offset + j * element_stride of the sequence (seed, stream): Philox4x32-10 (Salmon et al., SC11) and
// Box-Muller in double, rounded once. So a slice of a logical tensor has the same values in every layout; a transposed
// one is filled row by row with a stride.
void InitNormal(const at::Tensor& tensor, uint64_t seed, uint64_t stream, int64_t element_offset,
                int64_t element_stride, double mean, double standard_deviation);

}  // namespace trireme::kernels
