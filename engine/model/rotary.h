// Cosines and sines of rotary positions, made once and shared by the blocks of one rank.
//   const RotaryTable::Values& table = rotary->For(past + sequence_length, device);
#pragma once
#include <ATen/core/Tensor.h>

#include "engine/plan/families/rope.h"
#include "engine/plan/plan.h"

namespace trireme {

class RotaryTable {
 public:
  struct Values {
    at::Tensor cosines, sines;  // [positions, rotated pairs], fp32 (fp64 in fp64 runs)
  };

  explicit RotaryTable(const Plan& plan);

  // Of `positions` positions looked at together, or more. The first call makes the plan's sequence length of them on
  // the device (the one time that it waits for the host); later calls return these, unless the scaling depends on how
  // many are looked at, or generation goes further. For the thread that computes.
  const Values& For(int64_t positions, at::Device device);

 private:
  void Fill(int64_t rows, at::Device device);

  const ModelSpec model_;
  const int64_t planned_positions_;
  const at::ScalarType type_;
  RopeFrequencies frequencies_;
  int64_t last_positions_ = -1;
  Values values_;
};

}  // namespace trireme
