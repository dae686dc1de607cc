// What each instruction of a plan's Programs takes on a cluster: products and attention at the rates of the device,
// element-wise kernels at that of its memory, collectives and copies at those of the links that they use.
//   const CostModel model(plan, cluster);  Simulate(plan, programs, model.Costs(), 2);
// Pure. docs/plan.md has the formulas and where they come from.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/schedule/placement.h"
#include "engine/schedule/simulate.h"
#include "parsers/cluster.h"

namespace trireme {

// Seconds of one unit on one micro-batch, alone on its device. `communication` of each is what tensor parallelism adds
// and nothing hides.
struct UnitSeconds {
  InstructionCost forward, recompute, backward, backward_input, backward_weight;
};

class CostModel {
 public:
  // Both must outlive it. Throws as Predict does.
  CostModel(const Plan& plan, const Cluster& cluster);

  InstructionCost Of(int pp_rank, const CompiledInstruction& compiled) const;
  SimulationCosts Costs() const;  // refers to this model
  const UnitSeconds& OfUnit(int unit) const { return units_[static_cast<size_t>(unit)]; }

  // C[m, n] = A[m, k] B[k, n] in the compute type, without the engine's factor.
  double ProductSeconds(int64_t m, int64_t n, int64_t k) const;

 private:
  enum class Role : uint8_t { kForward, kInput, kWeight };  // of a product

  UnitSeconds SecondsOf(const UnitLayout& unit) const;
  InstructionCost Total(double compute, double hiding, const std::vector<CollectiveSpec>& collectives) const;
  double ProductsSeconds(const UnitSpec& spec, Role role) const;
  double OutputSeconds(const UnitSpec& spec) const;
  double AttentionSeconds(const UnitSpec& spec, bool backward) const;
  double ElementwiseSeconds(double bytes) const;
  double ElementsOf(const UnitRange& units, bool own) const;
  double UpdateSeconds(const Instruction& instruction) const;
  double CollectiveSeconds(const CompiledInstruction& compiled) const;
  double CopySeconds(const CompiledInstruction& compiled) const;

  const Plan& plan_;
  const Cluster& cluster_;
  Placement placement_;
  double tokens_ = 0;
  double share_ = 1;         // of its device that a rank has beside others of its pipeline rank
  double device_width_ = 1;  // of its device that a pipeline rank's ranks there take together
  std::vector<UnitSeconds> units_;
};

}  // namespace trireme
