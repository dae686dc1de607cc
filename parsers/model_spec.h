// What a model is, in numbers: the input of engine/plan beside Config.
//   ModelSpec m = NamedModel("gpt-1.3b");  NumParameters(m);
#pragma once
#include <cstdint>
#include <string>

namespace trireme {

enum class Family { kGpt2 };

struct ModelSpec {
  std::string name;
  Family family = Family::kGpt2;
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;  // equal to num_attention_heads in GPT-2
  int64_t intermediate_size = 0;    // 4 x hidden_size in GPT-2
  int64_t vocab_size = 0;           // tokens that exist
  int64_t padded_vocab_size = 0;  // rows of the embedding: vocab_size up to a multiple of 128 x tp, as Megatron-LM pads
  int64_t max_position_embeddings = 0;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool tie_word_embeddings = true;
};

// Trainable parameters of the whole model, without the vocabulary's padding.
int64_t NumParameters(const ModelSpec& spec);

// Sets padded_vocab_size for tp ranks.
void PadVocabulary(ModelSpec& spec, int64_t tp_size);

}  // namespace trireme
