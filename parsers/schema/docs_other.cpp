// Compilation, experts, tuners, elasticity, and what changes the mathematics.
#include "parsers/schema/key_doc.h"

namespace trireme {
namespace {

constexpr KeyDoc kDocs[] = {
    {.key = "compile", .meaning = "PyTorch's and DeepSpeed's compilers.", .speed = "in DeepSpeed kernels are fused"},
    {.key = "hybrid_engine", .meaning = "Generation between training steps (RLHF)."},
    {.key = "expert_parallel", .meaning = "Mixtures of experts over ranks.", .result = "another model"},
    {.key = "use_data_before_expert_parallelism", .meaning = "Order of ranks in expert groups."},
    {.key = "elasticity",
     .meaning = "A batch size that many numbers of GPUs divide, found by DeepSpeed.",
     .result = "the batch of each update"},
    {.key = "autotuning", .meaning = "DeepSpeed's search for a config, which ends the program after some steps."},
    {.key = "eigenvalue", .meaning = "Eigenvalues of layers, for quantisation."},
    {.key = "sparse_attention",
     .meaning = "Attention to some of the positions.",
     .speed = "less work for long sequences",
     .result = "another model"},
    {.key = "compression_training",
     .meaning = "Quantisation, pruning and removal of layers during training.",
     .result = "other weights"},
    {.key = "quantize_training", .meaning = "An old form of quantisation during training.", .result = "other weights"},
    {.key = "weight_quantization", .meaning = "Weights in few bits, after training.", .result = "rounded weights"},
    {.key = "progressive_layer_drop",
     .meaning = "Random layers are left out, more of them as training goes on.",
     .speed = "fewer layers",
     .result = "another model during training"},
};

}  // namespace

std::span<const KeyDoc> OtherDocs() { return kDocs; }

}  // namespace trireme
