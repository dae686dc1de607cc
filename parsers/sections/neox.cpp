// The top level of gpt-neox's files, which describes model, data and schedule beside DeepSpeed's keys. Hyphens and
// underscores are the same there. Facts: gpt-neox, megatron/neox_arguments.
#include <fmt/core.h>

#include <algorithm>

#include "engine/base/strings.h"
#include "parsers/sections/sections.h"

namespace trireme {
namespace {

struct Group {
  Severity severity;
  std::string_view what, fix;
};
constexpr Group kGroups[] = {
    {Severity::kWarning, "no effect here: gpt-neox describes its model at this place",
     "pass --model_name, or --num-layers, --hidden-size, --num-attention-heads, --seq-length, --hidden-dropout"},
    {Severity::kWarning, "no effect here, and gpt-neox trains otherwise with it",
     "pass --weight-decay for weight_decay; write a \"scheduler\" section for the learning rate; pass "
     "--recompute-granularity full for checkpoint_activations"},
    {Severity::kNotice, "no effect here: flags of train say this",
     "pass --train-iters, --log-interval, --eval-interval, --eval-iters, --save-interval, --data-path, --split"},
    {Severity::kNotice, "no effect here: kernels and launchers are chosen by the program", ""},
};
constexpr size_t kModel = 0, kTraining = 1, kRun = 2, kMachinery = 3;

struct Key {
  std::string_view name;
  size_t group;
};
constexpr Key kKeys[] = {
    {"num_layers", kModel},
    {"hidden_size", kModel},
    {"num_attention_heads", kModel},
    {"seq_length", kModel},
    {"max_position_embeddings", kModel},
    {"norm", kModel},
    {"pos_emb", kModel},
    {"rotary_pct", kModel},
    {"activation", kModel},
    {"no_weight_tying", kModel},
    {"gpt_j_residual", kModel},
    {"output_layer_parallelism", kModel},
    {"attention_config", kModel},
    {"hidden_dropout", kModel},
    {"attention_dropout", kModel},
    {"weight_decay", kTraining},
    {"min_lr", kTraining},
    {"lr_decay_iters", kTraining},
    {"lr_decay_style", kTraining},
    {"warmup", kTraining},
    {"init_method", kTraining},
    {"output_layer_init_method", kTraining},
    {"precision", kTraining},
    {"checkpoint_activations", kTraining},
    {"checkpoint_num_layers", kTraining},
    {"partition_activations", kTraining},
    {"train_iters", kRun},
    {"log_interval", kRun},
    {"eval_interval", kRun},
    {"eval_iters", kRun},
    {"save_interval", kRun},
    {"checkpoint_factor", kRun},
    {"keep_last_n_checkpoints", kRun},
    {"save", kRun},
    {"load", kRun},
    {"data_path", kRun},
    {"data_impl", kRun},
    {"split", kRun},
    {"train_data_paths", kRun},
    {"valid_data_paths", kRun},
    {"test_data_paths", kRun},
    {"vocab_file", kRun},
    {"merge_file", kRun},
    {"tokenizer_type", kRun},
    {"scaled_upper_triang_masked_softmax_fusion", kMachinery},
    {"bias_gelu_fusion", kMachinery},
    {"rope_fusion", kMachinery},
    {"layernorm_fusion", kMachinery},
    {"synchronize_each_layer", kMachinery},
    {"distributed_backend", kMachinery},
    {"hostfile", kMachinery},
    {"launcher", kMachinery},
    {"deepspeed_slurm", kMachinery},
    {"no_ssh_check", kMachinery},
};

const Key* FindKey(std::string name) {
  std::ranges::replace(name, '-', '_');
  const auto it = std::ranges::find(kKeys, std::string_view(name), &Key::name);
  return it == std::end(kKeys) ? nullptr : it;
}

}  // namespace

void TellNeoxKeys(SectionReader& root) {
  for (size_t group = 0; group < std::size(kGroups); ++group) {
    std::vector<std::string> names;
    Position first = root.Here();
    for (const JsonMember* member : root.Unread()) {
      const Key* key = FindKey(member->key);
      if (key == nullptr || key->group != group) continue;
      if (names.empty()) first = root.At(member->key);
      names.push_back(member->key);
    }
    for (const std::string& name : names) root.Take(name);
    if (names.empty()) continue;
    const Group& g = kGroups[group];
    root.diagnostics().Add({g.severity, "CFG059", first, names.front(),
                            fmt::format("{}: {}", Join(names, ", "), g.what), std::string(g.fix)});
  }
}

}  // namespace trireme
