// What a run prints and writes about itself.
#include "parsers/schema/key_doc.h"

namespace trireme {
namespace {

constexpr KeyDoc kDocs[] = {
    {.key = "steps_per_print",
     .meaning = "Optimizer steps between two progress lines; --log-interval goes first.",
     .deepspeed = "absent means never, while its documentation says 10; a run that says nothing looks hung",
     .drift = "10 in DeepSpeed before 0.15.2 (October 2024), never since; the older holds: a silent run looks hung"},
    {.key = "wall_clock_breakdown",
     .meaning = "Log the times of forward, backward, reduction and step.",
     .speed = "in DeepSpeed it waits for the GPU at each of them"},
    {.key = "memory_breakdown", .meaning = "Log memory around each phase."},
    {.key = "dump_state", .meaning = "Print the engine's state once."},
    {.key = "log_level", .meaning = "Lowest level of log lines."},
    {.key = "vocabulary_size", .meaning = "Only for a warning where it is no multiple of 8."},
    {.key = "timers", .meaning = "Timers of DeepSpeed."},
    {.key = "comms_logger", .meaning = "Log collectives with sizes and times."},
    {.key = "flops_profiler", .meaning = "Count operations of one step, module by module."},
    {.key = "tensorboard", .meaning = "Loss, rate and loss scale as TensorBoard events."},
    {.key = "csv_monitor", .meaning = "The same as CSV files."},
    {.key = "wandb", .meaning = "The same to Weights & Biases."},
    {.key = "comet", .meaning = "The same to Comet."},
};

}  // namespace

std::span<const KeyDoc> ReportDocs() { return kDocs; }

}  // namespace trireme
