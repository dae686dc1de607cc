// GPT-NeoX (arXiv:2204.06745) as Hugging Face's GPTNeoXForCausalLM: rotary positions on part of a head, LayerNorm,
// query, key and value head by head in one matrix, attention and MLP side by side where the model says so.
#include "engine/plan/families/family.h"

namespace trireme {

const FamilyTraits& GptNeoXTraits() {
  static const FamilyTraits kTraits = {.token_table = "gpt_neox.embed_in",
                                       .position_table = "",
                                       .final_norm = "gpt_neox.final_layer_norm",
                                       .head = "embed_out",
                                       .blocks = "gpt_neox.layers",
                                       .norm_1 = "input_layernorm",
                                       .norm_2 = "post_attention_layernorm",
                                       .qkv = {"attention.query_key_value"},
                                       .attention_out = "attention.dense",
                                       .fc = {"mlp.dense_h_to_4h"},
                                       .mlp_out = "mlp.dense_4h_to_h",
                                       .interleaved = true};
  return kTraits;
}

}  // namespace trireme
