// "data_efficiency", the curricula, checkpoints.
#include "parsers/schema/key_doc.h"

namespace trireme {
namespace {

constexpr const char* kSamples = "which samples a step trains on";

constexpr KeyDoc kData[] = {
    {.key = "data_efficiency", .meaning = "DeepSpeed's ways to choose data; dynamic batching of them."},
    {.key = "data_efficiency.enabled",
     .meaning = "The outer switch.",
     .deepspeed = "acts on the inner switches alone, as here",
     .key_class = KeyClass::kNote},
    {.key = "data_efficiency.seed",
     .meaning = "Seed of the order of samples under dynamic batching.",
     .result = "the order"},
    {.key = "data_efficiency.data_sampling", .meaning = "Which samples form a batch."},
    {.key = "data_efficiency.data_sampling.enabled", .meaning = "A switch between.", .key_class = KeyClass::kNote},
    {.key = "data_efficiency.data_sampling.num_epochs", .meaning = "Passes over the data."},
    {.key = "data_efficiency.data_sampling.num_workers", .meaning = "Processes that load data."},
    {.key = "data_efficiency.data_sampling.pin_memory", .meaning = "Load into page-locked memory."},
    {.key = "data_efficiency.data_sampling.dynamic_batching",
     .meaning = "Micro-batches by tokens instead of by samples: docs/dynamic_batching.md."},
    {.key = "data_efficiency.data_sampling.dynamic_batching.enabled",
     .meaning = "Switches it on, whatever the switches around it say.",
     .memory = "planned for max_tokens a micro-batch",
     .speed = "documents of different lengths waste little padding",
     .result = "each document is a sample for itself"},
    {.key = "data_efficiency.data_sampling.dynamic_batching.max_tokens",
     .meaning = "Rows x padded length of a micro-batch, at most.",
     .memory = "activations in proportion",
     .by_default = "must be written where dynamic batching is on",
     .deepspeed = "counts tokens without padding"},
    {.key = "data_efficiency.data_sampling.dynamic_batching.lr_scaling_method",
     .meaning = "How the rate follows the samples of a step over train_batch_size.",
     .result = "the rate of each step",
     .values = "linear, sqrt, none",
     .by_default = "linear"},
    {.key = "data_efficiency.data_sampling.dynamic_batching.min_batch_size", .meaning = "Least rows of a micro-batch."},
    {.key = "data_efficiency.data_sampling.dynamic_batching.max_batch_size", .meaning = "Most rows of a micro-batch."},
    {.key = "data_efficiency.data_sampling.dynamic_batching.sequence_picking_order",
     .meaning = "Order of the documents.",
     .result = "the order",
     .values = "dataloader (as in the file), random, seqlen (shortest first)",
     .by_default = "dataloader"},
    {.key = "data_efficiency.data_sampling.dynamic_batching.metrics_path", .meaning = "Folder of the lengths."},
    {.key = "data_efficiency.data_sampling.dynamic_batching.verbose", .meaning = "Log each batch."},
    {.key = "data_efficiency.data_sampling.curriculum_learning",
     .meaning = "Samples from easy to hard, by metrics made beforehand.",
     .result = kSamples},
    {.key = "data_efficiency.data_sampling.curriculum_learning.enabled",
     .meaning = "Switches it on.",
     .result = kSamples,
     .key_class = KeyClass::kRefuse},
    {.key = "data_efficiency.data_routing", .meaning = "Which tokens pass which layers."},
    {.key = "data_efficiency.data_routing.enabled", .meaning = "A switch between.", .key_class = KeyClass::kNote},
    {.key = "data_efficiency.data_routing.random_ltd",
     .meaning = "Random tokens skip the layers in the middle.",
     .speed = "those layers do less",
     .result = "another model during training"},
    {.key = "data_efficiency.data_routing.random_ltd.enabled",
     .meaning = "Switches it on.",
     .result = "another model during training",
     .key_class = KeyClass::kRefuse},
    {.key = "curriculum_learning",
     .meaning = "Sequences that grow from short to whole (old form).",
     .speed = "short sequences first",
     .result = "another order and length of what is seen"},
};

constexpr KeyDoc kCheckpoint[] = {
    {.key = "checkpoint", .meaning = "How DeepSpeed writes and reads checkpoints."},
    {.key = "nebula", .meaning = "Checkpoints through Azure's Nebula service."},
    {.key = "datastates_ckpt", .meaning = "Asynchronous checkpoints through DataStates; anything but false is on."},
};

}  // namespace

std::span<const KeyDoc> DataDocs() { return kData; }
std::span<const KeyDoc> CheckpointDocs() { return kCheckpoint; }

}  // namespace trireme
