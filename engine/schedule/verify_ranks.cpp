#include "engine/schedule/verify_ranks.h"

#include <fmt/core.h>

#include <array>
#include <map>
#include <utility>

namespace trireme {
namespace {

// A group of ranks: all of the world, or the data-parallel group of one (pp, tp).
struct GroupId {
  Group group = Group::kNone;
  int number = 0;
  auto operator<=>(const GroupId&) const = default;
};

int DpGroupOf(const Plan& plan, int rank) {
  const Topology::Coordinate at = plan.topology.CoordinateOf(rank);
  return at.pp_rank * plan.topology.tp_size + at.tp_rank;
}

GroupId GroupOf(const Plan& plan, int rank, Group group) {
  return {group, group == Group::kDp ? DpGroupOf(plan, rank) : 0};
}

int64_t Bytes(const std::vector<BufferUse>& uses) {
  int64_t bytes = 0;
  for (const BufferUse& use : uses) bytes += use.bytes;
  return bytes;
}

// What all ranks of a group must agree on.
std::string Signature(const Plan& plan, const CompiledInstruction& compiled) {
  return fmt::format("{} over {}, {} bytes read, {} written, {} added", Describe(compiled.instruction, plan),
                     Name(compiled.instruction.group), Bytes(compiled.reads), Bytes(compiled.writes),
                     Bytes(compiled.adds));
}

using Sequence = std::vector<std::string>;

Sequence Collectives(const Plan& plan, const CompiledProgram& program, bool world_only) {
  Sequence sequence;
  for (const CompiledInstruction& compiled : program.instructions) {
    const Group group = compiled.instruction.group;
    if (group == Group::kNone || (world_only && group != Group::kWorld)) continue;
    sequence.push_back(Signature(plan, compiled));
  }
  return sequence;
}

void Compare(const Sequence& want, int want_rank, const Sequence& got, int got_rank,
             std::vector<std::string>& problems) {
  for (size_t i = 0; i < std::max(want.size(), got.size()); ++i) {
    const std::string a = i < want.size() ? want[i] : "nothing", b = i < got.size() ? got[i] : "nothing";
    if (a == b) continue;
    problems.push_back(fmt::format("collective {}: rank {} has {}; rank {} has {}", i, want_rank, a, got_rank, b));
    return;
  }
}

// One rank's lanes in the simulation.
struct RankState {
  const CompiledProgram* program = nullptr;
  std::array<std::vector<const CompiledInstruction*>, kNumLanes> lanes;
  std::array<size_t, kNumLanes> next{};
  std::vector<bool> done;
  const CompiledInstruction* Front(size_t lane) const {
    return next[lane] < lanes[lane].size() ? lanes[lane][next[lane]] : nullptr;
  }
  bool Ready(const CompiledInstruction& compiled) const {
    for (const int32_t wait : compiled.waits) {
      if (wait < 0 || static_cast<size_t>(wait) >= done.size() || !done[static_cast<size_t>(wait)]) return false;
    }
    return true;
  }
  void Finish(size_t lane) {
    done[static_cast<size_t>(lanes[lane][next[lane]]->instruction.id)] = true;
    ++next[lane];
  }
};

class Simulation {
 public:
  Simulation(const Plan& plan, const std::vector<CompiledProgram>& ranks) : plan_(plan) {
    for (const CompiledProgram& program : ranks) {
      RankState& state = states_.emplace_back();
      state.program = &program;
      state.done.resize(program.instructions.size());
      for (const CompiledInstruction& compiled : program.instructions) {
        state.lanes[static_cast<size_t>(compiled.instruction.lane)].push_back(&compiled);
      }
      ++members_[GroupOf(plan, program.rank, Group::kDp)];
      ++members_[GroupOf(plan, program.rank, Group::kWorld)];
    }
  }

  void Run(std::vector<std::string>& problems) {
    while (Local() || Rendezvous()) {
    }
    for (const RankState& state : states_) {
      for (size_t lane = 0; lane < kNumLanes; ++lane) {
        const CompiledInstruction* front = state.Front(lane);
        if (front == nullptr) continue;
        problems.push_back(fmt::format("deadlock: rank {} never gets past {} (#{}) on lane {}", state.program->rank,
                                       Describe(front->instruction, plan_), front->instruction.id,
                                       Name(static_cast<Lane>(lane))));
      }
    }
  }

 private:
  bool Local() {
    bool progress = false;
    for (RankState& state : states_) {
      for (size_t lane = 0; lane < kNumLanes; ++lane) {
        for (const CompiledInstruction* front = state.Front(lane);
             front != nullptr && front->instruction.group == Group::kNone && state.Ready(*front);
             front = state.Front(lane)) {
          state.Finish(lane);
          progress = true;
        }
      }
    }
    return progress;
  }

  // Ends the collectives at which every member of the group stands.
  bool Rendezvous() {
    std::map<GroupId, std::vector<std::pair<RankState*, size_t>>> arrived;
    for (RankState& state : states_) {
      for (size_t lane = 0; lane < kNumLanes; ++lane) {
        const CompiledInstruction* front = state.Front(lane);
        if (front == nullptr || front->instruction.group == Group::kNone || !state.Ready(*front)) continue;
        arrived[GroupOf(plan_, state.program->rank, front->instruction.group)].push_back({&state, lane});
      }
    }
    bool progress = false;
    for (const auto& [group, ranks] : arrived) {
      if (static_cast<int>(ranks.size()) != members_.at(group)) continue;
      for (const auto& [state, lane] : ranks) state->Finish(lane);
      progress = true;
    }
    return progress;
  }

  const Plan& plan_;
  std::vector<RankState> states_;
  std::map<GroupId, int> members_;
};

}  // namespace

void CheckCollectives(const Plan& plan, const std::vector<CompiledProgram>& ranks, std::vector<std::string>& problems) {
  std::map<int, std::pair<Sequence, int>> of_dp_group;
  Sequence of_world;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int rank = ranks[i].rank;
    Sequence all = Collectives(plan, ranks[i], /*world_only=*/false),
             world = Collectives(plan, ranks[i], /*world_only=*/true);
    const auto [place, first] = of_dp_group.try_emplace(DpGroupOf(plan, rank), all, rank);
    if (!first) Compare(place->second.first, place->second.second, all, rank, problems);
    if (i == 0) {
      of_world = std::move(world);
    } else if (first) {
      Compare(of_world, ranks[0].rank, world, rank, problems);
    }
  }
}

void CheckDeadlock(const Plan& plan, const std::vector<CompiledProgram>& ranks, std::vector<std::string>& problems) {
  Simulation(plan, ranks).Run(problems);
}

}  // namespace trireme
