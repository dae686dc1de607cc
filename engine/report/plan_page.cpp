#include "engine/report/plan_page.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>

#include "engine/base/bytes.h"
#include "engine/plan/throughput.h"
#include "engine/report/html.h"
#include "engine/report/words.h"
#include "engine/schedule/pipeline_order.h"

namespace trireme::report {
namespace {

std::string Subtitle(const Plan& plan, const Cluster& cluster) {
  const Topology& t = plan.topology;
  std::string text =
      fmt::format("{} rank{} of {} as pp {} x dp {} x tp {}, ZeRO {}", t.world_size(), t.world_size() == 1 ? "" : "s",
                  cluster.device.name, t.pp_size, t.dp_size, t.tp_size, plan.zero_stage);
  if (t.pp_size > 1) text += fmt::format(", {}", Name(plan.pipeline_schedule));
  if (plan.sequence_parallel) text += ", sequence parallel";
  return text + fmt::format("; {} sequences of {} tokens a step in {} micro-batches of {} a rank; {}",
                            FormatCount(plan.batch.train_batch_size), FormatCount(plan.batch.sequence_length),
                            plan.batch.num_micro_batches, plan.batch.micro_batch_size, Name(plan.dtypes.compute));
}

void AddSummary(Page& page, const Plan& plan, const Prediction& p, double device_bytes) {
  const int64_t peak = plan.memory.with_overhead();
  const Throughput rate =
      ThroughputOf(plan, static_cast<double>(plan.batch.tokens_per_step()), p.step_seconds, std::nullopt);
  std::string memory = "memory of the fullest rank at its peak";
  if (device_bytes > 0) memory += fmt::format(", of {}", FormatBytes(static_cast<int64_t>(device_bytes)));
  page.AddTiles({
      {Seconds(p.step_seconds), "predicted step"},
      {FormatCount(static_cast<int64_t>(p.tokens_per_second)), "tokens/s of all ranks"},
      {fmt::format("{:.1f}", rate.tflops_per_rank), "TFLOP/s of a rank, attention counted causal"},
      {Percent(p.mfu_causal), "MFU, of the same count"},
      {Percent(p.exposed_share), "of the step: exposed communication"},
      {Percent(p.bubble), "bubble"},
      {FormatBytes(peak), memory},
  });
}

void AddAccount(Page& page, const Plan& plan, double device_bytes) {
  page.AddHeading(
      "Memory of each rank by class",
      "At the moment of the step when most is live. Estimates of what the driver and the communicators take "
      "stand at the end.");
  double full = device_bytes;
  std::vector<Bar> bars;
  for (size_t rank = 0; rank < plan.memory_of_pp_rank.size(); ++rank) {
    const MemoryByClass bytes = ByClass(plan.memory_of_pp_rank[rank], MemoryMoment::kStep);
    full = std::max(full, static_cast<double>(SumOf(bytes)));
    Bar bar{plan.topology.pp_size == 1 ? "each rank" : fmt::format("pipeline rank {}", rank),
            FormatBytes(SumOf(bytes)),
            {}};
    for (size_t c = 0; c < kNumMemoryClasses; ++c) {
      const MemoryClass of = static_cast<MemoryClass>(c);
      bar.parts.push_back({std::string(Name(of)), Colour(of), static_cast<double>(bytes[c]), FormatBytes(bytes[c])});
    }
    bars.push_back(std::move(bar));
  }
  page.AddBars(bars, full);
  if (device_bytes > 0) {
    page.AddNote(fmt::format("A bar's full width is {}, {}.", FormatBytes(static_cast<int64_t>(full)),
                             full > device_bytes ? "more than a device has" : "what a device has"));
  }
}

void AddMoments(Page& page, const Plan& plan) {
  std::vector<std::vector<TableCell>> rows;
  std::array<MemoryByClass, kNumMemoryMoments> at;
  for (size_t m = 0; m < kNumMemoryMoments; ++m) at[m] = ByClass(plan.memory, static_cast<MemoryMoment>(m));
  std::vector<std::string> head = {plan.topology.pp_size == 1 ? "a rank" : "the fullest rank"};
  for (size_t m = 0; m < kNumMemoryMoments; ++m)
    head.push_back(fmt::format("{} [GiB]", Name(static_cast<MemoryMoment>(m))));
  const auto row = [&](std::string_view name, const auto& of) {
    std::vector<TableCell> cells = {{std::string(name), ""}};
    for (const MemoryByClass& bytes : at) cells.push_back({Gib(of(bytes)), ""});
    rows.push_back(std::move(cells));
  };
  for (size_t c = 0; c < kNumMemoryClasses; ++c) {
    if (std::ranges::all_of(at, [&](const MemoryByClass& bytes) { return bytes[c] == 0; })) continue;
    row(Name(static_cast<MemoryClass>(c)), [&](const MemoryByClass& bytes) { return bytes[c]; });
  }
  row("total", [](const MemoryByClass& bytes) { return SumOf(bytes); });
  page.AddTable(head, rows, /*last_is_total=*/true);
}

void AddCommunication(Page& page, const Plan& plan, const Prediction& p) {
  page.AddHeading("Communication of a step", "What one rank sends, and how long compute waits for it.");
  const TrafficAccount& t = plan.traffic;
  std::vector<std::vector<TableCell>> rows;
  const auto row = [&](const char* name, int64_t bytes, double exposed) {
    if (bytes == 0 && exposed == 0) return;
    rows.push_back({{name, ""},
                    {FormatBytes(bytes), ""},
                    {Seconds(exposed), ""},
                    {Percent(p.step_seconds > 0 ? exposed / p.step_seconds : 0), ""}});
  };
  row("gathers of weights", t.gather, p.exposed.gather);
  row("reductions of gradients", t.reduce, p.exposed.reduce);
  row("tensor parallel", t.tensor_parallel, p.exposed.tensor_parallel);
  row("transfers between stages", t.transfer, p.exposed.transfer);
  row("total", t.total(), p.exposed.total());
  page.AddTable({"kind", "sent", "exposed", "of the step"}, rows, /*last_is_total=*/true);
  if (t.down + t.up > 0) {
    page.AddNote(
        fmt::format("Copies between host and device: {} down, {} up; compute waits {} for them and {} for "
                    "updates on the host.",
                    FormatBytes(t.down), FormatBytes(t.up), Seconds(p.copies_seconds), Seconds(p.host_seconds)));
  }
}

}  // namespace

std::string PlanPage(const Plan& plan, const Cluster& cluster, const Prediction& prediction, double device_bytes) {
  const SimulatedStep step = SimulateStep(plan, cluster);
  Page page(fmt::format("Plan of {}", plan.model.name), Subtitle(plan, cluster));
  AddSummary(page, plan, prediction, device_bytes);
  page.AddHeading("One step, lane by lane",
                  fmt::format("Simulated on {}: {}. Each bar is an instruction of the program that training executes; "
                              "ranks that differ in dp or tp rank alone run alike.",
                              cluster.name, cluster.source));
  page.AddTimeline("predicted", step.timeline);
  page.AddHeading("Memory over the same step",
                  "What the device holds, by class; the driver's and the communicators' part "
                  "are estimates.");
  page.AddMemory("memory", step.memory, step.timeline.step_seconds, device_bytes);
  AddAccount(page, plan, device_bytes);
  AddMoments(page, plan);
  AddCommunication(page, plan, prediction);
  return page.Text();
}

}  // namespace trireme::report
