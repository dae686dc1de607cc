// The batch triangle, and what becomes of gradients between the ranks.
#include "parsers/schema/key_doc.h"

namespace trireme {
namespace {

constexpr KeyDoc kDocs[] = {
    {.key = "train_batch_size",
     .meaning =
         "Samples (sequences) of one optimizer step, over all ranks: micro x accumulation x data-parallel ranks.",
     .speed = "larger steps spread gradient reductions and updates over more tokens",
     .result = "the batch of each update: learning rate and number of steps belong to it",
     .by_default = "derived from the other two; this key or train_micro_batch_size_per_gpu must be known",
     .deepspeed = "the same arithmetic, but with tensor parallelism by autotp_size DeepSpeed counts all ranks as "
                  "data-parallel ones"},
    {.key = "train_micro_batch_size_per_gpu",
     .meaning = "Samples of one forward and backward pass on one data-parallel rank.",
     .memory = "activations grow in proportion; weights, gradients and optimizer states do not",
     .speed = "small values leave matrix products short of work",
     .result = "none beside rounding, if train_batch_size stays",
     .by_default = "derived from the other two"},
    {.key = "gradient_accumulation_steps",
     .meaning = "Micro-batches whose gradients add up before one update; with a pipeline, what fills it.",
     .memory = "none; 1f1b keeps activations of at most pp_size micro-batches, gpipe of all of them",
     .speed = "fewer reductions a sample at ZeRO 0 and 1; the bubble of a pipeline shrinks to (pp - 1) / (m + pp - 1)",
     .result = "none beside rounding, if train_batch_size stays",
     .by_default = "derived from the other two, 1 where only one of them is known"},
    {.key = "gradient_clipping",
     .meaning = "Largest L2 norm of the whole gradient, over all parameters and ranks; above it the gradient is scaled "
                "down. 0 is off.",
     .result = "limits each step's update; the log has the norm before and after",
     .deepspeed = "1 as well; but absent meant no clipping before 0.19.3",
     .drift = "0 (no clipping) in DeepSpeed before 0.19.3 (June 2026), 1 since; the newer holds. Write 0 for the curve "
              "of an older run"},
    {.key = "communication_data_type",
     .meaning = "Element type in which gradients travel between data-parallel ranks.",
     .memory = "a staging copy of a bucket where it differs from the type in which gradients add up",
     .speed = "bf16 halves the traffic of fp32",
     .result = "16 bits round each rank's part before the sum",
     .values = "fp32, bf16, fp16, in any letter case",
     .by_default = "the type in which gradients add up",
     .deepspeed = "DeepSpeed takes the type of the weights; \"trireme\": {\"deepspeed_accumulation\": true} does too"},
    {.key = "seq_parallel_communication_data_type",
     .meaning = "The type of gradient reductions where DeepSpeed's (Ulysses) sequence parallelism is on."},
    {.key = "gradient_allreduce_op",
     .meaning = "Whether gradients of the data-parallel ranks are averaged or summed.",
     .result = "a sum is larger by the number of data-parallel ranks"},
    {.key = "prescale_gradients",
     .meaning = "Divide gradients by the number of ranks before they are summed, instead of after.",
     .result = "none beside rounding; it guarded fp16 sums against overflow"},
    {.key = "gradient_predivide_factor",
     .meaning = "Divide gradients by this before the sum and by the rest after it.",
     .result = "none beside rounding"},
    {.key = "sparse_gradients",
     .meaning = "Exchange embedding gradients as pairs of index and row.",
     .speed = "in DeepSpeed less traffic where few tokens occur"},
    {.key = "managed_gradient_accumulation",
     .meaning = "false: every call of step() is an update, and the program itself counts micro-batches.",
     .result = "where the updates lie"},
    {.key = "graph_harvesting", .meaning = "Record the update of DeepSpeed's bf16 optimizer as a device graph."},
    {.key = "disable_python_gc", .meaning = "Python's garbage collector runs between steps only."},
    {.key = "disable_allgather", .meaning = "Stored by DeepSpeed, and read by nothing."},
    {.key = "dataloader_drop_last",
     .meaning = "Drop the last incomplete micro-batch of an epoch.",
     .result = "which samples the end of an epoch trains on"},
};

}  // namespace

std::span<const KeyDoc> BatchDocs() { return kDocs; }

}  // namespace trireme
