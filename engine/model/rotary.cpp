#include "engine/model/rotary.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "engine/base/bytes.h"
#include "engine/kernels/scalar_type.h"
#include "engine/model/units.h"

namespace trireme {
namespace {

constexpr int64_t kGrowth = 1024;  // positions by which generation past the plan's length grows the table

}  // namespace

RotaryTable::RotaryTable(const Plan& plan)
    : model_(plan.model),
      planned_positions_(plan.batch.sequence_length),
      type_(StatisticsType(ScalarTypeOf(plan.dtypes.compute))) {}

const RotaryTable::Values& RotaryTable::For(int64_t positions, at::Device device) {
  const bool made = values_.cosines.defined() && values_.cosines.device() == device;
  if (made && positions == last_positions_) return values_;
  RopeFrequencies frequencies = MakeRopeFrequencies(model_, positions);
  const bool enough = made && values_.cosines.size(0) >= positions;
  if (!enough || frequencies != frequencies_) {
    frequencies_ = std::move(frequencies);
    Fill(positions <= planned_positions_ ? planned_positions_ : AlignUp(positions, kGrowth), device);
  }
  last_positions_ = positions;
  return values_;
}

// Angles in double, rounded once.
void RotaryTable::Fill(int64_t rows, at::Device device) {
  const auto pairs = static_cast<int64_t>(frequencies_.inverse.size());
  at::Tensor cosines = at::empty({rows, pairs}, at::kDouble), sines = at::empty({rows, pairs}, at::kDouble);
  double* c = cosines.mutable_data_ptr<double>();
  double* s = sines.mutable_data_ptr<double>();
  for (int64_t row = 0; row < rows; ++row) {
    for (const double inverse : frequencies_.inverse) {
      const double angle = static_cast<double>(row) * inverse;
      *c++ = std::cos(angle) * frequencies_.factor;
      *s++ = std::sin(angle) * frequencies_.factor;
    }
  }
  values_ = {cosines.to(type_).to(device), sines.to(type_).to(device)};
}

}  // namespace trireme
