#include "engine/schedule/simulate.h"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <tuple>

#include "engine/base/error.h"
#include "engine/schedule/dependents.h"

namespace trireme {
namespace {

constexpr size_t kCompute = static_cast<size_t>(Lane::kCompute), kDp = static_cast<size_t>(Lane::kDp),
                 kPp = static_cast<size_t>(Lane::kPp), kUp = static_cast<size_t>(Lane::kUp),
                 kDown = static_cast<size_t>(Lane::kDown);

bool IsPass(Op op) {
  return op == Op::kForward || op == Op::kRecompute || op == Op::kBackward || op == Op::kBackwardInput ||
         op == Op::kBackwardWeight;
}

WaitKind KindOf(const Instruction& instruction) {
  switch (instruction.lane) {
    case Lane::kDp:
      return instruction.op == Op::kGather ? WaitKind::kGather : WaitKind::kReduce;
    case Lane::kPp:
      return WaitKind::kTransfer;
    case Lane::kUp:
    case Lane::kDown:
      return WaitKind::kCopies;
    case Lane::kCpu:
      return WaitKind::kHost;
    default:
      return WaitKind::kNone;
  }
}

constexpr int32_t kRemote = -1;  // what another rank did made something start

// What runs on a lane. Positions count instructions over all steps: step * instructions + id.
struct LaneState {
  std::vector<int32_t> queue;  // ids of one step
  int64_t next = 0;            // in queue, over all steps
  int64_t active = -1;         // position
  int32_t batch = 1;           // instructions that run at once: those of a post
  bool waits = false;          // has come to a rendezvous, others have not
  double remaining = 0, speed = 1, updated = 0, free = 0;
  uint32_t version = 0;  // of the event that ends it
};

struct RankState {
  const CompiledProgram* program = nullptr;
  Dependents dependents;
  std::array<LaneState, kNumLanes> lanes;
  std::vector<int32_t> pending;        // by position
  std::vector<InstructionTime> times;  // by position
  std::vector<int64_t> cause;          // by position: what ended when it started
  std::array<double, 2> slowed{};      // lane compute in the last step: beside Gather, beside what else dp does
  double slowed_by_transfers = 0;
  int64_t groups_met = 0;  // rendezvous over the world
  int64_t ties_met = 0;

  explicit RankState(const CompiledProgram& of, int steps) : program(&of), dependents(of) {
    const size_t n = of.instructions.size(), all = n * static_cast<size_t>(steps);
    for (const CompiledInstruction& compiled : of.instructions) {
      lanes[static_cast<size_t>(compiled.instruction.lane)].queue.push_back(compiled.instruction.id);
    }
    times.resize(all);
    cause.assign(all, kRemote);
    pending.resize(all);
    for (size_t i = 0; i < all; ++i) {
      pending[i] = dependents.waits[i % n] + (i >= n ? dependents.carried_waits[i % n] : 0);
    }
  }
  int64_t size() const { return static_cast<int64_t>(program->instructions.size()); }
  const CompiledInstruction& At(int64_t position) const {
    return program->instructions[static_cast<size_t>(position % size())];
  }
  // Of the lane's queue, the k-th to come; -1 after the last step.
  int64_t Upcoming(const LaneState& lane, int64_t k, int steps) const {
    const auto length = static_cast<int64_t>(lane.queue.size());
    const int64_t index = lane.next + k;
    if (length == 0 || index >= length * steps) return -1;
    return index / length * size() + lane.queue[static_cast<size_t>(index % length)];
  }
};

class Clock {
 public:
  Clock(const Plan& plan, const std::vector<CompiledProgram>& programs, const SimulationCosts& costs, int steps)
      : plan_(plan), costs_(costs), steps_(steps) {
    for (const CompiledProgram& program : programs) ranks_.emplace_back(program, steps);
    tie_members_ = plan.tied_across_stages() ? 2 : 1;
  }

  Simulated Run() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) StartWhatCan(rank, kRemote);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      LaneState& lane = ranks_[event.rank].lanes[event.lane];
      if (lane.version != event.version) continue;
      now_ = event.time;
      Finish(event.rank, event.lane);
    }
    return Collect();
  }

 private:
  struct Event {
    double time;
    int64_t order;  // of equal times, first come first served
    size_t rank, lane;
    uint32_t version;
    bool operator<(const Event& other) const {
      return std::tie(other.time, other.order) < std::tie(time, order);  // the earliest on top
    }
  };
  // From, to, unit, micro-batch and step, gradient.
  using TransferId = std::tuple<int, int, int, int64_t, bool>;

  // ---- Starting.

  void StartWhatCan(size_t rank, int64_t cause) {
    for (size_t lane = 0; lane < kNumLanes; ++lane) TryStart(rank, lane, cause);
  }

  void TryStart(size_t rank, size_t lane_index, int64_t cause) {
    RankState& state = ranks_[rank];
    LaneState& lane = state.lanes[lane_index];
    if (lane.active >= 0 || lane.waits) return;
    const int64_t position = state.Upcoming(lane, 0, steps_);
    if (position < 0 || state.pending[static_cast<size_t>(position)] > 0) return;
    const Group group = state.At(position).instruction.group;
    if (group == Group::kPp) return Post(rank, cause);
    if (group == Group::kWorld) return Meet(rank, lane_index, Group::kWorld, state.groups_met++, cause);
    if (group == Group::kTie) return Meet(rank, lane_index, Group::kTie, state.ties_met++, cause);
    Start(rank, lane_index, 1, cause);
  }

  // Begins `batch` instructions of the lane now.
  void Start(size_t rank, size_t lane_index, int32_t batch, int64_t cause) {
    RankState& state = ranks_[rank];
    LaneState& lane = state.lanes[lane_index];
    lane.waits = false;
    lane.batch = batch;
    lane.active = state.Upcoming(lane, 0, steps_);
    lane.remaining = 0;
    for (int32_t k = 0; k < batch; ++k) {
      const int64_t position = state.Upcoming(lane, k, steps_);
      InstructionTime& time = state.times[static_cast<size_t>(position)];
      time.start = now_;
      state.cause[static_cast<size_t>(position)] = cause;
      lane.remaining = std::max(lane.remaining, costs_.cost(static_cast<int>(rank), state.At(position)).seconds);
    }
    lane.updated = now_;
    lane.speed = SpeedOf(rank, lane_index);
    Schedule(rank, lane_index);
    Adjust(rank, lane_index);
  }

  void Schedule(size_t rank, size_t lane_index) {
    LaneState& lane = ranks_[rank].lanes[lane_index];
    ++lane.version;
    if (lane.speed <= 0 && lane.remaining > 0) return;
    const double time = lane.remaining > 0 ? now_ + lane.remaining / lane.speed : now_;
    events_.push({time, order_++, rank, lane_index, lane.version});
  }

  // ---- Meeting other ranks.

  void Meet(size_t rank, size_t lane_index, Group group, int64_t number, int64_t cause) {
    const size_t members = group == Group::kWorld ? ranks_.size() : static_cast<size_t>(tie_members_);
    auto& arrived = meetings_[{group, number}];
    arrived.push_back({rank, lane_index});
    ranks_[rank].lanes[lane_index].waits = true;
    if (arrived.size() < members) return;
    for (const auto& [other, lane] : arrived) Start(other, lane, 1, other == rank ? cause : kRemote);
    meetings_.erase({group, number});
  }

  TransferId IdOf(size_t rank, int64_t position) const {
    const Instruction& transfer = ranks_[rank].At(position).instruction;
    const bool sends = transfer.op == Op::kSend;
    const std::vector<BufferKey>& keys = sends ? transfer.reads : transfer.writes;
    const bool gradient =
        std::ranges::any_of(keys, [](const BufferKey& key) { return key.kind == BufferKind::kBoundaryGradient; });
    const int own = static_cast<int>(rank);
    const int64_t micro_batch = position / ranks_[rank].size() * plan_.batch.num_micro_batches + transfer.micro_batch;
    return {sends ? own : transfer.peer, sends ? transfer.peer : own, transfer.units.first, micro_batch, gradient};
  }

  // The transfers of the post at which the rank's lane pp stands; empty while one of them is not ready.
  std::vector<int64_t> FrontPost(size_t rank) const {
    const RankState& state = ranks_[rank];
    const LaneState& lane = state.lanes[kPp];
    std::vector<int64_t> post;
    for (int64_t k = 0;; ++k) {
      const int64_t position = state.Upcoming(lane, k, steps_);
      if (position < 0) break;
      const auto same = [&](int64_t other) {
        return other / state.size() == position / state.size() &&
               state.At(other).instruction.post == state.At(position).instruction.post;
      };
      if (!post.empty() && !same(post.front())) break;
      if (state.pending[static_cast<size_t>(position)] > 0) return {};
      post.push_back(position);
    }
    return post;
  }

  // A post begins when its transfers are posted on the other sides too.
  void Post(size_t rank, int64_t cause) {
    const std::vector<int64_t> post = FrontPost(rank);
    if (post.empty()) return;
    ranks_[rank].lanes[kPp].waits = true;
    for (const int64_t position : post) ++sides_[IdOf(rank, position)];
    StartIfMet(rank, cause);
    for (size_t other = 0; other < ranks_.size(); ++other) {
      if (other != rank && ranks_[other].lanes[kPp].waits) StartIfMet(other, kRemote);
    }
  }

  void StartIfMet(size_t rank, int64_t cause) {
    const std::vector<int64_t> post = FrontPost(rank);
    const bool met = std::ranges::all_of(post, [&](int64_t position) { return sides_[IdOf(rank, position)] == 2; });
    if (met) Start(rank, kPp, static_cast<int32_t>(post.size()), cause);
  }

  // ---- Running.

  static bool Works(const LaneState& lane) { return lane.active >= 0; }

  double SpeedOf(size_t rank, size_t lane_index) const {
    const std::array<LaneState, kNumLanes>& lanes = ranks_[rank].lanes;
    const LaneSpeeds& speeds = costs_.speeds;
    if (lane_index == kUp) return Works(lanes[kDown]) ? speeds.up_beside_down : 1;
    if (lane_index == kDown) return Works(lanes[kUp]) ? speeds.down_beside_up : 1;
    if (lane_index != kCompute) return 1;
    double speed = 1;
    if (Works(lanes[kDp])) speed *= speeds.compute_beside_collectives;
    if (Works(lanes[kPp])) speed *= speeds.compute_beside_transfers;
    if (speeds.devices.empty()) return speed;
    int sharing = 0;
    for (size_t other = 0; other < ranks_.size(); ++other) {
      sharing += speeds.devices[other] == speeds.devices[rank] && Works(ranks_[other].lanes[kCompute]);
    }
    return speed / std::max(sharing * speeds.device_width, 1.0);
  }

  // What a lane that started or ended changes for others.
  void Adjust(size_t rank, size_t changed) {
    if (changed == kDp || changed == kPp) Readjust(rank, kCompute);
    if (changed == kUp) Readjust(rank, kDown);
    if (changed == kDown) Readjust(rank, kUp);
    if (changed != kCompute || costs_.speeds.devices.empty()) return;
    for (size_t other = 0; other < ranks_.size(); ++other) {
      if (costs_.speeds.devices[other] == costs_.speeds.devices[rank]) Readjust(other, kCompute);
    }
  }

  void Readjust(size_t rank, size_t lane_index) {
    LaneState& lane = ranks_[rank].lanes[lane_index];
    const double speed = SpeedOf(rank, lane_index);
    if (!Works(lane) || speed == lane.speed) return;
    Advance(rank, lane_index);
    lane.speed = speed;
    Schedule(rank, lane_index);
  }

  // Brings the work of a lane up to now.
  void Advance(size_t rank, size_t lane_index) {
    RankState& state = ranks_[rank];
    LaneState& lane = state.lanes[lane_index];
    const double passed = now_ - lane.updated;
    lane.updated = now_;
    lane.remaining = std::max(0.0, lane.remaining - passed * lane.speed);
    if (lane_index != kCompute || lane.active < state.size() * (steps_ - 1)) return;
    const double lost = passed * (1 - lane.speed);
    const LaneState& dp = state.lanes[kDp];
    if (was_dp_ >= 0 || Works(dp)) {
      const int64_t beside = Works(dp) ? dp.active : was_dp_;
      state.slowed[state.At(beside).instruction.op == Op::kGather ? 0 : 1] += lost;
    } else if (Works(state.lanes[kPp]) || was_pp_) {
      state.slowed_by_transfers += lost;
    }
  }

  void Finish(size_t rank, size_t lane_index) {
    RankState& state = ranks_[rank];
    LaneState& lane = state.lanes[lane_index];
    Advance(rank, lane_index);
    const int64_t first = lane.active;
    std::vector<int64_t> ended;
    for (int32_t k = 0; k < lane.batch; ++k) ended.push_back(state.Upcoming(lane, k, steps_));
    lane.next += lane.batch;
    lane.active = -1;
    ++lane.version;
    lane.free = now_;
    was_dp_ = lane_index == kDp ? first : -1;
    was_pp_ = lane_index == kPp;
    Adjust(rank, lane_index);
    was_dp_ = -1;
    was_pp_ = false;
    for (const int64_t position : ended) Release(state, position);
    StartWhatCan(rank, first);
  }

  void Release(RankState& state, int64_t position) const {
    state.times[static_cast<size_t>(position)].end = now_;
    const int64_t n = state.size(), step = position / n;
    const auto id = static_cast<size_t>(position % n);
    for (const int32_t next : state.dependents.same_step[id]) --state.pending[static_cast<size_t>(step * n + next)];
    if (step + 1 >= steps_) return;
    for (const int32_t next : state.dependents.next_step[id]) {
      --state.pending[static_cast<size_t>((step + 1) * n + next)];
    }
  }

  // ---- Results.

  // Shares out what lane compute waited from `from` on, back along what each thing waited for.
  void ShareOut(const RankState& state, int64_t position, double from, RankTimes& result) const {
    double until = state.times[static_cast<size_t>(position)].start;
    InstructionTime& time = result.times[static_cast<size_t>(position % state.size())];
    time.waited = until - from;
    double most = 0;
    const auto give = [&](WaitKind kind, double seconds) {
      result.waits[static_cast<size_t>(kind)] += seconds;
      if (kind == WaitKind::kBubble) time.bubble += seconds;
      if (seconds > most) time.why = kind;
      most = std::max(most, seconds);
    };
    int64_t at = state.cause[static_cast<size_t>(position)];
    while (until > from) {
      const WaitKind kind = at < 0 ? WaitKind::kBubble : KindOf(state.At(at).instruction);
      if (at < 0 || kind == WaitKind::kNone) return give(WaitKind::kBubble, until - from);
      const double start = std::max(from, std::min(until, state.times[static_cast<size_t>(at)].start));
      give(kind, until - start);
      until = start;
      at = state.cause[static_cast<size_t>(at)];
    }
  }

  RankTimes Collect(size_t rank, double begin) const {
    const RankState& state = ranks_[rank];
    const int64_t n = state.size(), first = n * (steps_ - 1);
    RankTimes result;
    result.times.assign(state.times.begin() + first, state.times.end());
    double free = begin;
    for (const int32_t id : state.lanes[kCompute].queue) {
      const int64_t position = first + id;
      const InstructionTime& time = state.times[static_cast<size_t>(position)];
      if (time.start > free) ShareOut(state, position, free, result);
      const InstructionCost cost = costs_.cost(static_cast<int>(rank), state.At(position));
      result.busy += time.duration();
      result.communication += cost.communication;
      free = time.end;
      if (IsPass(state.At(position).instruction.op) && cost.seconds > 0) result.last_pass = time.end - begin;
    }
    const auto add = [&](WaitKind kind, double seconds) {
      result.waits[static_cast<size_t>(kind)] += seconds;
      result.busy -= seconds;
    };
    add(WaitKind::kGather, state.slowed[0]);
    add(WaitKind::kReduce, state.slowed[1]);
    add(WaitKind::kTransfer, state.slowed_by_transfers);
    for (InstructionTime& time : result.times) {
      time.start -= begin;
      time.end -= begin;
    }
    return result;
  }

  // When every rank's lane compute is through a step.
  double EndOfStep(int step) const {
    double end = 0;
    for (const RankState& state : ranks_) {
      for (const int32_t id : state.lanes[kCompute].queue) {
        end = std::max(end, state.times[static_cast<size_t>(state.size() * step + id)].end);
      }
    }
    return end;
  }

  Simulated Collect() const {
    Simulated all;
    const double begin = steps_ > 1 ? EndOfStep(steps_ - 2) : 0;
    double end = EndOfStep(steps_ - 1);
    for (const RankState& state : ranks_) {
      for (const LaneState& lane : state.lanes) {
        all.finished = all.finished && state.Upcoming(lane, 0, steps_) < 0;
        if (steps_ == 1) end = std::max(end, lane.free);
      }
    }
    all.step_seconds = end - begin;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) all.ranks.push_back(Collect(rank, begin));
    FindBubble(all);
    return all;
  }

  // Of the time from the first pass to the last: what no instruction, and no wait for anything but another rank, fills.
  void FindBubble(Simulated& all) const {
    all.passes_begin = std::numeric_limits<double>::max();
    for (const RankTimes& rank : all.ranks) all.passes_end = std::max(all.passes_end, rank.last_pass);
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (const int32_t id : ranks_[r].lanes[kCompute].queue) {
        if (!IsPass(ranks_[r].program->instructions[static_cast<size_t>(id)].instruction.op)) continue;
        all.passes_begin = std::min(all.passes_begin, all.ranks[r].times[static_cast<size_t>(id)].start);
        break;
      }
    }
    const double span = all.passes_end - all.passes_begin;
    if (span <= 0) return;
    double filled = 0;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (const int32_t id : ranks_[r].lanes[kCompute].queue) {
        const InstructionTime& time = all.ranks[r].times[static_cast<size_t>(id)];
        const double start = time.start - (time.waited - time.bubble);
        filled += std::max(0.0, std::min(time.end, all.passes_end) - std::max(start, all.passes_begin));
      }
    }
    all.bubble = 1 - filled / (span * static_cast<double>(ranks_.size()));
  }

  const Plan& plan_;
  const SimulationCosts& costs_;
  const int steps_;
  int tie_members_ = 1;
  std::vector<RankState> ranks_;
  std::priority_queue<Event> events_;
  std::map<std::pair<Group, int64_t>, std::vector<std::pair<size_t, size_t>>> meetings_;
  std::map<TransferId, int> sides_;  // how many of its two ranks posted a transfer
  double now_ = 0;
  int64_t order_ = 0;
  int64_t was_dp_ = -1;  // while Adjust runs: what has just ended on lane dp, on lane pp
  bool was_pp_ = false;
};

}  // namespace

std::string_view Name(WaitKind kind) {
  static constexpr std::string_view kNames[] = {"nothing", "bubble", "transfer", "gather", "reduce", "copies", "host"};
  return kNames[static_cast<size_t>(kind)];
}

Simulated Simulate(const Plan& plan, const std::vector<CompiledProgram>& programs, const SimulationCosts& costs,
                   int steps) {
  TRIREME_CHECK(steps >= 1 && !programs.empty(), "steps and programs to simulate");
  return Clock(plan, programs, costs, steps).Run();
}

}  // namespace trireme
