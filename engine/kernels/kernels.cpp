#include "engine/kernels/kernels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "engine/kernels/backend.h"
#include "engine/kernels/checks.h"

namespace trireme::kernels {
namespace {

void CheckTokens(const at::Tensor& tokens) {
  TRIREME_CHECK(tokens.defined() && tokens.dim() == 2 && tokens.size(1) >= 2 && tokens.is_contiguous() &&
                    tokens.scalar_type() == at::kInt,
                "tokens are " + ShapeText(tokens) + ", wanted int32 [micro, seq + 1]");
}

void CheckPositions(const at::Tensor& table, int64_t sequence, int64_t width, at::ScalarType type) {
  CheckShape(table, {table.size(0), width}, "position table");
  CheckType(table, type, "position table");
  TRIREME_CHECK(sequence <= table.size(0), fmt::format("{} tokens a sequence, {} positions", sequence, table.size(0)));
}

// Checks of both norms: mean, bias and dbias are undefined in RMSNorm.
void CheckNormForward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& y,
                      const at::Tensor& mean, const at::Tensor& rstd) {
  const int64_t rows = x.size(0), width = x.size(1);
  const at::ScalarType type = x.scalar_type();
  CheckShape(x, {rows, width}, "x");
  CheckShape(y, {rows, width}, "y");
  CheckType(y, type, "y");
  for (const at::Tensor* parameter : {&weight, &bias}) {
    if (!parameter->defined()) continue;
    CheckShape(*parameter, {width}, "weight or bias");
    CheckType(*parameter, type, "weight or bias");
  }
  for (const at::Tensor* statistic : {&mean, &rstd}) {
    if (!statistic->defined()) continue;
    CheckShape(*statistic, {rows}, "mean or rstd");
    CheckType(*statistic, AccumulateScalar(type), "mean or rstd");
  }
  CheckSameDevice(x, {&y, &weight, &bias, &mean, &rstd});
}

void CheckNormBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
                       const at::Tensor& weight, const at::Tensor& residual_gradient, const at::Tensor& dx,
                       const at::Tensor& dweight, const at::Tensor& dbias) {
  const int64_t rows = x.size(0), width = x.size(1);
  const at::ScalarType type = x.scalar_type();
  CheckNormForward(x, weight, {}, dx, mean, rstd);
  for (const at::Tensor* tensor : {&dy, &residual_gradient}) {
    if (tensor == &residual_gradient && !tensor->defined()) continue;
    CheckShape(*tensor, {rows, width}, "dy or residual_gradient");
    CheckType(*tensor, type, "dy or residual_gradient");
  }
  for (const at::Tensor* gradient : {&dweight, &dbias}) {
    if (gradient == &dbias && !gradient->defined()) continue;
    CheckShape(*gradient, {width}, "dweight or dbias");
    CheckGradientType(*gradient, type, "dweight or dbias");
    CheckType(*gradient, dweight.scalar_type(), "dbias");
  }
  CheckSameDevice(x, {&dy, &residual_gradient, &dweight, &dbias});
}

void CheckElementwise(const at::Tensor& first, std::initializer_list<const at::Tensor*> others) {
  for (const at::Tensor* tensor : others) {
    TRIREME_CHECK(first.is_contiguous() && tensor->is_contiguous() && first.numel() == tensor->numel(),
                  ShapeText(first) + " against " + ShapeText(*tensor));
    CheckType(*tensor, first.scalar_type(), "tensor");
  }
  CheckSameDevice(first, others);
}

void CheckSwiGlu(const at::Tensor& gate_up, const at::Tensor& act) {
  CheckShape(gate_up, {act.size(0), 2 * act.size(1)}, "gate_up");
  CheckShape(act, {act.size(0), act.size(1)}, "act");
  CheckType(act, gate_up.scalar_type(), "act");
  CheckSameDevice(gate_up, {&act});
}

}  // namespace

void LayerNormForward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                      const at::Tensor& y, const at::Tensor& mean, const at::Tensor& rstd) {
  TRIREME_CHECK(bias.defined() && mean.defined(), "LayerNorm has a bias and means");
  CheckNormForward(x, weight, bias, y, mean, rstd);
  TRIREME_RUN(x, NormForward, x, weight, bias, epsilon, y, mean, rstd);
}

void LayerNormBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
                       const at::Tensor& weight, const at::Tensor& residual_gradient, const at::Tensor& dx,
                       const at::Tensor& dweight, const at::Tensor& dbias, bool add) {
  TRIREME_CHECK(dbias.defined() && mean.defined(), "LayerNorm has a bias and means");
  CheckNormBackward(dy, x, mean, rstd, weight, residual_gradient, dx, dweight, dbias);
  TRIREME_RUN(x, NormBackward, dy, x, mean, rstd, weight, residual_gradient, dx, dweight, dbias, add);
}

void RmsNormForward(const at::Tensor& x, const at::Tensor& weight, double epsilon, const at::Tensor& y,
                    const at::Tensor& rstd) {
  CheckNormForward(x, weight, {}, y, {}, rstd);
  TRIREME_RUN(x, NormForward, x, weight, {}, epsilon, y, {}, rstd);
}

void RmsNormBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight,
                     const at::Tensor& residual_gradient, const at::Tensor& dx, const at::Tensor& dweight, bool add) {
  CheckNormBackward(dy, x, {}, rstd, weight, residual_gradient, dx, dweight, {});
  TRIREME_RUN(x, NormBackward, dy, x, {}, rstd, weight, residual_gradient, dx, dweight, {}, add);
}

void GeluTanhForward(const at::Tensor& fc, const at::Tensor& act) {
  CheckElementwise(fc, {&act});
  TRIREME_RUN(fc, GeluTanhForward, fc, act);
}

void GeluTanhBackward(const at::Tensor& fc, const at::Tensor& dact, const at::Tensor& dfc) {
  CheckElementwise(fc, {&dact, &dfc});
  TRIREME_RUN(fc, GeluTanhBackward, fc, dact, dfc);
}

void GeluForward(const at::Tensor& fc, const at::Tensor& act) {
  CheckElementwise(fc, {&act});
  TRIREME_RUN(fc, GeluForward, fc, act);
}

void GeluBackward(const at::Tensor& fc, const at::Tensor& dact, const at::Tensor& dfc) {
  CheckElementwise(fc, {&dact, &dfc});
  TRIREME_RUN(fc, GeluBackward, fc, dact, dfc);
}

void SwiGluForward(const at::Tensor& gate_up, const at::Tensor& act) {
  CheckSwiGlu(gate_up, act);
  TRIREME_RUN(gate_up, SwiGluForward, gate_up, act);
}

void SwiGluBackward(const at::Tensor& gate_up, const at::Tensor& dact, const at::Tensor& dgate_up) {
  CheckSwiGlu(gate_up, dact);
  CheckElementwise(gate_up, {&dgate_up});
  TRIREME_RUN(gate_up, SwiGluBackward, gate_up, dact, dgate_up);
}

void Rotate(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& cosines, const at::Tensor& sines,
            int64_t first_position, bool inverse) {
  CheckAttentionShape(qkv, shape, "qkv");
  const int64_t positions = cosines.size(0), half = cosines.size(1);
  for (const at::Tensor* table : {&cosines, &sines}) {
    CheckShape(*table, {positions, half}, "cosines or sines");
    CheckType(*table, AccumulateScalar(qkv.scalar_type()), "cosines or sines");
  }
  TRIREME_CHECK(
      2 * half <= shape.head_size && first_position >= 0 && first_position + shape.sequence_length <= positions,
      fmt::format("{} channels of {} turned, positions {}+{} of {}", 2 * half, shape.head_size, first_position,
                  shape.sequence_length, positions));
  CheckSameDevice(qkv, {&cosines, &sines});
  TRIREME_RUN(qkv, Rotate, qkv, shape, cosines, sines, first_position, inverse);
}

void Dropout(const at::Tensor& x, const at::Tensor& residual, const DropoutKey& key, const at::Tensor& y) {
  CheckShape(x, {x.size(0), x.size(1)}, "x");
  CheckElementwise(x, {&y});
  if (residual.defined()) CheckElementwise(x, {&residual});
  const double threshold = std::ceil(key.probability * 0x1p32);
  TRIREME_CHECK(threshold >= 0 && threshold < 0x1p32, fmt::format("dropout of probability {}", key.probability));
  TRIREME_CHECK(
      key.sequence_length > 0 && key.first_row >= 0 && key.first_channel % 4 == 0 && key.site >= 0 && key.site < 4,
      fmt::format("dropout of {} rows in sequences of {}, from channel {}, at site {}", x.size(0), key.sequence_length,
                  key.first_channel, key.site));
  const auto step = static_cast<uint64_t>(key.step);
  const PhiloxWords mixed = Philox({{LowWord(step), HighWord(step), 0, 0}}, LowWord(key.seed), HighWord(key.seed));
  const DropoutMask mask{.key_0 = mixed.words[0],
                         .key_1 = mixed.words[1],
                         .first_block = static_cast<uint32_t>(key.first_channel / 4),
                         .layer_site = static_cast<uint32_t>(4 * key.layer + key.site),
                         .first_sample = static_cast<uint64_t>(key.first_sample),
                         .first_position = static_cast<uint64_t>(key.first_position),
                         .first_row = key.first_row,
                         .threshold = static_cast<uint32_t>(threshold),
                         .scale = 1 / (1 - key.probability)};
  TRIREME_RUN(x, Dropout, x, residual, mask, key.sequence_length, y);
}

void LinearForward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& residual,
                   const at::Tensor& y) {
  const int64_t rows = x.size(0), in = x.size(1), out = weight.size(0);
  CheckShape(x, {rows, in}, "x");
  CheckShape(weight, {out, in}, "weight");
  CheckShape(y, {rows, out}, "y");
  if (bias.defined()) CheckShape(bias, {out}, "bias");
  if (residual.defined()) CheckShape(residual, {rows, out}, "residual");
  for (const at::Tensor* tensor : {&weight, &y, &bias, &residual}) {
    if (tensor->defined()) CheckType(*tensor, x.scalar_type(), "weight, y, bias or residual");
  }
  CheckSameDevice(x, {&weight, &y, &bias, &residual});
  TRIREME_RUN(x, LinearForward, x, weight, bias, residual, y);
}

void LinearBackwardInput(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& dx) {
  const int64_t rows = dy.size(0), out = dy.size(1), in = weight.size(1);
  CheckShape(dy, {rows, out}, "dy");
  CheckShape(weight, {out, in}, "weight");
  CheckShape(dx, {rows, in}, "dx");
  for (const at::Tensor* tensor : {&weight, &dx}) CheckType(*tensor, dy.scalar_type(), "weight or dx");
  CheckSameDevice(dy, {&weight, &dx});
  TRIREME_RUN(dy, LinearBackwardInput, dy, weight, dx);
}

void LinearBackwardWeight(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& dweight, bool add,
                          const at::Tensor& workspace) {
  const int64_t rows = dy.size(0), out = dy.size(1), in = x.size(1);
  CheckShape(dy, {rows, out}, "dy");
  CheckShape(x, {rows, in}, "x");
  CheckShape(dweight, {out, in}, "dweight");
  CheckType(x, dy.scalar_type(), "x");
  CheckGradientType(dweight, dy.scalar_type(), "dweight");
  CheckSameDevice(dy, {&x, &dweight, &workspace});
  TRIREME_RUN(dy, LinearBackwardWeight, dy, x, dweight, add, workspace);
}

void LinearBackwardBias(const at::Tensor& dy, const at::Tensor& dbias, bool add) {
  CheckShape(dy, {dy.size(0), dy.size(1)}, "dy");
  CheckShape(dbias, {dy.size(1)}, "dbias");
  CheckGradientType(dbias, dy.scalar_type(), "dbias");
  CheckSameDevice(dy, {&dbias});
  TRIREME_RUN(dy, LinearBackwardBias, dy, dbias, add);
}

void EmbeddingForward(const at::Tensor& tokens, const at::Tensor& token_table, const at::Tensor& position_table,
                      const at::Tensor& x) {
  CheckTokens(tokens);
  const int64_t sequence = tokens.size(1) - 1, width = token_table.size(1);
  CheckShape(token_table, {token_table.size(0), width}, "token_table");
  CheckShape(x, {tokens.size(0) * sequence, width}, "x");
  CheckType(token_table, x.scalar_type(), "token_table");
  if (position_table.defined()) CheckPositions(position_table, sequence, width, x.scalar_type());
  CheckSameDevice(x, {&tokens, &token_table, &position_table});
  TRIREME_RUN(x, EmbeddingForward, tokens, token_table, position_table, x);
}

void EmbeddingBackward(const at::Tensor& dx, const at::Tensor& tokens, const at::Tensor& dtoken_table,
                       const at::Tensor& dposition_table, bool add) {
  CheckTokens(tokens);
  const int64_t sequence = tokens.size(1) - 1, width = dtoken_table.size(1);
  CheckShape(dx, {tokens.size(0) * sequence, width}, "dx");
  CheckShape(dtoken_table, {dtoken_table.size(0), width}, "dtoken_table");
  CheckGradientType(dtoken_table, dx.scalar_type(), "dtoken_table");
  if (dposition_table.defined()) CheckPositions(dposition_table, sequence, width, dtoken_table.scalar_type());
  CheckSameDevice(dx, {&tokens, &dtoken_table, &dposition_table});
  TRIREME_RUN(dx, EmbeddingBackward, dx, tokens, dtoken_table, dposition_table, add);
}

namespace {

void CrossEntropy(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row, int64_t vocab_size,
                  double gradient_scale, const at::Tensor& row_losses, const at::Tensor& state, bool train) {
  CheckTokens(tokens);
  CheckState(state);
  const int64_t rows = logits.size(0), all_rows = tokens.size(0) * (tokens.size(1) - 1);
  CheckShape(logits, {rows, logits.size(1)}, "logits");
  CheckShape(row_losses, {rows}, "row_losses");
  CheckType(row_losses, AccumulateScalar(logits.scalar_type()), "row_losses");
  TRIREME_CHECK(first_row >= 0 && first_row + rows <= all_rows && vocab_size > 0 && vocab_size <= logits.size(1),
                fmt::format("rows {}+{} of {}, vocabulary {} of {} columns", first_row, rows, all_rows, vocab_size,
                            logits.size(1)));
  CheckSameDevice(logits, {&tokens, &row_losses, &state});
  TRIREME_RUN(logits, CrossEntropy, logits, tokens, first_row, vocab_size, gradient_scale, row_losses, state, train);
}

}  // namespace

void CrossEntropyForwardBackward(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row,
                                 int64_t vocab_size, double gradient_scale, const at::Tensor& row_losses,
                                 const at::Tensor& state) {
  CrossEntropy(logits, tokens, first_row, vocab_size, gradient_scale, row_losses, state, true);
}

void CrossEntropyForward(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row, int64_t vocab_size,
                         const at::Tensor& row_losses, const at::Tensor& state) {
  CrossEntropy(logits, tokens, first_row, vocab_size, 0, row_losses, state, false);
}

void CheckVocabulary(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row, const VocabularyPart& part,
                     const at::Tensor& maxima, const at::Tensor& sums) {
  CheckTokens(tokens);
  const int64_t rows = logits.size(0), all_rows = tokens.size(0) * (tokens.size(1) - 1);
  const at::ScalarType type = AccumulateScalar(logits.scalar_type());
  CheckShape(logits, {rows, logits.size(1)}, "logits");
  CheckShape(maxima, {rows}, "maxima");
  CheckShape(sums, {2, rows}, "sums");
  CheckType(maxima, type, "maxima");
  CheckType(sums, type, "sums");
  TRIREME_CHECK(
      first_row >= 0 && first_row + rows <= all_rows && part.first_id >= 0 && part.vocab_size > 0,
      fmt::format("rows {}+{} of {}, ids from {} of {}", first_row, rows, all_rows, part.first_id, part.vocab_size));
  CheckSameDevice(logits, {&tokens, &maxima, &sums});
}

void VocabularyStatistics(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row,
                          const VocabularyPart& part, const at::Tensor& maxima, const at::Tensor& sums) {
  CheckVocabulary(logits, tokens, first_row, part, maxima, sums);
  TRIREME_RUN(logits, VocabularyStatistics, logits, tokens, first_row, part, maxima, sums);
}

void VocabularyLoss(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row, const VocabularyPart& part,
                    const at::Tensor& maxima, const at::Tensor& sums, double gradient_scale, const at::Tensor& state,
                    bool train) {
  CheckVocabulary(logits, tokens, first_row, part, maxima, sums);
  CheckState(state);
  TRIREME_RUN(logits, VocabularyLoss, logits, tokens, first_row, part, maxima, sums, gradient_scale, state, train);
}

void InitStepState(const at::Tensor& state, double loss_scale, double hysteresis) {
  CheckState(state);
  at::Tensor host = at::zeros({kStepStateSize}, at::kDouble);
  host.data_ptr<double>()[kLossScale] = loss_scale;
  host.data_ptr<double>()[kHysteresis] = hysteresis;
  host.data_ptr<double>()[kSkip] = 1;
  state.copy_(host);
}

void SumOfSquares(const at::Tensor& gradient, const at::Tensor& state) {
  CheckState(state);
  CheckFlat(gradient, gradient.numel(), "gradient");
  CheckSameDevice(gradient, {&state});
  TRIREME_RUN(gradient, SumOfSquares, gradient, state);
}

void FinishStepStats(const at::Tensor& state, const StepStatsOptions& options) {
  CheckState(state);
  TRIREME_RUN(state, FinishStepStats, state, options);
}

void CastCopy(const at::Tensor& source, const at::Tensor& destination) {
  CheckFlat(source, source.numel(), "source");
  CheckFlat(destination, source.numel(), "destination");
  CheckSameDevice(source, {&destination});
  TRIREME_RUN(source, CastCopy, source, destination);
}

void AddInto(const at::Tensor& source, const at::Tensor& destination) {
  CheckFlat(source, source.numel(), "source");
  CheckFlat(destination, source.numel(), "destination");
  CheckSameDevice(source, {&destination});
  TRIREME_RUN(source, AddInto, source, destination);
}

namespace {

void CheckLook(const at::Tensor& values, const at::Tensor& result) {
  TRIREME_CHECK(values.defined() && values.is_floating_point() && values.is_contiguous(),
                "looks at a contiguous floating tensor, not at " + ShapeText(values));
  CheckShape(result, {1}, "result");
  CheckType(result, at::kLong, "result");
  CheckSameDevice(values, {&result});
}

}  // namespace

void FindNonFinite(const at::Tensor& values, const at::Tensor& result) {
  CheckLook(values, result);
  if (values.numel() > 0) TRIREME_RUN(values, FindNonFinite, values, result);
}

void Checksum(const at::Tensor& values, const at::Tensor& result) {
  CheckLook(values, result);
  if (values.numel() > 0) TRIREME_RUN(values, Checksum, values, result);
}

}  // namespace trireme::kernels
