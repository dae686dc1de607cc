// What must be equal on several ranks is compared while a run goes on, so that no run trains several models at once.
//   ReplicaCheck check(state, world);  check.Compare(step);
// Equal, bitwise, are: at ZeRO 0 to 2 the weights of all data-parallel ranks; of what tensor parallelism does not split
// those of all tensor-parallel ranks; and the two copies of a tied weight that lies on two stages.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/trainer/rank_world.h"
#include "engine/zero/rank_state.h"

namespace trireme {

class ReplicaCheck {
 public:
  ReplicaCheck(const RankState& state, RankWorld& world);

  // All ranks together, while no lane works. One checksum a tensor (kernels::Checksum) and one small all-reduce.
  // Throws Error{kCheckFailed, TRN050} on every rank, with tensor, unit and the ranks of each value. `step`: steps
  // done.
  void Compare(int64_t step);
  bool any() const { return num_classes_ > 0; }  // whether anything lies on more than one rank

 private:
  // A part of a logical tensor that lies here and on other ranks.
  struct Part {
    int unit = 0;
    const Segment* segment = nullptr;
    at::Tensor weights;
    int64_t index = 0;  // among the classes of equal parts, the same on every rank
  };

  std::vector<int64_t> Checksums() const;
  [[noreturn]] void Fail(int64_t step, int64_t index, int64_t different, const std::vector<int64_t>& mine) const;

  const RankState& state_;
  RankWorld& world_;
  std::vector<Part> parts_;
  int64_t num_classes_ = 0;
};

// Every parameter of the plan is owned by some rank, and by one only. Throws Error{kCheckFailed, TRN051}. All ranks.
void RequireAllParameters(const RankState& state, RankWorld& world);

}  // namespace trireme
