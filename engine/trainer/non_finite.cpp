#include "engine/trainer/non_finite.h"

#include <ATen/ops/isfinite.h>
#include <fmt/core.h>

#include <ranges>
#include <vector>

namespace trireme {
namespace {

bool Finite(const at::Tensor& flat, const OwnedSlice& slice) {
  return at::isfinite(flat.narrow(0, slice.own_begin, slice.count)).all().item<bool>();
}

}  // namespace

std::string DescribeNonFinite(const RankState& state) {
  const std::vector<OwnedSlice> slices = state.OwnedSlices();
  for (const OwnedSlice& slice : slices) {
    if (!Finite(state.own_weights(slice.unit), slice))
      return fmt::format("the weight {} itself is not finite", slice.segment->parameter.name);
  }
  int64_t count = 0;
  std::string first;
  for (const OwnedSlice& slice : slices | std::views::reverse) {
    if (Finite(state.own_gradient(slice.unit), slice)) continue;
    if (count++ == 0) first = slice.segment->parameter.name;
  }
  if (count == 0) return "";
  return fmt::format("{} of the {} gradients of this rank are not finite, in backward's order first that of {}", count,
                     slices.size(), first);
}

}  // namespace trireme
