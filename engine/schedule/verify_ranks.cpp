#include "engine/schedule/verify_ranks.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace trireme {
namespace {

// A group of ranks that issue collectives together.
struct GroupId {
  Group group = Group::kNone;
  int number = 0;
  auto operator<=>(const GroupId&) const = default;
};

int DpGroupOf(const Plan& plan, int rank) {
  const Topology::Coordinate at = plan.topology.CoordinateOf(rank);
  return at.pp_rank * plan.topology.tp_size + at.tp_rank;
}

// Ranks of equal dp and tp rank: a pipeline.
int PipelineOf(const Plan& plan, int rank) {
  const Topology::Coordinate at = plan.topology.CoordinateOf(rank);
  return at.dp_rank * plan.topology.tp_size + at.tp_rank;
}

GroupId GroupOf(const Plan& plan, int rank, Group group) {
  const Topology::Coordinate at = plan.topology.CoordinateOf(rank);
  const int number = group == Group::kDp    ? DpGroupOf(plan, rank)
                     : group == Group::kTie ? PipelineOf(plan, rank)
                     : group == Group::kTp  ? at.pp_rank * plan.topology.dp_size + at.dp_rank
                                            : 0;
  return {group, number};
}

bool IsMember(const Plan& plan, int rank, Group group) {
  if (group != Group::kTie) return true;
  const int pp_rank = plan.topology.CoordinateOf(rank).pp_rank;
  return plan.tied_across_stages() && (pp_rank == plan.PpRankOf(0) || pp_rank == plan.PpRankOf(plan.head()));
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

// Of one group, or of all where none is named.
Sequence Collectives(const Plan& plan, const CompiledProgram& program, std::optional<Group> only) {
  Sequence sequence;
  for (const CompiledInstruction& compiled : program.instructions) {
    const Group group = compiled.instruction.group;
    if (group != Group::kNone && group == only.value_or(group)) sequence.push_back(Signature(plan, compiled));
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
  bool posted = false;  // the transfers at the front of lane pp
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
  // The transfers of one post: they begin together and end together.
  std::vector<const CompiledInstruction*> FrontPost() const {
    constexpr size_t kLane = static_cast<size_t>(Lane::kPp);
    std::vector<const CompiledInstruction*> post;
    for (size_t i = next[kLane]; i < lanes[kLane].size(); ++i) {
      const CompiledInstruction* transfer = lanes[kLane][i];
      if (!post.empty() && transfer->instruction.post != post.front()->instruction.post) break;
      post.push_back(transfer);
    }
    return post;
  }
};

// A transfer, the same for the rank that sends and the one that receives.
using TransferId = std::tuple<int, int, int, int, int64_t>;  // pipeline, from, to, unit, 2 * micro-batch + gradient

TransferId IdOf(const Plan& plan, int rank, const CompiledInstruction& transfer) {
  const Instruction& i = transfer.instruction;
  const bool sends = i.op == Op::kSend;
  const int own = plan.topology.CoordinateOf(rank).pp_rank;
  const std::vector<BufferKey>& keys = sends ? i.reads : i.writes;
  const bool gradient =
      std::ranges::any_of(keys, [](const BufferKey& key) { return key.kind == BufferKind::kBoundaryGradient; });
  return {PipelineOf(plan, rank), sends ? own : i.peer, sends ? i.peer : own, i.units.first,
          2 * static_cast<int64_t>(i.micro_batch) + (gradient ? 1 : 0)};
}

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
      for (const Group group : {Group::kDp, Group::kWorld, Group::kTie, Group::kTp}) {
        if (IsMember(plan, program.rank, group)) ++members_[GroupOf(plan, program.rank, group)];
      }
    }
  }

  void Run(std::vector<std::string>& problems) {
    while (Local() || Transfers() || Rendezvous()) {
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

  // Posts the transfers at which a rank stands, and ends posts whose every transfer is posted on both sides.
  bool Transfers() {
    bool progress = false;
    for (RankState& state : states_) {
      const std::vector<const CompiledInstruction*> post = state.FrontPost();
      const bool ready = std::ranges::all_of(post, [&](const auto* transfer) { return state.Ready(*transfer); });
      if (post.empty() || state.posted || !ready) continue;
      for (const CompiledInstruction* transfer : post) ++sides_[IdOf(plan_, state.program->rank, *transfer)];
      state.posted = progress = true;
    }
    for (RankState& state : states_) {
      if (!state.posted) continue;
      const std::vector<const CompiledInstruction*> post = state.FrontPost();
      const bool met = std::ranges::all_of(
          post, [&](const auto* transfer) { return sides_[IdOf(plan_, state.program->rank, *transfer)] == 2; });
      if (!met) continue;
      for (size_t i = 0; i < post.size(); ++i) state.Finish(static_cast<size_t>(Lane::kPp));
      state.posted = false;
      progress = true;
    }
    return progress;
  }

  // Ends the collectives at which every member of the group stands.
  bool Rendezvous() {
    std::map<GroupId, std::vector<std::pair<RankState*, size_t>>> arrived;
    for (RankState& state : states_) {
      for (size_t lane = 0; lane < kNumLanes; ++lane) {
        const CompiledInstruction* front = state.Front(lane);
        if (front == nullptr || front->instruction.group == Group::kNone || front->instruction.group == Group::kPp ||
            !state.Ready(*front)) {
          continue;
        }
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
  std::map<TransferId, int> sides_;  // how many of its two ranks posted a transfer
};

}  // namespace

void CheckCollectives(const Plan& plan, const std::vector<CompiledProgram>& ranks, std::vector<std::string>& problems) {
  std::map<int, std::pair<Sequence, int>> of_dp_group;
  std::map<GroupId, std::pair<Sequence, int>> of_group;
  const auto compare = [&](auto& first_of, const auto& id, Sequence sequence, int rank) {
    const auto [place, first] = first_of.try_emplace(id, std::move(sequence), rank);
    if (!first) Compare(place->second.first, place->second.second, sequence, rank, problems);
    return first;
  };
  for (const CompiledProgram& program : ranks) {
    const int rank = program.rank;
    const bool first = compare(of_dp_group, DpGroupOf(plan, rank), Collectives(plan, program, {}), rank);
    for (const Group group : {Group::kWorld, Group::kTie, Group::kTp}) {
      if (!IsMember(plan, rank, group) || (group == Group::kWorld && !first)) continue;
      compare(of_group, GroupOf(plan, rank, group), Collectives(plan, program, group), rank);
    }
  }
}

void CheckDeadlock(const Plan& plan, const std::vector<CompiledProgram>& ranks, std::vector<std::string>& problems) {
  Simulation(plan, ranks).Run(problems);
}

}  // namespace trireme
