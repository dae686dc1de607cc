// From tensors to the launchers of *.cu.
#include "engine/kernels/backend.h"

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/launch.h"

namespace trireme::kernels {
namespace {

using cuda::CurrentStream;
using cuda::ElementOf;

void* Data(const at::Tensor& tensor) { return tensor.defined() ? tensor.mutable_data_ptr() : nullptr; }
double* Doubles(const at::Tensor& tensor) { return static_cast<double*>(Data(tensor)); }
const int32_t* Ids(const at::Tensor& tensor) { return static_cast<const int32_t*>(Data(tensor)); }

cuda::UpdateArguments ArgumentsOf(const at::Tensor& master, const at::Tensor& first, const at::Tensor& second,
                                  const at::Tensor& gradient, const at::Tensor& weights, const at::Tensor& state,
                                  const at::Tensor& learning_rates, const at::Tensor& betas) {
  return {.master = Data(master),
          .first = Data(first),
          .second = Data(second),
          .gradient = Data(gradient),
          .weights = Data(weights),
          .state = Doubles(state),
          .learning_rates = Doubles(learning_rates),
          .betas = Doubles(betas),
          .count = master.numel(),
          .table_rows = learning_rates.numel()};
}

cuda::LambArguments ArgumentsOf(const LambOptions& options) {
  return {.epsilon = options.epsilon,
          .weight_decay = options.weight_decay,
          .epsilon_inside_root = options.epsilon_inside_root,
          .rate = {.bias_correction = options.bias_correction,
                   .max_coefficient = options.max_coefficient,
                   .min_coefficient = options.min_coefficient}};
}

}  // namespace

template <>
void Backend<CudaDevice>::NormForward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                      double epsilon, const at::Tensor& y, const at::Tensor& mean,
                                      const at::Tensor& rstd) {
  cuda::NormForward(ElementOf(x), Data(x), Data(weight), Data(bias), epsilon, Data(y), Data(mean), Data(rstd),
                    x.size(0), x.size(1), CurrentStream());
}

template <>
void Backend<CudaDevice>::NormBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                                       const at::Tensor& rstd, const at::Tensor& weight,
                                       const at::Tensor& residual_gradient, const at::Tensor& dx,
                                       const at::Tensor& dweight, const at::Tensor& dbias, bool add) {
  cuda::ColumnSums(ElementOf(x), ElementOf(dweight), Data(dy), Data(x), Data(mean), Data(rstd), Data(dweight),
                   Data(dbias), x.size(0), x.size(1), add, cuda::SumScratch(), CurrentStream());
  cuda::NormBackward(ElementOf(x), Data(dy), Data(x), Data(mean), Data(rstd), Data(weight), Data(residual_gradient),
                     Data(dx), x.size(0), x.size(1), CurrentStream());
}

template <>
void Backend<CudaDevice>::LinearBackwardBias(const at::Tensor& dy, const at::Tensor& dbias, bool add) {
  cuda::ColumnSums(ElementOf(dy), ElementOf(dbias), Data(dy), nullptr, nullptr, nullptr, nullptr, Data(dbias),
                   dy.size(0), dy.size(1), add, cuda::SumScratch(), CurrentStream());
}

template <>
void Backend<CudaDevice>::GeluTanhForward(const at::Tensor& fc, const at::Tensor& act) {
  cuda::GeluTanhForward(ElementOf(fc), Data(fc), Data(act), fc.numel(), CurrentStream());
}

template <>
void Backend<CudaDevice>::GeluTanhBackward(const at::Tensor& fc, const at::Tensor& dact, const at::Tensor& dfc) {
  cuda::GeluTanhBackward(ElementOf(fc), Data(fc), Data(dact), Data(dfc), fc.numel(), CurrentStream());
}

template <>
void Backend<CudaDevice>::GeluForward(const at::Tensor& fc, const at::Tensor& act) {
  cuda::GeluForward(ElementOf(fc), Data(fc), Data(act), fc.numel(), CurrentStream());
}

template <>
void Backend<CudaDevice>::GeluBackward(const at::Tensor& fc, const at::Tensor& dact, const at::Tensor& dfc) {
  cuda::GeluBackward(ElementOf(fc), Data(fc), Data(dact), Data(dfc), fc.numel(), CurrentStream());
}

template <>
void Backend<CudaDevice>::SwiGluForward(const at::Tensor& gate_up, const at::Tensor& act) {
  cuda::SwiGluForward(ElementOf(act), Data(gate_up), Data(act), act.size(0), act.size(1), CurrentStream());
}

template <>
void Backend<CudaDevice>::SwiGluBackward(const at::Tensor& gate_up, const at::Tensor& dact,
                                         const at::Tensor& dgate_up) {
  cuda::SwiGluBackward(ElementOf(dact), Data(gate_up), Data(dact), Data(dgate_up), dact.size(0), dact.size(1),
                       CurrentStream());
}

template <>
void Backend<CudaDevice>::Rotate(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& cosines,
                                 const at::Tensor& sines, int64_t first_position, bool inverse) {
  cuda::Rotate(ElementOf(qkv),
               {.qkv = Data(qkv),
                .cosines = Data(cosines),
                .sines = Data(sines),
                .tokens = shape.tokens(),
                .sequence = shape.sequence_length,
                .width = shape.width(),
                .heads = shape.num_heads + shape.num_kv_heads,
                .head_size = shape.head_size,
                .half = cosines.size(1),
                .first_position = first_position,
                .interleaved = shape.interleaved,
                .inverse = inverse},
               CurrentStream());
}

template <>
void Backend<CudaDevice>::Dropout(const at::Tensor& x, const at::Tensor& residual, const DropoutMask& mask,
                                  int64_t sequence_length, const at::Tensor& y) {
  cuda::Dropout(ElementOf(x), Data(x), Data(residual), mask, Data(y), x.size(0), x.size(1), sequence_length,
                CurrentStream());
}

template <>
void Backend<CudaDevice>::EmbeddingForward(const at::Tensor& tokens, const at::Tensor& token_table,
                                           const at::Tensor& position_table, const at::Tensor& x) {
  cuda::EmbeddingForward(ElementOf(x), Ids(tokens), Data(token_table), Data(position_table), Data(x), tokens.size(0),
                         tokens.size(1) - 1, token_table.size(0), x.size(1), CurrentStream());
}

template <>
void Backend<CudaDevice>::EmbeddingBackward(const at::Tensor& dx, const at::Tensor& tokens,
                                            const at::Tensor& dtoken_table, const at::Tensor& dposition_table,
                                            bool add) {
  cuda::EmbeddingBackward(ElementOf(dx), ElementOf(dtoken_table), Data(dx), Ids(tokens), Data(dtoken_table),
                          Data(dposition_table), tokens.size(0), tokens.size(1) - 1, dtoken_table.size(0),
                          dposition_table.defined() ? dposition_table.size(0) : 0, dx.size(1), add, CurrentStream());
}

template <>
void Backend<CudaDevice>::CrossEntropy(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row,
                                       int64_t vocab_size, double gradient_scale, const at::Tensor& row_losses,
                                       const at::Tensor& state, bool train) {
  cuda::CrossEntropy(ElementOf(logits),
                     {.logits = Data(logits),
                      .tokens = Ids(tokens),
                      .row_losses = Data(row_losses),
                      .state = Doubles(state),
                      .rows = logits.size(0),
                      .padded = logits.size(1),
                      .vocab = vocab_size,
                      .sequence = tokens.size(1) - 1,
                      .first_row = first_row,
                      .gradient_scale = gradient_scale,
                      .train = train},
                     CurrentStream());
}

namespace {

cuda::VocabularyArguments VocabularyOf(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row,
                                       const VocabularyPart& part, const at::Tensor& maxima, const at::Tensor& sums) {
  return {.logits = Data(logits),
          .tokens = Ids(tokens),
          .maxima = Data(maxima),
          .sums = Data(sums),
          .state = nullptr,
          .rows = logits.size(0),
          .held = logits.size(1),
          .columns = part.Columns(logits.size(1)),
          .vocab = part.vocab_size,
          .first_id = part.first_id,
          .sequence = tokens.size(1) - 1,
          .first_row = first_row,
          .gradient_scale = 0,
          .train = false,
          .counts = part.counts};
}

}  // namespace

template <>
void Backend<CudaDevice>::VocabularyStatistics(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row,
                                               const VocabularyPart& part, const at::Tensor& maxima,
                                               const at::Tensor& sums) {
  cuda::VocabularyStatistics(ElementOf(logits), VocabularyOf(logits, tokens, first_row, part, maxima, sums),
                             CurrentStream());
}

template <>
void Backend<CudaDevice>::VocabularyLoss(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row,
                                         const VocabularyPart& part, const at::Tensor& maxima, const at::Tensor& sums,
                                         double gradient_scale, const at::Tensor& state, bool train) {
  cuda::VocabularyArguments arguments = VocabularyOf(logits, tokens, first_row, part, maxima, sums);
  arguments.state = Doubles(state);
  arguments.gradient_scale = gradient_scale;
  arguments.train = train;
  cuda::VocabularyLoss(ElementOf(logits), arguments, CurrentStream());
}

template <>
void Backend<CudaDevice>::SumOfSquares(const at::Tensor& gradient, const at::Tensor& state) {
  cuda::SumOfSquares(ElementOf(gradient), Data(gradient), gradient.numel(), Doubles(state), cuda::SumScratch(),
                     CurrentStream());
}

template <>
void Backend<CudaDevice>::FinishStepStats(const at::Tensor& state, const StepStatsOptions& options) {
  cuda::FinishStepStats(Doubles(state), options, CurrentStream());
}

template <>
void Backend<CudaDevice>::AdamUpdate(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                                     const at::Tensor& gradient, const at::Tensor& weights, const at::Tensor& state,
                                     const at::Tensor& learning_rates, const at::Tensor& betas,
                                     const AdamOptions& options) {
  cuda::AdamUpdate(ElementOf(master), ElementOf(gradient), weights.defined() ? ElementOf(weights) : ElementOf(master),
                   ArgumentsOf(master, exp_avg, exp_avg_sq, gradient, weights, state, learning_rates, betas),
                   {.epsilon = options.epsilon,
                    .weight_decay = options.weight_decay,
                    .decoupled = options.decoupled,
                    .bias_correction = options.bias_correction},
                   CurrentStream());
}

template <>
void Backend<CudaDevice>::SgdUpdate(const at::Tensor& master, const at::Tensor& momentum_buffer,
                                    const at::Tensor& gradient, const at::Tensor& weights, const at::Tensor& state,
                                    const at::Tensor& learning_rates, const SgdOptions& options) {
  cuda::SgdUpdate(ElementOf(master), ElementOf(gradient), weights.defined() ? ElementOf(weights) : ElementOf(master),
                  ArgumentsOf(master, momentum_buffer, {}, gradient, weights, state, learning_rates, {}),
                  {.momentum = options.momentum,
                   .dampening = options.dampening,
                   .weight_decay = options.weight_decay,
                   .nesterov = options.nesterov},
                  CurrentStream());
}

template <>
void Backend<CudaDevice>::AdagradUpdate(const at::Tensor& master, const at::Tensor& sum, const at::Tensor& gradient,
                                        const at::Tensor& weights, const at::Tensor& state,
                                        const at::Tensor& learning_rates, const AdagradOptions& options) {
  cuda::AdagradUpdate(ElementOf(master), ElementOf(gradient),
                      weights.defined() ? ElementOf(weights) : ElementOf(master),
                      ArgumentsOf(master, sum, {}, gradient, weights, state, learning_rates, {}),
                      {.epsilon = options.epsilon, .weight_decay = options.weight_decay, .lr_decay = options.lr_decay},
                      CurrentStream());
}

template <>
void Backend<CudaDevice>::LionUpdate(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& gradient,
                                     const at::Tensor& weights, const at::Tensor& state,
                                     const at::Tensor& learning_rates, const at::Tensor& betas,
                                     const LionOptions& options) {
  cuda::LionUpdate(ElementOf(master), ElementOf(gradient), weights.defined() ? ElementOf(weights) : ElementOf(master),
                   ArgumentsOf(master, exp_avg, {}, gradient, weights, state, learning_rates, betas),
                   {.weight_decay = options.weight_decay}, CurrentStream());
}

template <>
void Backend<CudaDevice>::LambMoments(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                                      const at::Tensor& gradient, const at::Tensor& squares, const at::Tensor& state,
                                      const at::Tensor& learning_rates, const at::Tensor& betas,
                                      const LambOptions& options) {
  cuda::LambMoments(ElementOf(master), ElementOf(gradient),
                    ArgumentsOf(master, exp_avg, exp_avg_sq, gradient, {}, state, learning_rates, betas),
                    Doubles(squares), ArgumentsOf(options), cuda::SumScratch(), CurrentStream());
}

template <>
void Backend<CudaDevice>::LambUpdate(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                                     const at::Tensor& weights, const at::Tensor& squares, const at::Tensor& state,
                                     const at::Tensor& learning_rates, const at::Tensor& betas,
                                     const LambOptions& options) {
  cuda::LambUpdate(ElementOf(master), weights.defined() ? ElementOf(weights) : ElementOf(master),
                   ArgumentsOf(master, exp_avg, exp_avg_sq, {}, weights, state, learning_rates, betas),
                   Doubles(squares), ArgumentsOf(options), CurrentStream());
}

template <>
void Backend<CudaDevice>::CastCopy(const at::Tensor& source, const at::Tensor& destination) {
  cuda::CastCopy(ElementOf(source), ElementOf(destination), Data(source), Data(destination), source.numel(),
                 CurrentStream());
}

template <>
void Backend<CudaDevice>::AddInto(const at::Tensor& source, const at::Tensor& destination) {
  cuda::AddInto(ElementOf(source), ElementOf(destination), Data(source), Data(destination), source.numel(),
                CurrentStream());
}

template <>
void Backend<CudaDevice>::FindNonFinite(const at::Tensor& values, const at::Tensor& result) {
  cuda::FindNonFinite(ElementOf(values), Data(values), values.numel(), static_cast<int64_t*>(Data(result)),
                      CurrentStream());
}

template <>
void Backend<CudaDevice>::Checksum(const at::Tensor& values, const at::Tensor& result) {
  cuda::Checksum(ElementOf(values), Data(values), values.numel(), static_cast<int64_t*>(Data(result)), CurrentStream());
}

}  // namespace trireme::kernels
