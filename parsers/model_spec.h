// What a model is, in numbers: the input of engine/plan beside Config.
//   ModelSpec m = NamedModel("gpt-1.3b");  NumParameters(m);
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

// kLlama: also what shares its layers and names without a difference (Mistral without a sliding window).
enum class Family { kGpt2, kLlama, kQwen2, kGptNeoX };
enum class Activation { kGeluTanh, kGelu, kSilu };  // kSilu: gated (SwiGLU)

// Rotary positions (arXiv:2104.09864) and what stretches them over more positions; keys of Hugging Face's rope_scaling.
struct RopeSpec {
  enum class Scaling { kNone, kLinear, kDynamic, kYarn, kLongRope, kLlama3 };
  double theta = 10000;
  double rotary_fraction = 1;  // share of a head's channels that turn (partial_rotary_factor, rotary_pct)
  Scaling scaling = Scaling::kNone;
  double factor = 1;  // kYarn, kLongRope without one: max_position_embeddings / original_max_position_embeddings
  int64_t original_max_position_embeddings = 0;             // 0: max_position_embeddings
  double low_freq_factor = 1, high_freq_factor = 4;         // kLlama3
  double beta_fast = 32, beta_slow = 1;                     // kYarn (arXiv:2309.00071)
  std::optional<double> attention_factor = {};              // kYarn, kLongRope: multiplies cosines and sines
  std::optional<double> mscale = {}, mscale_all_dim = {};   // kYarn
  bool truncate = true;                                     // kYarn: correction range in whole channels
  std::vector<double> short_factor = {}, long_factor = {};  // kLongRope (arXiv:2402.13753), one a rotated pair
  bool operator==(const RopeSpec&) const = default;
};

struct ModelSpec {
  std::string name;
  Family family = Family::kGpt2;
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;  // equal to num_attention_heads in GPT-2 and GPT-NeoX
  int64_t head_size = 0;            // 0: hidden_size / num_attention_heads
  int64_t intermediate_size = 0;    // 4 x hidden_size in GPT-2
  int64_t vocab_size = 0;           // tokens that exist
  int64_t padded_vocab_size = 0;  // rows of the embedding: vocab_size up to a multiple of 128 x tp, as Megatron-LM pads
  int64_t max_position_embeddings = 0;
  double layer_norm_epsilon = 1e-5;  // or RMSNorm's
  double initializer_range = 0.02;
  bool tie_word_embeddings = true;
  Activation activation = Activation::kGeluTanh;
  bool qkv_bias = true, attention_out_bias = true, mlp_bias = true;
  bool parallel_residual = false;  // GPT-NeoX: x + attention(norm(x)) + mlp(norm(x))
  RopeSpec rope = {};              // all families but GPT-2, which learns its positions
  // Ids with a meaning of their own, as the tokenizer has them; none where a model names none.
  std::optional<int64_t> bos_token_id = {}, pad_token_id = {};
  std::vector<int64_t> eos_token_ids = {};
  bool own_modules = false;  // some units are modules of the user's program: nothing else can build the model

  bool rotary() const { return family != Family::kGpt2; }
  int64_t HeadSize() const { return head_size > 0 ? head_size : hidden_size / num_attention_heads; }
  int64_t KeyValueHeads() const { return num_key_value_heads > 0 ? num_key_value_heads : num_attention_heads; }
};

// Trainable parameters of the whole model, without the vocabulary's padding.
int64_t NumParameters(const ModelSpec& spec);

// Sets padded_vocab_size for tp ranks.
void PadVocabulary(ModelSpec& spec, int64_t tp_size);

}  // namespace trireme
