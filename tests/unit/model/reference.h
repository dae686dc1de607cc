// The families' models in plain operations with autograd, written without the layers: Hugging Face's GPT2LMHeadModel,
// LlamaForCausalLM, Qwen2ForCausalLM and GPTNeoXForCausalLM.
#pragma once
#include <ATen/core/Tensor.h>

#include "engine/model/unit.h"
#include "parsers/model_spec.h"
#include "tests/unit/model/runner.h"

namespace trireme::testing {

// logits [micro, sequence, vocab] of int ids [micro, sequence]; w: logical tensors, fp64, on the CPU. `dropout` gives
// the masks of a training step (probability 0: none).
at::Tensor ReferenceLogits(const ModelSpec& model, const Tensors& w, const at::Tensor& ids, const DropoutArgs& dropout);

// Sum of the losses of tokens [micro, sequence + 1].
at::Tensor ReferenceLoss(const ModelSpec& model, const Tensors& w, const at::Tensor& tokens,
                         const DropoutArgs& dropout);

}  // namespace trireme::testing
