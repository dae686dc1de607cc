#include "engine/trainer/own_values.h"

#include "engine/kernels/scalar_type.h"

namespace trireme {

void TakeInitialValues(const OwnModules& modules, RankState& state, RankWorld& world) {
  if (modules.empty()) return;
  for (int u = 0; u < state.num_units(); ++u) {
    const UnitLayout& layout = state.plan().units[static_cast<size_t>(u)];
    const OwnModule* own = FindOwnModule(modules, layout.spec);
    if (own == nullptr || layout.segments.empty()) continue;
    const at::Tensor whole = InitialValues(*own, layout, ScalarTypeOf(state.plan().dtypes.compute)).to(world.device);
    world.world->Broadcast(whole, 0);
    const at::Tensor& weights = state.weights(u);
    if (!weights.defined()) continue;  // another pipeline rank's
    weights.copy_(weights.numel() == whole.numel() ? whole : whole.narrow(0, state.own_begin(u), weights.numel()));
    Synchronise(world.device);
  }
  state.SetMastersFromWeights();
}

void BroadcastBuffers(const OwnModules& modules, RankWorld& world) {
  if (world.world_size == 1) return;
  const auto broadcast = [&](const OwnModule& own) {
    for (const at::Tensor& buffer : BuffersOf(own)) {
      if (buffer.numel() == 0) continue;
      // As bytes: a buffer may be of any type. `data` shares no version, so the module has not "changed" it.
      const at::Tensor flat = buffer.detach().contiguous().view({-1});
      const at::Tensor bytes = flat.view(at::kByte).clone();
      world.world->Broadcast(bytes, 0);
      buffer.variable_data().copy_(bytes.view(buffer.scalar_type()).view(buffer.sizes()));
    }
  };
  broadcast(modules.embedding);
  for (const OwnModule& own : modules.blocks) broadcast(own);
  broadcast(modules.head);
  Synchronise(world.device);
}

}  // namespace trireme
