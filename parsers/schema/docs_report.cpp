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
    {.key = "timers.throughput", .meaning = "Its samples a second."},
    {.key = "timers.throughput.enabled", .meaning = "Switches them on."},
    {.key = "timers.throughput.synchronized", .meaning = "Wait for the GPU before reading the clock."},
    {.key = "comms_logger", .meaning = "Log collectives with sizes and times."},
    {.key = "comms_logger.enabled", .meaning = "Switches it on."},
    {.key = "comms_logger.verbose", .meaning = "A line for each."},
    {.key = "comms_logger.prof_all", .meaning = "All operations."},
    {.key = "comms_logger.prof_ops", .meaning = "Only these."},
    {.key = "comms_logger.debug", .meaning = "With names of the callers."},
    {.key = "flops_profiler", .meaning = "Count operations of one step, module by module."},
    {.key = "flops_profiler.enabled", .meaning = "Switches it on."},
    {.key = "flops_profiler.recompute_fwd_factor", .meaning = "Share of the forward pass that is recomputed."},
    {.key = "flops_profiler.profile_step", .meaning = "The step that is counted."},
    {.key = "flops_profiler.module_depth", .meaning = "Depth to which modules are listed."},
    {.key = "flops_profiler.top_modules", .meaning = "Number of largest ones."},
    {.key = "flops_profiler.detailed", .meaning = "Print every module."},
    {.key = "flops_profiler.output_file", .meaning = "Where to."},
    {.key = "tensorboard", .meaning = "Loss, rate and loss scale as TensorBoard events."},
    {.key = "tensorboard.enabled", .meaning = "Switches it on."},
    {.key = "tensorboard.output_path", .meaning = "Folder."},
    {.key = "tensorboard.job_name", .meaning = "Folder below it."},
    {.key = "csv_monitor", .meaning = "The same as CSV files."},
    {.key = "csv_monitor.enabled", .meaning = "Switches it on."},
    {.key = "csv_monitor.output_path", .meaning = "Folder."},
    {.key = "csv_monitor.job_name", .meaning = "Folder below it."},
    {.key = "wandb", .meaning = "The same to Weights & Biases."},
    {.key = "wandb.enabled", .meaning = "Switches it on."},
    {.key = "wandb.group", .meaning = "Group of runs."},
    {.key = "wandb.team", .meaning = "Team."},
    {.key = "wandb.project", .meaning = "Project."},
    {.key = "comet", .meaning = "The same to Comet."},
    {.key = "comet.enabled", .meaning = "Switches it on."},
    {.key = "comet.samples_log_interval", .meaning = "Samples between entries."},
    {.key = "comet.project", .meaning = "Project."},
    {.key = "comet.workspace", .meaning = "Workspace."},
    {.key = "comet.api_key", .meaning = "Key of the account; no message shows it."},
    {.key = "comet.experiment_name", .meaning = "Name of the experiment."},
    {.key = "comet.experiment_key", .meaning = "Experiment to go on with."},
    {.key = "comet.online", .meaning = "Send at once, or keep in files."},
    {.key = "comet.mode", .meaning = "New experiment, or an old one."},
};

}  // namespace

std::span<const KeyDoc> ReportDocs() { return kDocs; }

}  // namespace trireme
