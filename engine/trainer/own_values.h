// Values of users' modules from rank 0 to all ranks. Private to this room.
#pragma once
#include "engine/model/own_modules.h"
#include "engine/trainer/rank_world.h"
#include "engine/zero/rank_state.h"

namespace trireme {

// Both: all ranks together, at start. The first fills the weights of the modules' units with what rank 0's modules
// hold, a unit at a time, and then all master weights.
void TakeInitialValues(const OwnModules& modules, RankState& state, RankWorld& world);
void BroadcastBuffers(const OwnModules& modules, RankWorld& world);

}  // namespace trireme
