// A program that knows only what an installed Trireme offers: it writes its own tokens, trains a tiny GPT on them,
// first with the engine's loader, then on batches of its own making, and says whether the loss fell.
#include <ATen/ops/arange.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/version.h"
#include "engine/data/indexed_writer.h"
#include "engine/trainer/initialize.h"

namespace {

constexpr int64_t kVocabulary = 64, kSequence = 16, kMicroBatch = 4, kSteps = 20;
constexpr const char* kConfig = R"({
  "train_batch_size": 4, "train_micro_batch_size_per_gpu": 4,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
  "zero_optimization": {"stage": 2}
})";

trireme::ModelSpec TinyGpt() {
  trireme::ModelSpec model;
  model.name = "tiny";
  model.num_layers = 2;
  model.hidden_size = 32;
  model.num_attention_heads = model.num_key_value_heads = 2;
  model.intermediate_size = 128;
  model.vocab_size = kVocabulary;
  model.max_position_embeddings = kSequence;
  return model;
}

// Documents that count in steps of 7: what follows is known once two tokens are seen.
void WriteTokens(const std::string& prefix) {
  trireme::data::IndexedWriter writer(prefix, trireme::data::TokenTypeForVocab(kVocabulary));
  for (int32_t document = 0; document < 50; ++document) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 40; ++i) tokens.push_back((document + 7 * i) % static_cast<int32_t>(kVocabulary));
    writer.AddSequence(tokens);
    writer.EndDocument();
  }
  writer.Finish();
}

int Train() {
  std::ofstream("ds_config.json") << kConfig;
  WriteTokens("tokens");
  auto [engine, optimizer, loader, scheduler] = trireme::initialize({.config = "ds_config.json",
                                                                     .model = TinyGpt(),
                                                                     .seq_length = kSequence,
                                                                     .training_data = "tokens",
                                                                     .train_iters = 2 * kSteps,
                                                                     .device = "cpu"});
  const double first = engine->train_batch(*loader);
  for (int64_t step = 1; step < kSteps; ++step) engine->train_batch(*loader);

  double last = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor tokens = at::arange(step, step + kMicroBatch * (kSequence + 1), at::kInt).mul(7).remainder(61);
    last = engine->forward(tokens.view({kMicroBatch, kSequence + 1}));
    engine->backward(last);
    engine->step();
  }
  std::printf("trireme %s: loss %.3f, after %ld steps %.3f\n", std::string(trireme::Version()).c_str(), first,
              static_cast<long>(engine->global_steps()), last);
  return last < 0.7 * first ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return Train();
  } catch (const trireme::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return trireme::ExitCode(error.code());
  }
}
