// "trireme": keys of our own. DeepSpeed ignores the section.
#include <fmt/core.h>

#include "parsers/sections/sections.h"

namespace trireme {

namespace {

// "pipeline": what DeepSpeed's programs say in code.
void ParsePipeline(SectionReader in, PipelineParallelConfig& pipeline) {
  in.Read("virtual_stages", pipeline.virtual_stages, Between(1, 1000));
  in.Read("partition", pipeline.partition);
  std::string schedule = "1f1b";
  if (in.Read("schedule", schedule)) {
    if (schedule == "gpipe") {
      pipeline.schedule = PipelineSchedule::kGPipe;
    } else if (schedule == "zero-bubble") {
      pipeline.schedule = PipelineSchedule::kZeroBubble;
    } else if (schedule != "1f1b") {
      in.diagnostics().Error("CFG012", in.At("schedule"), in.Path("schedule"),
                             fmt::format("unknown pipeline schedule {}", Quoted(schedule)),
                             "write \"1f1b\", \"zero-bubble\" or \"gpipe\"");
    }
  }
  in.RejectUnread();
}

}  // namespace

TriremeConfig ParseTrireme(SectionReader in, const TrainFlags& flags, Config& config) {
  TriremeConfig c;
  std::string normalization = "tokens";
  if (in.Read("loss_normalization", normalization)) {
    if (normalization == "per_microbatch") {
      in.diagnostics().Error(
          "CFG009", in.At("loss_normalization"), in.Path("loss_normalization"),
          "the mean of the micro-batches' means is not supported: it weighs a token of a micro-batch "
          "with fewer tokens more",
          "write \"tokens\", or remove the key: it is the same where all have as many tokens");
    } else if (normalization != "tokens") {
      in.diagnostics().Error("CFG012", in.At("loss_normalization"), in.Path("loss_normalization"),
                             fmt::format("unknown normalisation {}", Quoted(normalization)),
                             "write \"tokens\", or remove the key");
    }
  }
  in.Read("fill", c.fill);
  in.Read("deepspeed_accumulation", c.deepspeed_accumulation);
  in.Read("scale_growth_quirk", c.scale_growth_quirk);
  in.Read("find_bad_value", c.find_bad_value);
  in.Read("max_skipped_steps", c.max_skipped_steps, AtLeast(1));
  in.Read("check_replicas_every", c.check_replicas_every, AtLeast(0));
  ParsePipeline(in.Section("pipeline", SectionKind::kChecked), config.pipeline_parallel);
  ParseRecompute(in, config.recompute);
  in.Fill("sequence_parallel", config.tensor_parallel.sequence_parallel,
          flags.sequence_parallel ? std::optional(true) : std::nullopt, "--sequence-parallel");
  in.RejectUnread();
  return c;
}

}  // namespace trireme
