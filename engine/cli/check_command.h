// The `trireme plan` command that looks at what a `trireme train` command would train, without a GPU.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/cli/commands.h"

namespace trireme::cli {

// "trireme plan ds_config.json --num_nodes 1 --num_gpus 8 --model_name gpt-13b": of the words of `train` those that
// plan knows, for as many ranks. Flags that say what one of `keys` says are left out: `--with` will give them.
std::string PlanCommandOf(const Arguments& train_words, const std::string& config, int64_t num_nodes, int64_t num_gpus,
                          const std::vector<std::string>& keys);

}  // namespace trireme::cli
