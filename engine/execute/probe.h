// Finds the first value that is not finite in a step that is made once more, instruction by instruction.
//   Probe probe(plan, state, ProbedProgram);  probe.AfterUnit(instruction, args); ...  probe.First();
// Looks are kernels on the lane that made the tensor; nothing waits before First. A rank that does not probe pays a
// null pointer's test an instruction.
#pragma once
#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/unit.h"
#include "engine/schedule/compile.h"
#include "engine/zero/rank_state.h"

namespace trireme {

// When a tensor was made, in the order in which its values depend on each other: micro-batches one after the other,
// each forward, then backward, then reduced. The same on every rank, so that the least of all ranks' is where it began.
struct ProbeMoment {
  int64_t micro_batch = 0;  // num_micro_batches: of all of them together
  int64_t phase = 0;        // 0: forward passes, 1: backward, 2: reductions
  int64_t place = 0;        // units in the phase's order
  int64_t look = 0;
  auto operator<=>(const ProbeMoment&) const = default;
};

struct BadValue {
  ProbeMoment moment;
  std::string tensor;     // "the output of transformer.h.1", "the gradient of lm_head.weight"
  std::string direction;  // "forward", "backward", "reduction"
  bool nan = false;       // else infinite
  int64_t element = 0;    // of the tensor as this rank holds it
};

class Probe {
 public:
  Probe(const Plan& plan, const RankState& state, const CompiledProgram& program);

  // Around one of a unit's instructions, on its lane. AfterUnit comes before LibTorch's saved tensors are dropped.
  void BeforeUnit(const Instruction& instruction, const UnitArgs& args);
  void AfterUnit(const Instruction& instruction, const UnitArgs& args);
  // After Reduce, TpReduce or TieReduce of `unit`: `sum` holds elements of the unit's flat buffer from `begin` on.
  void AfterReduce(const Instruction& instruction, int unit, const at::Tensor& sum, int64_t begin);

  std::optional<BadValue> First() const;  // after all lanes have drained

 private:
  struct Look {
    ProbeMoment moment;
    std::string tensor;
    std::string_view direction;
  };

  ProbeMoment MomentOf(const Instruction& instruction, int unit, int64_t first_look) const;
  void LookAt(ProbeMoment& moment, const at::Tensor& values, std::string tensor, std::string_view direction);
  // Each logical tensor of a unit's flat elements from `begin` on; backward makes the last one first.
  void LookAtFlat(ProbeMoment& moment, int unit, const at::Tensor& flat, int64_t begin, const char* what,
                  std::string_view direction);
  void LookAtSaved(ProbeMoment& moment, const Instruction& instruction, const UnitArgs& args,
                   std::string_view direction);
  void LookAtGradients(ProbeMoment& moment, const Instruction& instruction, const UnitArgs& args);

  const Plan& plan_;
  const RankState& state_;
  at::Tensor results_;  // int64 [most looks], of kernels::FindNonFinite
  std::mutex mutex_;
  std::vector<Look> looks_;
};

}  // namespace trireme
