// Text from a model: what follows some tokens, with a key-value cache.
//   Generator generator(OpenModelFolder("gpt2"), {.model = {.device = at::kCPU}});
//   std::vector<float> logits = generator.Logits(ids);   ids.push_back(Sample(logits, sampling, random));
// The first call runs the whole prompt at once, a later one only the tokens that are new; a text that does not begin as
// the last one did is run anew. Where the text outgrows the context, its oldest quarter is left out and the rest run
// anew, each time that the context is full: the tokens that are looked at are ids[WindowBegin(ids.size()) ..]. Scalings
// of rotary positions that depend on the text's length (dynamic, longrope) turn keys that were cached before: the text
// is run anew where they change. So the cache changes no result beyond rounding.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/trainer/inference_model.h"

namespace trireme {

struct GeneratorOptions {
  InferenceOptions model = {};  // sequence_length: the context, tokens looked at; 0: all positions of the model
  bool kv_cache = true;         // false: the whole context anew for each token, the reference
};

class Generator {
 public:
  Generator(const ModelFolder& folder, const GeneratorOptions& options);

  const ModelSpec& model() const { return model_.model(); }
  int64_t context() const { return model_.plan().batch.sequence_length; }
  // Where the looked-at tokens begin in a text of `count`: 0 as long as all fit, then a multiple of a quarter of the
  // context.
  int64_t WindowBegin(int64_t count) const;

  // Logits (fp32, one a token of the vocabulary) of what follows `ids` (at least one, all in the vocabulary). Throws
  // Error{kCheckpoint, GEN004} where they are not finite.
  std::vector<float> Logits(std::span<const int32_t> ids);

 private:
  int64_t Reusable(std::span<const int32_t> window) const;
  void ReserveCaches(int64_t tokens);

  InferenceModel model_;
  const bool kv_cache_;
  std::vector<int32_t> cached_;  // the tokens whose keys and values are in caches_
  std::vector<KeyValueCache> caches_;
};

}  // namespace trireme
