// Whether a pipeline does all of the model's work and none of it twice.
#pragma once
#include <string>
#include <vector>

#include "engine/schedule/compile.h"

namespace trireme {

// `pp_ranks`: the programs of one pipeline, one a pipeline rank. Each unit must have one Forward for each micro-batch
// and, in training, one Backward, or one BackwardInput with one BackwardWeight after it; the head, whose Forward makes
// its gradients, none; and each micro-batch is reduced with what it made. Empty: so it is.
std::vector<std::string> UnitsNotRunOnce(const Plan& plan, ProgramKind kind,
                                         const std::vector<CompiledProgram>& pp_ranks);

}  // namespace trireme
