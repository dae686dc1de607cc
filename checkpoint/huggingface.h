// Hugging Face GPT-2 names. The program's own names are those of GPT2LMHeadModel: `transformer.h.0.attn.c_attn.weight`.
// Files of the original models (GPT2Model) lack the prefix; older ones hold buffers (the causal mask) that are no
// weights; the head is usually tied.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/reader.h"

namespace trireme::checkpoint {

inline constexpr std::string_view kGpt2Embedding = "transformer.wte.weight";
inline constexpr std::string_view kGpt2Head = "lm_head.weight";

// "h.0.ln_1.bias" -> "transformer.h.0.ln_1.bias". nullopt: a buffer that is ignored (`*.attn.bias`,
// `*.attn.masked_bias`).
std::optional<std::string> CanonicalGpt2Name(std::string_view name);

// True for the matrices that Hugging Face stores as [in, out] (Conv1D), while a flat buffer holds [out, in].
bool IsGpt2Transposed(std::string_view canonical_name);

// `inner` with canonical names. tied_head: what config.json says (tie_word_embeddings, true by default): a head that is
// in the file must then equal the embedding bit for bit and becomes an alias of it. Throws CKP020 where they differ,
// CKP019 where two tensors of `inner` get one name.
std::unique_ptr<CheckpointReader> WithGpt2Names(std::unique_ptr<CheckpointReader> inner, bool tied_head);

}  // namespace trireme::checkpoint
