// What the lanes of a job's ranks do in one step, simulated or traced, and the figures that both are compared by.
//   const Timeline measured = ReadTraces({"trace.json", "trace.json.rank1"});   const Shares s = SharesOf(measured);
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "engine/schedule/instruction.h"

namespace trireme::report {

// What a span is drawn as. Waits lie on lane compute, inside of other spans or between them.
enum class SpanKind : uint8_t {
  kLoad,
  kForward,
  kRecompute,
  kBackward,
  kBackwardInput,
  kBackwardWeight,
  kGather,
  kReduce,
  kTensorParallel,
  kTransfer,
  kStats,
  kUpdate,
  kCopyDown,
  kCopyUp,
  kWait,
};
constexpr size_t kNumSpanKinds = static_cast<size_t>(SpanKind::kWait) + 1;
std::string_view Label(SpanKind kind);   // "reduce gradients"
std::string_view Colour(SpanKind kind);  // "#4c8bf5"
SpanKind KindOf(Op op);

struct Span {
  Lane lane = Lane::kCompute;
  SpanKind kind = SpanKind::kForward;
  double start = 0, end = 0;  // seconds from the step's beginning
  int64_t micro_batch = -1;   // -1: not of one
  std::string name;           // "Forward transformer.h.3 micro-batch 2"; of a wait the reason, or ""
  bool operator==(const Span&) const = default;
};

struct TimelineRow {
  std::string label;        // "rank 3", "ranks 0 to 7"
  std::string note;         // "pp 1 dp 0 tp 1"
  std::vector<Span> spans;  // by lane, then by start
};

struct Timeline {
  double step_seconds = 0;
  std::vector<TimelineRow> rows;
};

// One file a rank, as engine/execute writes them with --trace, of one machine (their clocks are one). The step shown is
// the last that another one follows; where there is one alone, that. Throws Error{kData, RPT001} for a file that is no
// such trace, RPT002 where the files have no step in common.
Timeline ReadTraces(const std::vector<std::filesystem::path>& files);

// Shares of the step, means of the rows.
struct Shares {
  double busy = 0;     // lane compute at work
  double waiting = 0;  // lane compute between its instructions, and inside them for tensor parallelism: 1 - busy
  // Lanes tp, pp and dp at communication, hidden or not: as a profiler adds up its kernels.
  double communication = 0;
  // Of the time from the first pass of any rank to the last: what neither an instruction of lane compute nor one of the
  // rank's other lanes fills, those of transfers between stages left out. So it is waiting for other stages' passes.
  double bubble = 0;
};
Shares SharesOf(const Timeline& timeline);

}  // namespace trireme::report
