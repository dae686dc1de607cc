// What tells the families of decoders apart, as plain data: Hugging Face's names and a few facts. One file a family;
// decoder.cpp makes UnitSpecs out of them and engine/model layers.
//   const FamilyTraits& traits = TraitsOf(model.family);  BlockName(traits, 3);  // "transformer.h.3"
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parsers/model_spec.h"

namespace trireme {

// Names without the ending ".weight" or ".bias". The first ones are whole, those of a block follow the block's name.
struct FamilyTraits {
  std::string_view token_table;     // "transformer.wte"
  std::string_view position_table;  // "": rotary positions
  std::string_view final_norm;
  std::string_view head;    // where it is not tied
  std::string_view blocks;  // "transformer.h"
  std::string_view norm_1, norm_2;
  std::vector<std::string_view> qkv;  // one matrix, or query, key and value apart (joined in the flat buffer)
  std::string_view attention_out;
  std::vector<std::string_view> fc;  // one matrix, or gate and up (joined)
  std::string_view mlp_out;
  bool rms_norm = false;              // else LayerNorm with a bias
  bool transposed = false;            // matrices of blocks are [in, out] (Conv1D)
  bool interleaved = false;           // rows of the one qkv matrix go head by head, q | k | v in each
  bool scaled_residual_init = false;  // attention_out and mlp_out begin 1 / sqrt(2 num_layers) as wide

  bool gated() const { return fc.size() == 2; }
};

const FamilyTraits& Gpt2Traits();     // gpt2.cpp
const FamilyTraits& LlamaTraits();    // llama.cpp: LLaMA, Mistral and Qwen2
const FamilyTraits& GptNeoXTraits();  // gpt_neox.cpp

const FamilyTraits& TraitsOf(Family family);
std::string BlockName(const FamilyTraits& traits, int64_t layer);

// Widths of the products of a block, in elements a token.
struct BlockWidths {
  int64_t hidden = 0, query = 0, key = 0;  // key: of keys, and of values
  int64_t intermediate = 0;

  // Of one of `tp_size` ranks that split everything but the hidden size.
  explicit BlockWidths(const ModelSpec& model, int tp_size = 1);
  int64_t qkv() const { return query + 2 * key; }
};

// Rows of each matrix of traits.qkv and of traits.fc.
std::vector<int64_t> QkvRows(const FamilyTraits& traits, const BlockWidths& widths);
std::vector<int64_t> FcRows(const FamilyTraits& traits, const BlockWidths& widths);

}  // namespace trireme
