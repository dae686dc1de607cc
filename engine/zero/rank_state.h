// Everything that one rank keeps between steps: weights, master weights, moments, gradient sums and StepState, one flat
// buffer a unit each, on the device or, where the plan offloads them, on the host. The ZeRO stage decides only how much
// of each is here; what happens when is the Program's business (engine/schedule).
//   RankState state(plan, rank, device);  state.InitialiseWeights(seed);
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/kernels/scalar_type.h"
#include "engine/plan/plan.h"
#include "engine/zero/optimizer_file.h"
#include "engine/zero/rank_memory.h"

namespace trireme {

// A run of a rank's own elements with one weight decay: what one call of an update works on.
struct DecayRun {
  int64_t begin = 0, count = 0;  // elements from the start of the own part
  bool decay = true;
};

// The part of one tensor of a unit that is own: what an update that goes by tensors (Lamb) works on.
struct TensorRun {
  int64_t begin = 0, count = 0;  // elements from the start of the own part
  bool decay = true;
  int64_t tensor = 0;   // of the unit, in the order of its segments
  bool counted = true;  // whether this rank counts it in the tensor's norms: what is whole on every tp rank counts once
};

// A part of a logical tensor that lies in this rank's own part of a unit. Vocabulary padding is not part of any: it is
// neither saved nor loaded.
struct OwnedSlice {
  int unit = 0;
  const Segment* segment = nullptr;
  int64_t held_begin = 0;  // element of this rank's held (transposed, split) tensor, row-major
  int64_t count = 0;       // elements
  int64_t own_begin = 0;   // element of the own part
};

// Where states lie that are offloaded to NVMe (offload_optimizer, offload_param, aio).
struct StateFiles {
  OptimizerFileOptions optimizer = {};
  std::string weights = {};  // folder
};

class RankState {
 public:
  enum class Use { kTraining, kWeightsOnly };  // kWeightsOnly: no gradients, no moments
  // Allocates everything that the plan calls persistent on world rank `rank`, zero-filled. `files`: where the plan has
  // states on a disk. `memory`: out of which it is made; null: its own.
  RankState(const Plan& plan, int rank, at::Device device, Use use = Use::kTraining, const StateFiles& files = {},
            std::shared_ptr<RankMemory> memory = nullptr);

  // Initial values by logical name, equal in every layout (none for Init::kGiven); master weights are the rounded
  // weights, as DeepSpeed has them. A test or --init-from overwrites them through OwnWeights / SyncMasters.
  void InitialiseWeights(uint64_t seed);
  // After weights were set: master weights become their image.
  void SetMastersFromWeights();
  // After master weights were set (a checkpoint was loaded): own weights become the rounded masters.
  void SetWeightsFromMasters();

  const Plan& plan() const { return plan_; }
  at::Device device() const { return device_; }
  RankMemory& memory() const { return *memory_; }
  int num_units() const { return plan_.num_units(); }
  int dp_rank() const { return place_.dp_rank; }
  int pp_rank() const { return place_.pp_rank; }
  int tp_rank() const { return place_.tp_rank; }
  // What lies here (Plan::UnitsOf): the tensors of all other units are undefined.
  const std::vector<int>& held_units() const { return held_units_; }
  // A copy of unit 0 beside the head. Another rank counts it in the norm and saves it.
  bool IsTiedCopy(int u) const { return u == 0 && plan_.PpRankOf(0) != place_.pp_rank; }

  // Flat tensors of unit u. `own`: the elements that this rank updates.
  const at::Tensor& weights(int u) const {
    return weights_[static_cast<size_t>(u)];
  }  // compute type, whole or own (ZeRO 3)
  const at::Tensor& own_weights(int u) const { return own_weights_[static_cast<size_t>(u)]; }  // view of weights
  // Masters and moments are undefined where the unit's optimizer is on a disk: file() holds them there, and
  // OptimizerState reads them.
  const at::Tensor& masters(int u) const {
    return masters_[static_cast<size_t>(u)];
  }  // own; own_weights where the plan has no master (Plan::HasMaster)
  const at::Tensor& moment(int u, int k) const {
    return moments_[static_cast<size_t>(u)][static_cast<size_t>(k)];
  }  // own
  const at::Tensor& gradient_sum(int u) const {
    return gradients_[static_cast<size_t>(u)];
  }  // accumulation type, whole or own
  const at::Tensor& own_gradient(int u) const {
    return own_gradients_[static_cast<size_t>(u)];
  }  // view of gradient_sum
  OptimizerFile* file(int u) const { return file_ != nullptr && file_->Holds(u) ? file_.get() : nullptr; }
  // State 0: masters (the own weights where the plan has none), 1, ..: moments. The tensor itself, or a copy of what is
  // on a disk, which SetOptimizerState writes back; for others that does nothing.
  at::Tensor OptimizerState(int u, int state) const;
  void SetOptimizerState(int u, int state, const at::Tensor& values) const;
  bool OnDisk(int u, int state) const { return file(u) != nullptr && (state > 0 || plan_.HasMaster(u)); }
  // Of units whose optimizer is offloaded: the own gradient on the host, accumulation type.
  const at::Tensor& host_gradient(int u) const { return host_gradients_[static_cast<size_t>(u)]; }
  const at::Tensor& step_state() const { return step_state_; }

  int64_t own_begin(int u) const;  // first element of the unit's flat buffer that is own
  int64_t own_elements(int u) const;
  std::span<const DecayRun> decay_runs(int u) const { return decay_runs_[static_cast<size_t>(u)]; }
  std::span<const TensorRun> tensor_runs(int u) const { return tensor_runs_[static_cast<size_t>(u)]; }
  // double [tensors of the unit, 2]: sums of squares of weights and steps; only where Plan::trust_ratios.
  const at::Tensor& update_norms(int u) const { return update_norms_[static_cast<size_t>(u)]; }
  // Ranges of the own part that this rank counts in the gradient's norm, so that each parameter counts once: no copy of
  // a tied weight, what is whole on every tp rank at the first one, and at ZeRO 0 each dp rank's share of the whole.
  std::span<const ElementRange> norm_ranges(int u) const { return norm_ranges_[static_cast<size_t>(u)]; }
  // Ranges of the own part that the first tp rank counts for all, each with a copy of its own: only looked at for
  // values that are not finite, which would be in this copy alone.
  std::span<const ElementRange> copied_ranges(int u) const { return copied_ranges_[static_cast<size_t>(u)]; }
  // What of each logical tensor is own, over all units that are here, copies too: checkpoints and comparisons.
  std::vector<OwnedSlice> OwnedSlices() const;
  int64_t allocated_bytes() const;  // on the device
  int64_t host_bytes() const;       // of what is offloaded

 private:
  at::Tensor Flat(MemoryClass memory_class, int64_t elements, DType dtype, bool on_host) const;
  int64_t Bytes(bool on_host) const;

  const Plan& plan_;
  Topology::Coordinate place_;
  std::vector<int> held_units_;
  at::Device device_;
  std::shared_ptr<RankMemory> memory_;
  std::vector<at::Tensor> weights_, own_weights_, masters_, gradients_, own_gradients_, host_gradients_;
  std::vector<std::vector<at::Tensor>> moments_;
  std::vector<std::vector<DecayRun>> decay_runs_;
  std::vector<std::vector<TensorRun>> tensor_runs_;
  std::vector<at::Tensor> update_norms_;
  std::vector<std::vector<ElementRange>> norm_ranges_, copied_ranges_;
  at::Tensor step_state_;
  std::unique_ptr<OptimizerFile> file_;
};

}  // namespace trireme
