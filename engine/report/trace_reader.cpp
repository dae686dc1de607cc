#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/report/timeline.h"
#include "parsers/json_tree.h"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void FailTrace(const fs::path& file, const std::string& what) {
  throw Error(ErrorCode::kData, "RPT001", what, file.string(), "name a file that trireme train --trace wrote");
}

struct TracedSpan {
  Span span;  // seconds on the machine's clock
  int64_t step = 0;
};

struct RankTrace {
  int64_t rank = 0;
  std::vector<TracedSpan> spans;
};

double NumberOf(const JsonValue& object, std::string_view key) {
  const JsonMember* member = object.Find(key);
  return member == nullptr ? 0 : member->value.number;
}

std::string TextOf(const JsonValue& object, std::string_view key) {
  const JsonMember* member = object.Find(key);
  return member == nullptr ? "" : member->value.text;
}

// By the name of the category that the tracer writes: that of an Op, or of a part.
std::optional<SpanKind> KindOfCategory(const std::string& category) {
  for (int op = 0; op <= static_cast<int>(Op::kCopyUp); ++op) {
    if (category == Name(static_cast<Op>(op))) return KindOf(static_cast<Op>(op));
  }
  if (category == "Wait") return SpanKind::kWait;
  if (category == "AllReduce" || category == "AllGather" || category == "ReduceScatter")
    return SpanKind::kTensorParallel;
  return std::nullopt;
}

void AddEvent(const fs::path& file, const JsonValue& event, double origin, RankTrace& trace) {
  const std::optional<SpanKind> kind = KindOfCategory(TextOf(event, "cat"));
  const JsonMember* args = event.Find("args");
  const double lane = NumberOf(event, "tid");
  if (!kind || args == nullptr || lane < 0 || lane >= kNumLanes) FailTrace(file, "has an event of another program");
  TracedSpan traced;
  traced.step = static_cast<int64_t>(NumberOf(args->value, "step"));
  Span& span = traced.span;
  span.lane = static_cast<Lane>(static_cast<int>(lane));
  span.kind = *kind;
  span.start = (origin + NumberOf(event, "ts")) * 1e-6;
  span.end = span.start + NumberOf(event, "dur") * 1e-6;
  span.micro_batch = static_cast<int64_t>(NumberOf(args->value, "micro_batch"));
  span.name = TextOf(event, "name");
  trace.spans.push_back(std::move(traced));
}

JsonValue ParseLine(const fs::path& file, std::string_view text) {
  Diagnostics diagnostics;
  std::optional<JsonValue> value = ReadJson(text, file.string(), diagnostics);
  if (!value || !diagnostics.problems().empty() || value->kind != JsonValue::Kind::kObject) {
    FailTrace(file, "has a line that is no event");
  }
  return std::move(*value);
}

// The tracer writes one event a line, so that a long trace is never held as one tree.
RankTrace ReadTrace(const fs::path& file) {
  const std::string text = ReadFile(file, ErrorCode::kData);
  std::string_view rest = text;
  RankTrace trace;
  double origin = 0;
  bool first = true;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (first) {
      const size_t list = line.find(",\"traceEvents\":[");
      if (list == std::string_view::npos) FailTrace(file, "does not begin as a trace does");
      const JsonValue head = ParseLine(file, std::string(line.substr(0, list)) + "}");
      const JsonMember* other = head.Find("otherData");
      if (other == nullptr) FailTrace(file, "has no otherData: it is of an older version");
      trace.rank = static_cast<int64_t>(NumberOf(other->value, "rank"));
      origin = NumberOf(other->value, "origin_us");
      first = false;
      continue;
    }
    if (line.starts_with(",")) line.remove_prefix(1);
    if (line.starts_with("]}") || line.empty()) continue;
    if (line.ends_with(",")) line.remove_suffix(1);
    const JsonValue event = ParseLine(file, line);
    if (TextOf(event, "ph") == "X") AddEvent(file, event, origin, trace);
  }
  return trace;
}

// When each rank's compute lane begins a step; the step begins where the first does.
std::map<int64_t, double> BeginningsOf(const std::vector<RankTrace>& traces) {
  std::map<int64_t, double> begin;
  std::map<int64_t, std::set<int64_t>> ranks;
  for (const RankTrace& trace : traces) {
    for (const auto& [span, step] : trace.spans) {
      if (span.lane != Lane::kCompute) continue;
      const auto [found, added] = begin.try_emplace(step, span.start);
      if (!added) found->second = std::min(found->second, span.start);
      ranks[step].insert(trace.rank);
    }
  }
  std::erase_if(begin, [&](const auto& entry) { return ranks[entry.first].size() < traces.size(); });
  return begin;
}

void SortSpans(std::vector<Span>& spans) {
  std::ranges::sort(spans, [](const Span& a, const Span& b) {
    return std::tuple(a.lane, a.start, b.end) < std::tuple(b.lane, b.start, a.end);
  });
}

}  // namespace

Timeline ReadTraces(const std::vector<fs::path>& files) {
  std::vector<RankTrace> traces;
  for (const fs::path& file : files) traces.push_back(ReadTrace(file));
  std::ranges::sort(traces, {}, &RankTrace::rank);
  const std::map<int64_t, double> begins = BeginningsOf(traces);
  if (begins.empty()) {
    throw Error(ErrorCode::kData, "RPT002", "no step is in all of the traces", files.empty() ? "" : files[0].string(),
                "name the traces of all ranks of one run");
  }
  auto shown = std::prev(begins.end());
  double end = 0;
  if (shown != begins.begin()) {
    end = shown->second;
    --shown;
  } else {
    for (const RankTrace& trace : traces) {
      for (const auto& [span, step] : trace.spans) end = std::max(end, span.end);
    }
  }
  const double begin = shown->second;
  Timeline timeline;
  timeline.step_seconds = end - begin;
  for (RankTrace& trace : traces) {
    TimelineRow row;
    row.label = fmt::format("rank {}", trace.rank);
    for (auto& [span, step] : trace.spans) {
      if (span.end <= begin || span.start >= end) continue;  // what the step before left over counts where it runs
      span.start = std::max(0.0, span.start - begin);
      span.end = std::min(end, span.end) - begin;
      row.spans.push_back(std::move(span));
    }
    SortSpans(row.spans);
    timeline.rows.push_back(std::move(row));
  }
  return timeline;
}

}  // namespace trireme::report
