// LLaMA (arXiv:2302.13971) and Qwen2 (arXiv:2407.10671) as Hugging Face's LlamaForCausalLM and Qwen2ForCausalLM: rotary
// positions, RMSNorm, grouped heads, SwiGLU. They differ in ModelSpec's biases alone.
#include "engine/plan/families/family.h"

namespace trireme {

const FamilyTraits& LlamaTraits() {
  static const FamilyTraits kTraits = {.token_table = "model.embed_tokens",
                                       .position_table = "",
                                       .final_norm = "model.norm",
                                       .head = "lm_head",
                                       .blocks = "model.layers",
                                       .norm_1 = "input_layernorm",
                                       .norm_2 = "post_attention_layernorm",
                                       .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                                       .attention_out = "self_attn.o_proj",
                                       .fc = {"mlp.gate_proj", "mlp.up_proj"},
                                       .mlp_out = "mlp.down_proj",
                                       .rms_norm = true};
  return kTraits;
}

}  // namespace trireme
