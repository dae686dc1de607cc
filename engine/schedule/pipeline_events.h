// The passes of one pipeline rank with the transfers that they need, in the order in which the rank issues them.
#pragma once
#include <variant>
#include <vector>

#include "engine/schedule/instruction.h"
#include "engine/schedule/pipeline_order.h"

namespace trireme {

// One boundary between two stages, or its gradient, of one micro-batch.
struct Transfer {
  bool gradient = false;  // travels down: from the stage above
  bool sends = false;     // else this rank receives
  int unit = 0;           // that writes the boundary: the last one of the lower stage
  int micro_batch = 0;
  int peer = 0;  // pipeline rank
  int post = 0;  // neighbours with equal post are one grouped transfer
  bool operator==(const Transfer&) const = default;
};

using PipelineEvent = std::variant<Pass, Transfer>;

// Transfers stand in one order for all ranks: by the time at which they would be ready if a forward took 1, each of the
// two gradients 1, and a recomputation 1. So two ranks never wait for each other's later transfers. Those of one rank
// that are ready at the same time are one post.
std::vector<PipelineEvent> EventsOf(const Plan& plan, ProgramKind kind, int pp_rank);

}  // namespace trireme
