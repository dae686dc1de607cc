// GPT-2 (Radford et al., 2019) as Hugging Face's GPT2LMHeadModel: learned positions, LayerNorm before attention and
// MLP, biases everywhere, matrices as Conv1D, narrower initial values where a product ends in the residual stream.
#include "engine/plan/families/family.h"

namespace trireme {

const FamilyTraits& Gpt2Traits() {
  static const FamilyTraits kTraits = {.token_table = "transformer.wte",
                                       .position_table = "transformer.wpe",
                                       .final_norm = "transformer.ln_f",
                                       .head = "lm_head",
                                       .blocks = "transformer.h",
                                       .norm_1 = "ln_1",
                                       .norm_2 = "ln_2",
                                       .qkv = {"attn.c_attn"},
                                       .attention_out = "attn.c_proj",
                                       .fc = {"mlp.c_fc"},
                                       .mlp_out = "mlp.c_proj",
                                       .transposed = true,
                                       .scaled_residual_init = true};
  return kTraits;
}

}  // namespace trireme
