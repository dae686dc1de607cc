#include "engine/trainer/first_bad_value.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

namespace trireme {
namespace {

constexpr char kSeparator = '\n';

// Sorts as the moments do.
std::string SortableText(const BadValue& bad, const std::string& text) {
  const ProbeMoment& at = bad.moment;
  return fmt::format("{:019}.{}.{:019}.{:019}{}{}", at.micro_batch, at.phase, at.place, at.look, kSeparator, text);
}

std::string Place(const Plan& plan, int rank) {
  if (plan.topology.world_size() == 1) return "rank 0";
  const Topology::Coordinate at = plan.topology.CoordinateOf(rank);
  return fmt::format("rank {} (pp {}, dp {}, tp {})", rank, at.pp_rank, at.dp_rank, at.tp_rank);
}

std::string Describe(const BadValue& bad, const Plan& plan, int rank) {
  const bool of_one = bad.moment.micro_batch < plan.batch.num_micro_batches;
  return fmt::format("first bad value: {} in {} (element {}), {} of {} on {}", bad.nan ? "NaN" : "infinity", bad.tensor,
                     bad.element, bad.direction,
                     of_one ? fmt::format("micro-batch {}", bad.moment.micro_batch) : "all micro-batches",
                     Place(plan, rank));
}

// Modules of the user's may keep what a pass changes.
std::vector<std::pair<at::Tensor, at::Tensor>> BuffersNow(const OwnModules& modules) {
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers;
  const auto add = [&](const OwnModule& own) {
    for (const at::Tensor& buffer : BuffersOf(own)) buffers.emplace_back(buffer, buffer.detach().clone());
  };
  add(modules.embedding);
  for (const OwnModule& own : modules.blocks) add(own);
  add(modules.head);
  return buffers;
}

}  // namespace

std::string FirstBadValue(Executor& executor, const Plan& plan, RankWorld& world, const OwnModules& modules,
                          const StepInputs& inputs, double loss_scale) {
  executor.Drain();
  const auto buffers = BuffersNow(modules);
  Synchronise(world.device);
  const std::optional<BadValue> mine = executor.Repeat(inputs, loss_scale);
  for (const auto& [buffer, before] : buffers) buffer.variable_data().copy_(before);
  Synchronise(world.device);
  std::vector<std::string> found =
      GatherTexts(*world.world, world.device, mine ? SortableText(*mine, Describe(*mine, plan, world.rank)) : "");
  std::erase(found, "");
  if (found.empty()) {
    return "the same step made once more is finite in every tensor of every rank: it is not repeatable, and memory or "
           "links may be at fault";
  }
  const std::string& first = *std::ranges::min_element(
      found, {}, [](const std::string& text) { return std::string_view(text).substr(0, text.find(kSeparator)); });
  return first.substr(first.find(kSeparator) + 1);
}

}  // namespace trireme
