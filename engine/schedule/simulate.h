// Programs on a clock: when each instruction of a step begins and ends, given what each costs. The same compiled
// Programs that are executed, with their lanes, waits and carried hazards.
//   Simulated run = Simulate(plan, programs, costs, /*steps=*/2);
// Pure: no device, and nothing is known about hardware here (cost_model.h).
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "engine/schedule/compile.h"

namespace trireme {

// What one instruction takes. Seconds of a lane that it has to itself.
struct InstructionCost {
  double seconds = 0;
  double communication = 0;  // part of `seconds`: collectives of its own that nothing hides
};

// How lanes of one rank slow each other down. Speeds are shares of what a lane has to itself.
struct LaneSpeeds {
  double compute_beside_collectives = 1;  // lane compute, while lane dp works
  double compute_beside_transfers = 1;    // lane compute, while a transfer of lane pp goes on
  double up_beside_down = 1, down_beside_up = 1;
  // Pipeline ranks that compute on one device share it: rank r is on device devices[r] (empty: each has its own), and
  // takes `device_width` of it while it has it to itself. Where those that compute at the moment want more than the
  // whole, each is slowed by as much.
  std::vector<int> devices;
  double device_width = 1;
};

struct SimulationCosts {
  std::function<InstructionCost(int pp_rank, const CompiledInstruction&)> cost;
  LaneSpeeds speeds;
};

// What lane compute of a rank waited for before an instruction.
enum class WaitKind : uint8_t {
  kNone,
  kBubble,    // for another pipeline rank that has not come so far
  kTransfer,  // for a boundary on its way
  kGather,    // of weights
  kReduce,    // of gradients; sums of a tied weight and of norms too
  kCopies,    // between host and device
  kHost,      // for an update on the host
};
constexpr int kNumWaitKinds = 7;
std::string_view Name(WaitKind kind);

struct InstructionTime {
  double start = 0, end = 0;
  double waited = 0;               // lane compute: between the end of what came before and `start`
  double bubble = 0;               // the part of it that is WaitKind::kBubble
  WaitKind why = WaitKind::kNone;  // the largest part
  double duration() const { return end - start; }
};

// One pipeline rank, in the last of the simulated steps. Seconds from that step's beginning.
struct RankTimes {
  std::vector<InstructionTime> times;         // by instruction id
  std::array<double, kNumWaitKinds> waits{};  // of lane compute, by WaitKind
  double busy = 0;                            // lane compute: what it spent on instructions,
  double communication = 0;                   // and the part of it that collectives inside units took
  double last_pass = 0;                       // end of the last pass
};

struct Simulated {
  double step_seconds = 0;  // from the end of one step to that of the next, once they repeat
  std::vector<RankTimes> ranks;
  bool finished = true;  // every instruction ended: no deadlock
  double passes_begin = 0, passes_end = 0;
  // Share of the ranks' time from the first pass to the last in which lane compute does nothing.
  double bubble = 0;
};

// `programs`: one a pipeline rank, in order, all of equal dp and tp rank. Ranks that differ in dp or tp rank alone have
// the same program and come to each of its collectives at the same time, so one of them stands for all: what dp and tp
// groups do starts when the rank itself is there. Transfers wait for their other side, ties and sums over the world for
// every pipeline rank of theirs. The steps follow each other as they do in a run, with carried hazards.
Simulated Simulate(const Plan& plan, const std::vector<CompiledProgram>& programs, const SimulationCosts& costs,
                   int steps = 1);

}  // namespace trireme
