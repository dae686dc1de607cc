// From the command line of `plan` to the config that it plans.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "parsers/cli.h"
#include "parsers/config.h"

namespace trireme::cli {

struct RequestedConfig {
  Config config;
  std::vector<Problem> notices;  // what it gives to say, warnings among it; no errors
  // Why the config's own layout cannot be. `config` is then the same job in a layout that can; "": it is the own one.
  std::string refused;
};

// Throws Error for what cannot be planned, `plan`'s own among them: it throws where a config's layout is none. Under
// --suggest a layout that is refused is no error as long as another grid of the ranks can be: micro-batch, sizes of
// tensor and pipeline parallelism are open then, and train_batch_size is not.
RequestedConfig ReadRequested(const PlanOptions& options, int64_t world_size, int64_t hidden_size,
                              const std::function<void(const Config&)>& plan);

// The config's text, with what --with sets. Throws Error{kConfig} where it cannot be read.
std::string ConfigText(const PlanOptions& options);

// For a config that says what these flags said.
TrainFlags WithoutLayout(TrainFlags flags);

}  // namespace trireme::cli
