// One unit at work: explicit forward and backward over preallocated flat memory. Implementations: embedding.cpp,
// decoder_block.cpp, head.cpp.
//   auto units = MakeUnits(plan);  units[3]->Forward(args);
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "engine/kernels/step_state.h"
#include "engine/plan/plan.h"

namespace trireme {

class TensorParallel;  // tensor_parallel.h

// What Forward leaves for Backward: a range of the arena (laid out by UnitSpec::saved) and the tensors that LibTorch
// returned.
struct Saved {
  at::Tensor arena;              // uint8 [bytes]
  std::vector<at::Tensor> pool;  // attention output, log-sum-exp, seeds
};

// Dropout of the residual stream in a training step (kernels::DropoutKey); probability 0: none, and in evaluation.
struct DropoutArgs {
  double probability = 0;
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_sample = 0;  // of this micro-batch in the global batch
};

// What becomes of what Forward leaves in Saved.
enum class ForwardUse : uint8_t {
  kKeep,       // Backward reads it (also: a Forward made once more, for Backward)
  kRecompute,  // nothing: the Forward is made once more before Backward
  kEvaluate,   // nothing: there is no Backward
};

// What generation keeps of one block: [micro, kv heads, capacity, head size], compute type.
struct KeyValueCache {
  at::Tensor keys, values;
};

// Views into buffers that the executor owns; a unit allocates nothing of its own but what LibTorch's attention returns.
// T = tokens of the micro-batch (micro * sequence), h = hidden_size. Undefined tensors: not used by this call.
struct UnitArgs {
  int64_t micro_batch_size = 0, sequence_length = 0;
  at::Tensor weights;       // flat, compute type, whole unit
  at::Tensor tied_weights;  // head with a tied embedding: flat weights of unit 0
  at::Tensor tokens;        // int32 [micro, seq + 1]: embedding and head. Inputs are the first seq, labels the last seq
  at::Tensor input;         // x [T, h] of the unit below (not for the embedding)
  at::Tensor output;        // Forward: x [T, h]; not for the head
  Saved* saved = nullptr;   // Forward fills, Backward reads; null: nothing is kept (evaluation)
  ForwardUse use = ForwardUse::kKeep;
  at::Tensor workspace;  // uint8, as much as UnitSpec's workspace says
  // Backward, and the head's Forward in training:
  at::Tensor output_gradient;  // dy [T, h]; may be overwritten by Backward
  at::Tensor input_gradient;   // dx [T, h] (not for the embedding). May not alias output_gradient
  at::Tensor gradients;        // flat, accumulation type, whole unit
  bool add_gradients =
      true;  // false: first add of its life: write instead (the executor zeroes the padding between segments)
  at::Tensor tied_gradients;  // head: flat gradients of unit 0; if !add_tied_gradients the head also zeroes unit 0's
                              // other segments
  bool add_tied_gradients = true;
  at::Tensor deferred;             // uint8: BackwardInput fills, BackwardWeight reads (UnitSpec::deferred)
  TensorParallel* tp = nullptr;    // null: one rank has the whole unit
  bool sequence_parallel = false;  // input, output and their gradients are the rank's share of the rows, T / tp
  DropoutArgs dropout = {};
  // Head: d(loss) per token, 1 / (nominal tokens of the step); the kernel multiplies by the loss scale in step_state.
  double gradient_scale = 1;
  at::Tensor
      step_state;  // double [kStepStateSize] (step_state.h): the head adds the sum of losses and the count of tokens
};

class Unit {
 public:
  virtual ~Unit() = default;
  virtual void Forward(UnitArgs& args) = 0;
  virtual void Backward(UnitArgs& args) = 0;  // the head has none
  // Backward in two parts, for schedules that defer weight gradients (arXiv:2401.10241): dx and the norms' gradients
  // first, the matrices' and biases' gradients later, out of `saved`, `input` and `deferred`. Together they make what
  // Backward makes. Blocks only, and only where UnitSpec::splits_weights says so.
  virtual void BackwardInput(UnitArgs& args);
  virtual void BackwardWeight(UnitArgs& args);
  // Generation: args.sequence_length new tokens a row at positions past .. past + sequence_length - 1, whose keys and
  // values join the cache. Embedding (no cache) and blocks.
  virtual void Decode(UnitArgs& args, KeyValueCache* cache, int64_t past);
  // Head only: logits [rows, padded vocabulary], compute type, of rows first_row.. of args.input, for generation.
  // Columns past the vocabulary mean nothing.
  virtual void Logits(UnitArgs& args, int64_t first_row, const at::Tensor& logits);
};

// One object a unit of the plan, in order; null for units of the user's (autograd_layer.h makes those too). Works on
// the device of the tensors that it is given.
std::vector<std::unique_ptr<Unit>> MakeUnits(const Plan& plan);

}  // namespace trireme
