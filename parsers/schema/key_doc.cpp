#include "parsers/schema/key_doc.h"

#include <algorithm>

namespace trireme {
namespace {

constexpr KeyAlias kAliases[] = {
    {"bfloat16", "bf16", "old name"},
    {"tensor_parallel.autotp_size", "tensor_parallel.tp_size", "DeepSpeed's name"},
    {"tensor_parallel.tp.tp_size", "tensor_parallel.tp_size", "another place of DeepSpeed's"},
    {"tensor_parallel.tensor_parallel", "tensor_parallel.tp", "another name"},
    {"tensor_parallel.kernel_inject", "tensor_parallel.replace_with_kernel_inject", "short name"},
    {"model_parallel_size", "tensor_parallel.tp_size", "gpt-neox's name"},
    {"model-parallel-size", "tensor_parallel.tp_size", "gpt-neox's name"},
    {"pipeline_parallel.stages", "pipeline_parallel.pp_size", "another name"},
    {"pipeline.stages", "pipeline_parallel.pp_size", "DeepSpeed's name, which it never reads"},
    {"pipe_parallel_size", "pipeline_parallel.pp_size", "gpt-neox's name"},
    {"pipe-parallel-size", "pipeline_parallel.pp_size", "gpt-neox's name"},
    {"zero_optimization.cpu_offload", "zero_optimization.offload_optimizer", "old name"},
    {"zero_optimization.cpu_offload_param", "zero_optimization.offload_param", "old name"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save", "old name"},
};

constexpr std::span<const KeyDoc> (*kTables[])() = {BatchDocs,      OptimizerDocs, SchedulerDocs,  PrecisionDocs,
                                                    ZeroDocs,       ParallelDocs,  ActivationDocs, DataDocs,
                                                    CheckpointDocs, ReportDocs,    OtherDocs,      TriremeDocs};

}  // namespace

std::string_view Name(KeyClass key_class) {
  static constexpr std::string_view kNames[] = {"act", "honour", "note", "refuse"};
  return kNames[static_cast<size_t>(key_class)];
}

std::string_view Meaning(KeyClass key_class) {
  static constexpr std::string_view kTexts[] = {"does what it says", "reached by other means",
                                                "accepted, without effect here",
                                                "an error when on: silence would change the result"};
  return kTexts[static_cast<size_t>(key_class)];
}

std::vector<const KeyDoc*> KeyDocs() {
  std::vector<const KeyDoc*> docs;
  for (const auto table : kTables) {
    for (const KeyDoc& doc : table()) docs.push_back(&doc);
  }
  return docs;
}

std::span<const KeyAlias> KeyAliases() { return kAliases; }

const KeyAlias* FindAlias(std::string_view name) {
  const auto alias = std::ranges::find(kAliases, name, &KeyAlias::name);
  return alias == std::end(kAliases) ? nullptr : &*alias;
}

}  // namespace trireme
