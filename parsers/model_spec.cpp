#include "parsers/model_spec.h"

#include "engine/base/bytes.h"

namespace trireme {

int64_t NumParameters(const ModelSpec& spec) {
  const int64_t h = spec.hidden_size, f = spec.intermediate_size;
  const int64_t attention = h * 3 * h + 3 * h + h * h + h;
  const int64_t mlp = h * f + f + f * h + h;
  const int64_t norms = 2 * 2 * h;
  const int64_t embeddings = spec.vocab_size * h + spec.max_position_embeddings * h;
  const int64_t head = spec.tie_word_embeddings ? 0 : spec.vocab_size * h;
  return embeddings + spec.num_layers * (attention + mlp + norms) + 2 * h + head;
}

void PadVocabulary(ModelSpec& spec, int64_t tp_size) {
  spec.padded_vocab_size = AlignUp(spec.vocab_size, 128 * tp_size);
}

}  // namespace trireme
