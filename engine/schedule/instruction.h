// A Program: the ordered instructions of one training step on a few lanes, for one rank. Data only: it is verified,
// simulated, executed and traced without another representation. Schedules write order; waits and offsets are derived
// (compile.h).
#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/plan.h"

namespace trireme {

enum class Op : uint8_t {
  kLoad,            // tokens of one micro-batch from the data source
  kForward,         // of one unit; the head's Forward also makes loss and gradients, in training
  kRecompute,       // Forward once more, for what Backward needs
  kBackward,        // gradients of input and weights
  kBackwardInput,   // gradient of the input (and of the norms' weights); leaves kDeferred
  kBackwardWeight,  // gradients of matrices and biases, out of kDeferred
  kSend,            // a boundary or its gradient to another stage
  kRecv,
  kGather,   // all-gather of a range's weights
  kRelease,  // marks the end of gathered weights (frees only)
  kReduce,   // reduction of a range's gradients over dp
  // Sum over tp of the gradients of what is whole on every tp rank, but saw only its share of the tokens.
  kTpReduce,
  kTieReduce,  // sum of the two gradients of a tied weight whose copies lie on two stages
  kStepStats,  // compute: sums of squares of own gradients; dp: their all-reduce over the world, norm and clip factor
  // Lamb: moments of a range's own shard; squares of weights and steps, by tensor. Then their sums over the dp ranks
  // that share the tensors, and over the tp ranks that split them.
  kUpdateNorms,
  kReduceNorms,
  kUpdate,    // optimizer step on a range's own shard, predicated by StepState
  kCopyDown,  // device to host: StepState, gradients whose update is there, weights that live there
  kCopyUp,    // host to device: what an update made there, weights that live there
};
enum class Lane : uint8_t { kCompute, kTp, kPp, kDp, kUp, kDown, kCpu };
constexpr int kNumLanes = 7;
// kDp: ranks of equal pp and tp rank. kTp: of equal pp and dp rank. kTie: first and last pipeline rank, of equal dp and
// tp rank. kPp: transfers between two pipeline ranks of equal dp and tp rank.
enum class Group : uint8_t { kNone, kDp, kWorld, kTie, kPp, kTp };

enum class BufferKind : uint8_t {
  // Persistent: one flat buffer a unit (StepState: one a rank).
  // `offload` below: Plan::OptimizerOnHost of the unit, Plan::weights_on_host. What says "host" lies there.
  kWeights,       // compute type: whole (ZeRO 0-2) or own shard (ZeRO 3; host with offload_param)
  kMaster,        // master weights where they are separate, and moments: own shard (ZeRO >= 1) or whole; host where the
                  // unit's optimizer is offloaded
  kGradientSum,   // accumulation type: own shard (ZeRO 2, 3) or whole (0, 1; at 1 only the own slice is valid after
                  // Reduce)
  kUpdateNorms,   // Lamb: double [tensors of the unit, 2]
  kHostGradient,  // host, accumulation type: what an offloaded update needs of kGradientSum, the own part
  kHostState,     // host: StepState of the run
  kStepState,
  // Transient: a range of the arena.
  kTokens,    // [micro, seq + 1] int32
  kGathered,  // whole weights of a unit at ZeRO 3. Slot 0: forward, 1: backward, 2: tied weights for the head
  kBoundary,  // x: [tokens, hidden], keyed by the unit that writes it
  kSaved,     // what Forward leaves for Backward. Slot 1: written and freed by one Forward (recomputation, evaluation)
  kBoundaryGradient,  // dx of kBoundary with the same key
  kDeferred,          // what BackwardInput leaves for BackwardWeight
  kGradient,          // whole gradient of one unit and micro-batch at ZeRO 2, 3
  kStaging,           // of one unit. Slot 0: reduced shard; slot 1: whole, in the communication type where that is not
                      // kGradient's
  kShard,  // own shard of the weights on the device with offload_param. Slots of kGathered: for that Gather; without a
           // micro-batch: what an update on the device made
  // Transient, in the host's arena.
  kHostWeights,  // own weights in the compute type that an update on the host made
};
constexpr bool IsPersistent(BufferKind kind) { return kind <= BufferKind::kStepState; }
constexpr bool InHostArena(BufferKind kind) { return kind >= BufferKind::kHostWeights; }

struct BufferKey {
  BufferKind kind = BufferKind::kWeights;
  int16_t unit = -1;
  int16_t chunk = 0;         // virtual pipeline stage
  int32_t micro_batch = -1;  // -1: not tied to one
  int16_t slot = 0;
  auto operator<=>(const BufferKey&) const = default;
};

struct Instruction {
  int32_t id = 0;  // position in the Program
  Op op = Op::kForward;
  UnitRange units;
  int32_t chunk = 0, micro_batch = -1;
  Lane lane = Lane::kCompute;
  Group group = Group::kNone;
  int32_t peer = -1;  // transfers: the other pipeline rank
  int32_t post = -1;  // transfers: neighbours with equal post are one grouped transfer, and run at once
  std::vector<BufferKey> reads, writes, adds, frees;
  bool operator==(const Instruction&) const = default;
};

enum class ProgramKind : uint8_t { kTrain, kEval };

struct Program {
  ProgramKind kind = ProgramKind::kTrain;
  int rank = 0;
  std::vector<Instruction> instructions;
};

bool CopiesState(const Instruction& instruction);  // the CopyDown of StepState

std::string_view Name(Op op);
std::string_view Name(Lane lane);
std::string_view Name(BufferKind kind);
std::string_view Name(Group group);
std::string Describe(const BufferKey& key);                              // "saved[unit 4] micro-batch 2"
std::string Describe(const Instruction& instruction, const Plan& plan);  // "Forward transformer.h.3 micro-batch 2"

}  // namespace trireme
