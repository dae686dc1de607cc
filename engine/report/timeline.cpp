#include "engine/report/timeline.h"

#include <algorithm>
#include <array>
#include <utility>

namespace trireme::report {
namespace {

struct KindText {
  std::string_view label, colour;
};
constexpr std::array<KindText, kNumSpanKinds> kKinds = {{
    {"load tokens", "#8a94a3"},
    {"forward", "#4c8bf5"},
    {"recompute", "#b07cc6"},
    {"backward", "#f0882e"},
    {"backward, input", "#f0882e"},
    {"backward, weights", "#e8c547"},
    {"gather weights", "#2aa5a0"},
    {"reduce gradients", "#d6478b"},
    {"tensor parallel", "#9a7250"},
    {"transfer between stages", "#6f63d9"},
    {"norm and scale", "#7d8794"},
    {"update", "#4fa84f"},
    {"copy to host", "#a8a03c"},
    {"copy to device", "#c9a27a"},
    {"waiting", "#d64545"},
}};

bool IsPass(SpanKind kind) { return kind >= SpanKind::kForward && kind <= SpanKind::kBackwardWeight; }

bool IsCommunication(const Span& span) {
  return (span.lane == Lane::kTp || span.lane == Lane::kPp || span.lane == Lane::kDp) && span.kind != SpanKind::kWait;
}

// Length of the union of intervals.
double Covered(std::vector<std::pair<double, double>> intervals) {
  std::ranges::sort(intervals);
  double covered = 0, end = -1e300;
  for (const auto& [begin, stop] : intervals) {
    covered += std::max(0.0, stop - std::max(begin, end));
    end = std::max(end, stop);
  }
  return covered;
}

struct Busy {
  double compute = 0, communication = 0;
  double idle = 0;  // no lane but pp does anything
};

// Within [begin, end].
Busy BusyOf(const TimelineRow& row, double begin, double end) {
  std::vector<std::pair<double, double>> compute, communication, inside, any;
  for (const Span& span : row.spans) {
    const std::pair<double, double> part = {std::max(span.start, begin), std::min(span.end, end)};
    if (part.second <= part.first) continue;
    if (span.lane != Lane::kPp && span.kind != SpanKind::kWait) any.push_back(part);
    if (IsCommunication(span)) communication.push_back(part);
    if (span.lane == Lane::kCompute) (span.kind == SpanKind::kWait ? inside : compute).push_back(part);
  }
  // A wait that lies inside an instruction is no work; one between two covers nothing of it.
  std::vector<std::pair<double, double>> both = compute;
  both.insert(both.end(), inside.begin(), inside.end());
  return {Covered(both) - Covered(inside), Covered(communication), end - begin - Covered(any)};
}

}  // namespace

std::string_view Label(SpanKind kind) { return kKinds[static_cast<size_t>(kind)].label; }
std::string_view Colour(SpanKind kind) { return kKinds[static_cast<size_t>(kind)].colour; }

SpanKind KindOf(Op op) {
  switch (op) {
    case Op::kLoad:
      return SpanKind::kLoad;
    case Op::kForward:
      return SpanKind::kForward;
    case Op::kRecompute:
      return SpanKind::kRecompute;
    case Op::kBackward:
      return SpanKind::kBackward;
    case Op::kBackwardInput:
      return SpanKind::kBackwardInput;
    case Op::kBackwardWeight:
      return SpanKind::kBackwardWeight;
    case Op::kSend:
    case Op::kRecv:
      return SpanKind::kTransfer;
    case Op::kGather:
    case Op::kRelease:
      return SpanKind::kGather;
    case Op::kReduce:
    case Op::kTieReduce:
      return SpanKind::kReduce;
    case Op::kTpSplit:
    case Op::kTpGather:
    case Op::kTpReduce:
      return SpanKind::kTensorParallel;
    case Op::kStepStats:
    case Op::kReduceNorms:
      return SpanKind::kStats;
    case Op::kUpdateNorms:
    case Op::kUpdate:
      return SpanKind::kUpdate;
    case Op::kCopyDown:
      return SpanKind::kCopyDown;
    case Op::kCopyUp:
      return SpanKind::kCopyUp;
  }
  return SpanKind::kWait;
}

Shares SharesOf(const Timeline& timeline) {
  Shares shares;
  if (timeline.rows.empty() || timeline.step_seconds <= 0) return shares;
  const double rows = static_cast<double>(timeline.rows.size());
  double first = timeline.step_seconds, last = 0, idle = 0;
  for (const TimelineRow& row : timeline.rows) {
    for (const Span& span : row.spans) {
      if (!IsPass(span.kind)) continue;
      first = std::min(first, span.start);
      last = std::max(last, span.end);
    }
  }
  for (const TimelineRow& row : timeline.rows) {
    const Busy whole = BusyOf(row, 0, timeline.step_seconds);
    shares.busy += whole.compute / timeline.step_seconds / rows;
    shares.communication += whole.communication / timeline.step_seconds / rows;
    idle += BusyOf(row, first, last).idle / rows;
  }
  shares.waiting = 1 - shares.busy;
  if (last > first) shares.bubble = idle / (last - first);
  return shares;
}

}  // namespace trireme::report
