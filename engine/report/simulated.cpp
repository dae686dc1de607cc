#include "engine/report/simulated.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "engine/schedule/cost_model.h"
#include "engine/schedule/make_program.h"
#include "engine/schedule/memory_series.h"
#include "engine/schedule/simulate.h"

namespace trireme::report {
namespace {

// Each bin of a memory row shows the most that was live in it.
constexpr size_t kMemoryBins = 600;

std::string WaitText(WaitKind why) { return fmt::format("waits: {}", Name(why)); }

// Steps follow each other: what a step leaves behind runs while the next one begins.
void Wrap(std::vector<Span>& spans, double step_seconds) {
  const size_t count = spans.size();
  for (size_t i = 0; i < count; ++i) {
    const double shift = spans[i].end > step_seconds ? -step_seconds : spans[i].start < 0 ? step_seconds : 0;
    if (shift == 0) continue;
    Span rest = spans[i];
    rest.start = std::max(0.0, rest.start + shift);
    rest.end = std::min(step_seconds, rest.end + shift);
    spans[i].start = std::max(0.0, spans[i].start);
    spans[i].end = std::min(step_seconds, spans[i].end);
    spans.push_back(std::move(rest));
  }
  std::erase_if(spans, [&](const Span& span) { return span.end < span.start || span.start >= step_seconds; });
}

// Spans of one pipeline rank, those of a wait before what waited.
std::vector<Span> SpansOf(const Plan& plan, const CompiledProgram& program, const RankTimes& times,
                          const CostModel& costs, int pp_rank, double step_seconds) {
  std::vector<Span> spans;
  for (const CompiledInstruction& compiled : program.instructions) {
    const Instruction& i = compiled.instruction;
    const InstructionTime& time = times.times[static_cast<size_t>(i.id)];
    if (i.op == Op::kRelease) continue;
    if (i.lane == Lane::kCompute && time.waited > 0) {
      spans.push_back(
          {i.lane, SpanKind::kWait, time.start - time.waited, time.start, i.micro_batch, WaitText(time.why)});
    }
    spans.push_back({i.lane, KindOf(i.op), time.start, time.end, i.micro_batch, Describe(i, plan)});
    const double inside = i.lane == Lane::kCompute ? costs.Of(pp_rank, compiled).communication : 0;
    if (inside <= 0 || time.duration() <= 0) continue;
    // What nothing hides, drawn at the end of the instruction: the model knows its length, not its places.
    const double begin = std::max(time.start, time.end - inside);
    spans.push_back({Lane::kCompute, SpanKind::kWait, begin, time.end, i.micro_batch, "waits: tensor parallel"});
    spans.push_back({Lane::kTp, SpanKind::kTensorParallel, begin, time.end, i.micro_batch,
                     "tensor parallel in " + Describe(i, plan)});
  }
  Wrap(spans, step_seconds);
  std::ranges::sort(spans, [](const Span& a, const Span& b) {
    return std::tuple(a.lane, a.start, b.end) < std::tuple(b.lane, b.start, a.end);
  });
  return spans;
}

std::string NoteOf(const Topology::Coordinate& at) {
  return fmt::format("pp {} dp {} tp {}", at.pp_rank, at.dp_rank, at.tp_rank);
}

std::vector<TimelineRow> RowsOf(const Plan& plan, const std::vector<std::vector<Span>>& of_pp_ranks) {
  const Topology& t = plan.topology;
  std::vector<TimelineRow> rows;
  if (t.world_size() <= kMostSingleRanks) {
    for (int rank = 0; rank < t.world_size(); ++rank) {
      const Topology::Coordinate at = t.CoordinateOf(rank);
      rows.push_back({fmt::format("rank {}", rank), NoteOf(at), of_pp_ranks[static_cast<size_t>(at.pp_rank)]});
    }
    return rows;
  }
  const int alike = t.dp_size * t.tp_size;
  for (int pp_rank = 0; pp_rank < t.pp_size; ++pp_rank) {
    const std::string label = alike == 1 ? fmt::format("rank {}", pp_rank)
                                         : fmt::format("{} to {}", pp_rank * alike, (pp_rank + 1) * alike - 1);
    rows.push_back(
        {label, fmt::format("pp {}, {} ranks alike", pp_rank, alike), of_pp_ranks[static_cast<size_t>(pp_rank)]});
  }
  return rows;
}

int64_t TotalOf(const MemoryByClass& bytes) { return SumOf(bytes); }

// A buffer takes memory from where its first writer starts to where the instruction that frees it ends, whichever lanes
// these are on.
MemoryRow MemoryOf(const Plan& plan, const CompiledProgram& program, const RankTimes& times, double step_seconds,
                   int pp_rank) {
  std::vector<std::pair<double, std::pair<MemoryClass, int64_t>>> changes;
  for (const LiveBuffer& buffer : LiveBuffersOf(plan, program)) {
    if (buffer.on_host) continue;
    changes.push_back({times.times[static_cast<size_t>(buffer.begin)].start, {buffer.memory_class, buffer.bytes}});
    changes.push_back({times.times[static_cast<size_t>(buffer.end)].end, {buffer.memory_class, -buffer.bytes}});
  }
  // What ends where another begins makes room for it.
  std::ranges::sort(changes, [](const auto& a, const auto& b) {
    return std::pair(a.first, a.second.second) < std::pair(b.first, b.second.second);
  });
  MemoryRow row;
  row.label = plan.topology.pp_size == 1 ? "each rank" : fmt::format("pipeline rank {}", pp_rank);
  MemoryByClass now = ByClass(plan.memory_of_pp_rank[static_cast<size_t>(pp_rank)], MemoryMoment::kStep);
  for (const MemoryClass transient : {MemoryClass::kActivations, MemoryClass::kGathered, MemoryClass::kBuckets,
                                      MemoryClass::kBoundaries, MemoryClass::kGaps, MemoryClass::kAttention}) {
    now[static_cast<size_t>(transient)] = 0;
  }
  size_t next = 0;
  for (size_t bin = 0; bin < kMemoryBins; ++bin) {
    const double begin = step_seconds * static_cast<double>(bin) / kMemoryBins,
                 end = step_seconds * static_cast<double>(bin + 1) / kMemoryBins;
    MemoryByClass most = now;
    for (; next < changes.size() && (changes[next].first < end || bin + 1 == kMemoryBins); ++next) {
      now[static_cast<size_t>(changes[next].second.first)] += changes[next].second.second;
      if (TotalOf(now) > TotalOf(most)) most = now;
    }
    if (!row.bytes.empty() && row.bytes.back() == most) continue;
    row.seconds.push_back(begin);
    row.bytes.push_back(most);
  }
  return row;
}

// The picture begins with the first pass of any rank; what runs ahead of it, as loads do, belongs to the step before.
void BeginAtFirstPass(const std::vector<CompiledProgram>& programs, Simulated& run) {
  double first = std::numeric_limits<double>::max();
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    for (const CompiledInstruction& compiled : programs[rank].instructions) {
      const Instruction& i = compiled.instruction;
      if (i.op == Op::kForward) first = std::min(first, run.ranks[rank].times[static_cast<size_t>(i.id)].start);
    }
  }
  for (RankTimes& rank : run.ranks) {
    for (InstructionTime& time : rank.times) {
      time.start -= first;
      time.end -= first;
    }
  }
}

}  // namespace

SimulatedStep SimulateStep(const Plan& plan, const Cluster& cluster) {
  std::vector<CompiledProgram> programs;
  for (int pp_rank = 0; pp_rank < plan.topology.pp_size; ++pp_rank) {
    programs.push_back(
        Compile(MakeProgram(plan, ProgramKind::kTrain, plan.topology.RankOf({pp_rank, 0, 0})), OptionsOf(plan)));
  }
  const CostModel costs(plan, cluster);
  Simulated run = Simulate(plan, programs, costs.Costs(), /*steps=*/2);
  BeginAtFirstPass(programs, run);
  SimulatedStep step;
  step.timeline.step_seconds = run.step_seconds;
  std::vector<std::vector<Span>> spans;
  for (int pp_rank = 0; pp_rank < plan.topology.pp_size; ++pp_rank) {
    const size_t at = static_cast<size_t>(pp_rank);
    spans.push_back(SpansOf(plan, programs[at], run.ranks[at], costs, pp_rank, run.step_seconds));
    step.memory.push_back(MemoryOf(plan, programs[at], run.ranks[at], run.step_seconds, pp_rank));
  }
  step.timeline.rows = RowsOf(plan, spans);
  return step;
}

}  // namespace trireme::report
