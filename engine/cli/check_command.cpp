#include "engine/cli/check_command.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

namespace trireme::cli {
namespace {

// Flags that both commands have and that a layout or its memory depends on.
constexpr std::string_view kShared[] = {"model-name",
                                        "init-from",
                                        "num-layers",
                                        "hidden-size",
                                        "num-attention-heads",
                                        "vocab-size",
                                        "max-position-embeddings",
                                        "untie",
                                        "seq-length",
                                        "train-iters",
                                        "recompute-granularity",
                                        "recompute-method",
                                        "recompute-num-layers",
                                        "distribute-saved-activations",
                                        "hidden-dropout",
                                        "micro-batch-size",
                                        "global-batch-size",
                                        "gradient-accumulation-steps",
                                        "bf16",
                                        "fp16",
                                        "fp64",
                                        "tensor-model-parallel-size",
                                        "pipeline-model-parallel-size",
                                        "sequence-parallel",
                                        "lr",
                                        "lr-warmup-iters"};

std::string NameOf(std::string word) {
  if (!word.starts_with("--")) return "";
  word = word.substr(2, word.find('=') - 2);
  std::ranges::replace(word, '_', '-');
  return word;
}

}  // namespace

std::string PlanCommandOf(const Arguments& train_words, const std::string& config, int64_t num_nodes,
                          int64_t num_gpus) {
  std::string text = fmt::format("trireme plan {} --num_nodes {} --num_gpus {}", config, num_nodes, num_gpus);
  bool keeps = false;
  for (const std::string& word : train_words) {
    if (const std::string name = NameOf(word); !name.empty()) {
      keeps = std::ranges::find(kShared, name) != std::end(kShared);
    }
    if (keeps) text += " " + word;
  }
  return text;
}

}  // namespace trireme::cli
