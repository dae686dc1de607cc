// Which tensors of this rank hold an infinity or a NaN: part of the last words of a run that overflows.
#pragma once
#include <string>

#include "engine/zero/rank_state.h"

namespace trireme {

// Weights in the compute type first: one value past fp16's range is enough. Else the gradients, in the order in which
// backward makes them, so that the first one named is where it began. "" if all that this rank owns is finite. Waits
// for the device; no lane may be working on the state.
std::string DescribeNonFinite(const RankState& state);

}  // namespace trireme
