#include "engine/cli/check_command.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

namespace trireme::cli {
namespace {

// Flags that both commands have and that a layout or its memory depends on, and the key that says the same.
struct Shared {
  std::string_view flag, key;
};
constexpr Shared kShared[] = {{"model-name", ""},
                              {"init-from", ""},
                              {"num-layers", ""},
                              {"hidden-size", ""},
                              {"num-attention-heads", ""},
                              {"vocab-size", ""},
                              {"max-position-embeddings", ""},
                              {"untie", ""},
                              {"seq-length", ""},
                              {"train-iters", ""},
                              {"hidden-dropout", ""},
                              {"bf16", ""},
                              {"fp16", ""},
                              {"fp64", ""},
                              {"lr", ""},
                              {"lr-warmup-iters", ""},
                              {"distribute-saved-activations", "activation_checkpointing.partition_activations"},
                              {"recompute-granularity", "trireme.recompute"},
                              {"recompute-method", "trireme.recompute"},
                              {"recompute-num-layers", "trireme.recompute"},
                              {"micro-batch-size", "train_micro_batch_size_per_gpu"},
                              {"global-batch-size", "train_batch_size"},
                              {"gradient-accumulation-steps", "gradient_accumulation_steps"},
                              {"tensor-model-parallel-size", "tensor_parallel.tp_size"},
                              {"pipeline-model-parallel-size", "pipeline_parallel.pp_size"},
                              {"sequence-parallel", "trireme.sequence_parallel"}};

std::string NameOf(std::string word) {
  if (!word.starts_with("--")) return "";
  word = word.substr(2, word.find('=') - 2);
  std::ranges::replace(word, '_', '-');
  return word;
}

}  // namespace

std::string PlanCommandOf(const Arguments& train_words, const std::string& config, int64_t num_nodes, int64_t num_gpus,
                          const std::vector<std::string>& keys) {
  std::string text = fmt::format("trireme plan {} --num_nodes {} --num_gpus {}", config, num_nodes, num_gpus);
  bool keeps = false;
  for (const std::string& word : train_words) {
    if (const std::string name = NameOf(word); !name.empty()) {
      const auto shared = std::ranges::find(kShared, name, &Shared::flag);
      keeps = shared != std::end(kShared) && std::ranges::find(keys, shared->key) == keys.end();
    }
    if (keeps) text += " " + word;
  }
  return text;
}

}  // namespace trireme::cli
