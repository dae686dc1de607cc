#include "parsers/model_spec.h"

#include "engine/base/bytes.h"

namespace trireme {

int64_t NumParameters(const ModelSpec& spec) {
  const int64_t h = spec.hidden_size, f = spec.intermediate_size;
  const int64_t q = spec.num_attention_heads * spec.HeadSize(),
                qkv = q + 2 * spec.num_key_value_heads * spec.HeadSize();
  const bool gated = spec.activation == Activation::kSilu;  // SwiGLU, beside RMSNorm without biases
  const int64_t attention = h * qkv + (spec.qkv_bias ? qkv : 0) + q * h + (spec.attention_out_bias ? h : 0);
  const int64_t inner = gated ? 2 * f : f;
  const int64_t mlp = h * inner + f * h + (spec.mlp_bias ? inner + h : 0);
  const int64_t norm = gated ? h : 2 * h;
  const int64_t positions = spec.rotary() ? 0 : spec.max_position_embeddings * h;
  const int64_t heads = spec.tie_word_embeddings ? 1 : 2;
  return heads * spec.vocab_size * h + positions + spec.num_layers * (attention + mlp + 2 * norm) + norm;
}

void PadVocabulary(ModelSpec& spec, int64_t tp_size) {
  spec.padded_vocab_size = AlignUp(spec.vocab_size, 128 * tp_size);
}

}  // namespace trireme
