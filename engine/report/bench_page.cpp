#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "engine/base/bytes.h"
#include "engine/report/bench.h"
#include "engine/report/html.h"
#include "engine/report/words.h"

namespace trireme::report {
namespace {

std::string Beside(bool any, const std::string& predicted) { return any ? predicted : ""; }

void AddResults(Page& page, const BenchReport& report) {
  std::vector<std::vector<TableCell>> rows;
  for (const BenchLayout& layout : report.layouts) {
    if (!layout.failure.empty()) {
      rows.push_back({{layout.name, ""}, {"-", ""}, {"-", ""}, {"-", ""}, {"-", ""}, {"-", ""}, {"-", ""}, {"-", ""}});
      continue;
    }
    const BenchFigures &m = layout.measured, p = layout.predicted.value_or(BenchFigures{});
    const bool any = layout.predicted.has_value();
    rows.push_back({{layout.name, ""},
                    {fmt::format("{} ± {}", Seconds(m.step_seconds), Seconds(layout.step_deviation)),
                     Beside(any, Seconds(p.step_seconds))},
                    {FormatCount(static_cast<int64_t>(m.tokens_per_second)),
                     Beside(any, FormatCount(static_cast<int64_t>(p.tokens_per_second)))},
                    {FormatBytes(m.memory_bytes), Beside(any, FormatBytes(p.memory_bytes))},
                    {Percent(m.shares.waiting), Beside(any, Percent(p.shares.waiting))},
                    {Percent(m.shares.communication), Beside(any, Percent(p.shares.communication))},
                    {Percent(m.shares.bubble), Beside(any, Percent(p.shares.bubble))},
                    {layout.gpu_utilisation ? Percent(*layout.gpu_utilisation) : "-",
                     layout.mfu ? "MFU " + Percent(*layout.mfu) : ""}});
  }
  page.AddHeading("Results", report.cluster.empty()
                                 ? "Mean and standard deviation of the measured steps. With --cluster each figure "
                                   "has its prediction beside it."
                                 : fmt::format("Mean and standard deviation of the measured steps; paler, what was "
                                               "predicted on {}.",
                                               report.cluster));
  page.AddTable({"layout", "step", "tokens/s", "memory of rank 0", "waiting", "communication", "bubble", "GPU busy"},
                rows);
  page.AddNote(
      "waiting: share of the step in which the compute lane stands still. communication: share in which a lane of "
      "communication works, hidden or not. bubble: share of the time from the first pass to the last in which a rank "
      "waits "
      "for another stage. They are means over the ranks, of one traced step.");
  for (const BenchLayout& layout : report.layouts) {
    if (!layout.failure.empty()) page.AddNote(fmt::format("{} was not measured: {}", layout.name, layout.failure));
  }
}

void AddPlots(Page& page, const BenchReport& report) {
  struct Plot {
    const char *title, *unit;
    double (*of)(const BenchFigures&);
    bool deviates;
  };
  static constexpr std::array<Plot, 5> kPlots = {{
      {"Tokens a second", "tokens/s", [](const BenchFigures& f) { return f.tokens_per_second; }, false},
      {"Time of a step", "s", [](const BenchFigures& f) { return f.step_seconds; }, true},
      {"Waiting", "%", [](const BenchFigures& f) { return 100 * f.shares.waiting; }, false},
      {"Communication", "%", [](const BenchFigures& f) { return 100 * f.shares.communication; }, false},
      {"Bubble", "%", [](const BenchFigures& f) { return 100 * f.shares.bubble; }, false},
  }};
  page.AddHeading("Plots", report.cluster.empty() ? "" : "A bar is what was measured, a diamond what was predicted.");
  for (const Plot& plot : kPlots) {
    std::vector<Page::Column> columns;
    for (const BenchLayout& layout : report.layouts) {
      if (!layout.failure.empty()) continue;
      columns.push_back({layout.name, plot.of(layout.measured), plot.deviates ? layout.step_deviation : 0,
                         layout.predicted ? std::optional(plot.of(*layout.predicted)) : std::nullopt});
    }
    if (!columns.empty()) page.AddColumns(plot.title, plot.unit, columns);
  }
}

struct ClassText {
  std::string name;
  std::string_view colour;
};

// A class in the words and the colour that the pages of plans have for it.
ClassText TextOf(const std::string& key) {
  for (size_t c = 0; c < kNumMemoryClasses; ++c) {
    const MemoryClass of = static_cast<MemoryClass>(c);
    if (key == JsonName(of)) return {std::string(Name(of)), Colour(of)};
  }
  return {key, key == "arena" ? Colour(MemoryClass::kActivations) : "#b9c0c9"};
}

Bar MemoryBar(const std::string& label, const BenchFigures& figures) {
  Bar bar{label, FormatBytes(figures.memory_bytes), {}};
  for (const auto& [name, bytes] : figures.memory_by_class) {
    const ClassText text = TextOf(name);
    bar.parts.push_back({text.name, text.colour, static_cast<double>(bytes), FormatBytes(bytes)});
  }
  return bar;
}

void AddMemory(Page& page, const BenchReport& report) {
  std::vector<Bar> bars;
  double full = 0;
  for (const BenchLayout& layout : report.layouts) {
    if (!layout.failure.empty()) continue;
    bars.push_back(MemoryBar(layout.name, layout.measured));
    if (layout.predicted) bars.push_back(MemoryBar("planned", *layout.predicted));
  }
  for (const Bar& bar : bars) {
    double sum = 0;
    for (const BarPart& part : bar.parts) sum += part.value;
    full = std::max(full, sum);
  }
  if (full <= 0) return;
  page.AddHeading("Memory of rank 0 by class",
                  "At its peak. A run measures the arena as one: activations, what is gathered, buckets, boundaries.");
  page.AddBars(bars, full);
}

void AddTimelines(Page& page, const BenchReport& report) {
  page.AddHeading("One step of each layout", "Timelines of one layout zoom together.");
  int number = 0;
  for (const BenchLayout& layout : report.layouts) {
    if (!layout.failure.empty()) continue;
    const std::string view = fmt::format("layout{}", number++);
    page.AddSubheading(fmt::format("{}: {}", layout.name, layout.description));
    page.AddTimeline("measured" + view, layout.timeline, view, "measured, " + Seconds(layout.timeline.step_seconds));
    if (layout.predicted_timeline) {
      page.AddTimeline("predicted" + view, *layout.predicted_timeline, view,
                       fmt::format("predicted, {}", Seconds(layout.predicted_timeline->step_seconds)));
    }
  }
}

}  // namespace

std::string BenchPage(const BenchReport& report) {
  Page page(fmt::format("Layouts of {}", report.model),
            fmt::format("{} ranks on {}; {} sequences of {} tokens a step; {} steps measured after {} that warm up",
                        report.ranks, report.device, FormatCount(report.global_batch_size),
                        FormatCount(report.sequence_length), report.steps, report.warmup));
  AddResults(page, report);
  AddPlots(page, report);
  AddMemory(page, report);
  AddTimelines(page, report);
  return page.Text();
}

}  // namespace trireme::report
