#include "engine/report/bench.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/base/bytes.h"
#include "engine/base/json_text.h"
#include "engine/report/words.h"

namespace trireme::report {
namespace {

using Row = std::vector<std::string>;

Row FiguresRow(std::string name, const BenchFigures& f, const std::string& deviation, const std::string& mfu,
               const std::string& utilisation) {
  return {std::move(name),
          Seconds(f.step_seconds) + deviation,
          FormatCount(static_cast<int64_t>(f.tokens_per_second)),
          fmt::format("{:.3g}", f.tflops_per_rank),
          mfu,
          FormatBytes(f.memory_bytes),
          Percent(f.shares.waiting),
          Percent(f.shares.communication),
          Percent(f.shares.bubble),
          utilisation};
}

Row MeasuredRow(const BenchLayout& layout) {
  return FiguresRow(layout.name, layout.measured, " +- " + Seconds(layout.step_deviation),
                    layout.mfu ? Percent(*layout.mfu) : "-",
                    layout.gpu_utilisation ? Percent(*layout.gpu_utilisation) : "-");
}

// Characters, not bytes: all of them are ASCII.
std::string Aligned(const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row.size() == 1 ? 0 : row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += i == 0 ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("  {:>{}}", row[i], widths[i]);
    }
    text += "\n";
  }
  return text;
}

std::string Json(const BenchFigures& f) {
  std::string classes;
  for (const auto& [name, bytes] : f.memory_by_class) {
    classes += fmt::format("{}{}: {}", classes.empty() ? "" : ", ", JsonText(name), bytes);
  }
  return fmt::format(
      "{{\"step_seconds\": {}, \"tokens_per_second\": {}, \"tflops_per_rank\": {}, \"memory_bytes\": {}, "
      "\"memory_by_class\": {{{}}}, \"waiting_share\": {}, \"communication_share\": {}, \"bubble\": {}}}",
      JsonNumber(f.step_seconds), JsonNumber(f.tokens_per_second), JsonNumber(f.tflops_per_rank), f.memory_bytes,
      classes, JsonNumber(f.shares.waiting), JsonNumber(f.shares.communication), JsonNumber(f.shares.bubble));
}

std::string JsonLine(const BenchReport& report, const BenchLayout& layout) {
  const bool failed = !layout.failure.empty();
  std::string steps;
  for (const double seconds : layout.step_seconds) {
    steps += (steps.empty() ? "" : ", ") + JsonNumber(seconds);
  }
  const auto optional = [](const std::optional<double>& value) { return value ? JsonNumber(*value) : "null"; };
  const std::pair<const char*, std::string> members[] = {
      {"layout", JsonText(layout.name)},
      {"description", JsonText(layout.description)},
      {"model", JsonText(report.model)},
      {"device", JsonText(report.device)},
      {"ranks", std::to_string(report.ranks)},
      {"global_batch_size", std::to_string(report.global_batch_size)},
      {"sequence_length", std::to_string(report.sequence_length)},
      {"steps", std::to_string(report.steps)},
      {"warmup", std::to_string(report.warmup)},
      {"failure", failed ? JsonText(layout.failure) : "null"},
      {"measured", failed ? "null" : Json(layout.measured)},
      {"step_deviation", failed ? "null" : JsonNumber(layout.step_deviation)},
      {"step_times", "[" + steps + "]"},
      {"mfu", optional(layout.mfu)},
      {"gpu_utilisation", optional(layout.gpu_utilisation)},
      {"cluster", report.cluster.empty() ? "null" : JsonText(report.cluster)},
      {"predicted", layout.predicted ? Json(*layout.predicted) : "null"},
  };
  std::string line;
  for (const auto& [key, value] : members) {
    line += fmt::format("{}\"{}\": {}", line.empty() ? "{" : ", ", key, value);
  }
  return line + "}\n";
}

}  // namespace

std::string BenchTable(const BenchReport& report) {
  std::vector<Row> rows = {{"layout", "step", "tokens/s", "TFLOP/s a rank", "MFU", "memory", "waiting", "communication",
                            "bubble", "utilisation"}};
  for (const BenchLayout& layout : report.layouts) {
    if (!layout.failure.empty()) {
      rows.push_back({fmt::format("{}: {}", layout.name, layout.failure)});
      continue;
    }
    rows.push_back(MeasuredRow(layout));
    if (layout.predicted) rows.push_back(FiguresRow("  predicted", *layout.predicted, "", "-", "-"));
  }
  return Aligned(rows);
}

std::string BenchJsonLines(const BenchReport& report) {
  std::string text;
  for (const BenchLayout& layout : report.layouts) text += JsonLine(report, layout);
  return text;
}

}  // namespace trireme::report
