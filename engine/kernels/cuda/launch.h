// Launchers of the CUDA kernels: plain pointers and a stream, no LibTorch. Definitions in *.cu; callers in backend.cpp.
// Every launcher throws Error{kDevice, KRN001} if CUDA refuses the launch.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/lamb_rate.h"
#include "engine/kernels/philox.h"
#include "engine/kernels/step_state.h"

namespace trireme::kernels::cuda {

enum class Element : int { kFloat64, kFloat32, kBFloat16, kFloat16 };

// Partial sums of one stream: used by launches that are ordered on it.
struct Scratch {
  void* data = nullptr;
  int64_t bytes = 0;
};

// norm.cu. mean and bias null: RMSNorm.
void NormForward(Element type, const void* x, const void* weight, const void* bias, double epsilon, void* y, void* mean,
                 void* rstd, int64_t rows, int64_t width, cudaStream_t stream);
void NormBackward(Element type, const void* dy, const void* x, const void* mean, const void* rstd, const void* weight,
                  const void* residual, void* dx, int64_t rows, int64_t width, cudaStream_t stream);
// sums.cu: column sums of dy into dbias, and of dy * (x - mean) * rstd into dweight. One of dbias and dweight may be
// null; mean null: 0.
void ColumnSums(Element type, Element gradient_type, const void* dy, const void* x, const void* mean, const void* rstd,
                void* dweight, void* dbias, int64_t rows, int64_t width, bool add, Scratch scratch,
                cudaStream_t stream);
void SumOfSquares(Element type, const void* values, int64_t count, double* state, Scratch scratch, cudaStream_t stream);
// activation.cu
void GeluTanhForward(Element type, const void* fc, void* act, int64_t count, cudaStream_t stream);
void GeluTanhBackward(Element type, const void* fc, const void* dact, void* dfc, int64_t count, cudaStream_t stream);
void GeluForward(Element type, const void* fc, void* act, int64_t count, cudaStream_t stream);
void GeluBackward(Element type, const void* fc, const void* dact, void* dfc, int64_t count, cudaStream_t stream);
void SwiGluForward(Element type, const void* gate_up, void* act, int64_t rows, int64_t width, cudaStream_t stream);
void SwiGluBackward(Element type, const void* gate_up, const void* dact, void* dgate_up, int64_t rows, int64_t width,
                    cudaStream_t stream);
void AddBiasResidual(Element type, void* y, const void* bias, const void* residual, int64_t rows, int64_t width,
                     cudaStream_t stream);
// position.cu
struct RotateArguments {
  void* qkv = nullptr;
  const void* cosines = nullptr;
  const void* sines = nullptr;
  int64_t tokens = 0, sequence = 0, width = 0;  // of a row of qkv
  int64_t heads = 0, head_size = 0, half = 0;   // heads that are turned; channels of one, of its turned half
  int64_t first_position = 0;
  bool interleaved = false, inverse = false;
};
void Rotate(Element type, const RotateArguments& arguments, cudaStream_t stream);
void Dropout(Element type, const void* x, const void* residual, const DropoutMask& mask, void* y, int64_t rows,
             int64_t width, int64_t sequence, cudaStream_t stream);
// embedding.cu. Position tables may be null.
void EmbeddingForward(Element type, const int32_t* tokens, const void* token_table, const void* position_table, void* x,
                      int64_t micro, int64_t sequence, int64_t vocab, int64_t width, cudaStream_t stream);
void EmbeddingBackward(Element type, Element gradient_type, const void* dx, const int32_t* tokens, void* dtoken_table,
                       void* dposition_table, int64_t micro, int64_t sequence, int64_t vocab, int64_t positions,
                       int64_t width, bool add, cudaStream_t stream);
// loss.cu
struct LossArguments {
  void* logits = nullptr;
  const int32_t* tokens = nullptr;
  void* row_losses = nullptr;
  double* state = nullptr;
  int64_t rows = 0, padded = 0, vocab = 0, sequence = 0, first_row = 0;
  double gradient_scale = 0;
  bool train = false;
};
void CrossEntropy(Element type, const LossArguments& arguments, cudaStream_t stream);
// vocabulary.cu
struct VocabularyArguments {
  void* logits = nullptr;
  const int32_t* tokens = nullptr;
  void* maxima = nullptr;
  void* sums = nullptr;
  double* state = nullptr;
  int64_t rows = 0, held = 0, columns = 0, vocab = 0, first_id = 0, sequence = 0, first_row = 0;
  double gradient_scale = 0;
  bool train = false, counts = false;
};
void VocabularyStatistics(Element type, const VocabularyArguments& arguments, cudaStream_t stream);
void VocabularyLoss(Element type, const VocabularyArguments& arguments, cudaStream_t stream);
void FinishStepStats(double* state, const StepStatsOptions& options, cudaStream_t stream);
// update.cu
struct UpdateArguments {
  void* master = nullptr;
  void* first = nullptr;   // exp_avg, or the momentum buffer
  void* second = nullptr;  // exp_avg_sq
  const void* gradient = nullptr;
  void* weights = nullptr;
  const double* state = nullptr;
  const double* learning_rates = nullptr;
  const double* betas = nullptr;
  int64_t count = 0, table_rows = 0;
};
struct AdamArguments {
  double epsilon, weight_decay;
  bool decoupled, bias_correction;
};
struct SgdArguments {
  double momentum, dampening, weight_decay;
  bool nesterov;
};
struct AdagradArguments {
  double epsilon, weight_decay, lr_decay;
};
struct LionArguments {
  double weight_decay;
};
// weights null: their type is not read.
void AdamUpdate(Element master, Element gradient, Element weights, const UpdateArguments& arguments,
                const AdamArguments& options, cudaStream_t stream);
void SgdUpdate(Element master, Element gradient, Element weights, const UpdateArguments& arguments,
               const SgdArguments& options, cudaStream_t stream);
void AdagradUpdate(Element master, Element gradient, Element weights, const UpdateArguments& arguments,
                   const AdagradArguments& options, cudaStream_t stream);
void LionUpdate(Element master, Element gradient, Element weights, const UpdateArguments& arguments,
                const LionArguments& options, cudaStream_t stream);
// lamb.cu
struct LambArguments {
  double epsilon, weight_decay;
  bool epsilon_inside_root;
  LambRateOptions rate;
};
// squares null: no sums.
void LambMoments(Element master, Element gradient, const UpdateArguments& arguments, double* squares,
                 const LambArguments& options, Scratch scratch, cudaStream_t stream);
// The gradient is not read.
void LambUpdate(Element master, Element weights, const UpdateArguments& arguments, const double* squares,
                const LambArguments& options, cudaStream_t stream);
// flat.cu
void CastCopy(Element from, Element to, const void* source, void* destination, int64_t count, cudaStream_t stream);
void AddInto(Element from, Element to, const void* source, void* destination, int64_t count, cudaStream_t stream);
// inspect.cu
void FindNonFinite(Element type, const void* values, int64_t count, int64_t* result, cudaStream_t stream);
void Checksum(Element type, const void* values, int64_t count, int64_t* result, cudaStream_t stream);

}  // namespace trireme::kernels::cuda
