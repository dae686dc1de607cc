// The small JSON texts of a checkpoint: counters of the run, optimizer. The model's: parsers/model_text.h.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "parsers/config.h"
#include "parsers/model_spec.h"

namespace trireme {

// Of a dynamic loss scale (step_state.h).
struct ScalerCounters {
  double growth_tracker = 0;
  double hysteresis = 0;
};

struct RunCounters {
  int64_t steps = 0;          // optimizer steps, skipped ones included
  int64_t applied_steps = 0;  // updates: Adam's t, the scheduler's position
  int64_t skipped_steps = 0;
  int64_t consumed_samples = 0;
  double loss_scale = 1;
  std::optional<ScalerCounters> scaler =
      {};  // none: the loss scale was not dynamic, or a version without fp16 saved it
};

std::string CountersToJson(const RunCounters& counters);
// Throws Error{kCheckpoint, TRN011} naming `where` and the member that is missing or wrong.
RunCounters CountersFromJson(std::string_view text, const std::string& where);

// Throws Error{kCheckpoint, TRN013} for a folder that holds weights alone (Hugging Face).
void RequireRunState(const std::string& format, const std::string& where);

// Throws Error{kCheckpoint, TRN012} listing every difference that changes what the weights mean.
void RequireSameModel(const ModelSpec& saved, const ModelSpec& now, const std::string& where);

std::string OptimizerToJson(const OptimizerConfig& optimizer);

}  // namespace trireme
