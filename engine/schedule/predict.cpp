#include "engine/schedule/predict.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/strings.h"
#include "engine/plan/throughput.h"
#include "engine/schedule/buffers.h"
#include "engine/schedule/cost_model.h"
#include "engine/schedule/make_program.h"
#include "engine/schedule/memory_series.h"

namespace trireme {
namespace {

std::vector<CompiledProgram> ProgramsOf(const Plan& plan) {
  std::vector<CompiledProgram> programs;
  for (int pp_rank = 0; pp_rank < plan.topology.pp_size; ++pp_rank) {
    const int rank = plan.topology.RankOf({pp_rank, 0, 0});
    programs.push_back(Compile(MakeProgram(plan, ProgramKind::kTrain, rank), OptionsOf(plan)));
  }
  return programs;
}

// Micro-batches after which a step grows by the same time with each `period` more of them.
struct Folding {
  int64_t first = 1, period = 1;
};

Folding FoldingOf(const Plan& plan) {
  const int64_t pp = plan.topology.pp_size;
  if (pp == 1) return {3, 1};
  return {4 * pp + plan.batch.num_micro_batches % pp, pp};
}

int64_t PersistentBytes(const Plan& plan, int pp_rank) {
  int64_t bytes = 0;
  for (const int unit : plan.UnitsOf(pp_rank)) {
    const auto of = [&](BufferKind kind) { return BufferBytes(plan, {kind, static_cast<int16_t>(unit), 0, -1, 0}); };
    if (!plan.weights_on_host) bytes += of(BufferKind::kWeights);
    bytes += of(BufferKind::kGradientSum);
    const int64_t states = plan.moments_per_element + (plan.HasMaster(unit) ? 1 : 0);
    if (!plan.OptimizerOnHost(unit)) bytes += plan.OwnElements(unit) * SizeOf(plan.dtypes.master) * states;
  }
  return bytes;
}

// Transient buffers live from the start of what writes them to the end of what frees them.
std::vector<MemoryPoint> MemoryOf(const Plan& plan, int pp_rank, const CompiledProgram& program,
                                  const std::vector<InstructionTime>& times) {
  std::vector<MemoryPoint> changes;
  for (const LiveBuffer& buffer : LiveBuffersOf(plan, program)) {
    if (buffer.on_host) continue;
    changes.push_back({times[static_cast<size_t>(buffer.begin)].start, buffer.bytes});
    changes.push_back({times[static_cast<size_t>(buffer.end)].end, -buffer.bytes});
  }
  std::ranges::stable_sort(changes, {}, &MemoryPoint::seconds);
  std::vector<MemoryPoint> memory = {{0, PersistentBytes(plan, pp_rank)}};
  for (const MemoryPoint& change : changes) memory.push_back({change.seconds, memory.back().bytes + change.bytes});
  return memory;
}

struct Sums {  // of one step, over the pipeline ranks
  std::array<double, kNumWaitKinds> waits{};
  double communication = 0, span_bubble = 0, seconds = 0;
};

Sums SumsOf(const Simulated& run) {
  Sums sums;
  sums.seconds = run.step_seconds;
  for (const RankTimes& rank : run.ranks) {
    for (size_t kind = 0; kind < kNumWaitKinds; ++kind) sums.waits[kind] += rank.waits[kind];
    sums.communication += rank.communication;
  }
  sums.span_bubble = run.bubble * (run.passes_end - run.passes_begin);
  return sums;
}

// What a step of more micro-batches comes to.
Sums Extrapolate(const Sums& few, const Sums& more, double periods) {
  Sums all;
  const auto line = [&](double a, double b) { return a + (b - a) * periods; };
  for (size_t kind = 0; kind < kNumWaitKinds; ++kind) all.waits[kind] = line(few.waits[kind], more.waits[kind]);
  all.communication = line(few.communication, more.communication);
  all.seconds = line(few.seconds, more.seconds);
  all.span_bubble = line(few.span_bubble, more.span_bubble);
  return all;
}

struct Run {
  Plan plan;  // with fewer micro-batches
  std::vector<CompiledProgram> programs;
  Simulated times;
};

Run RunOf(const Plan& plan, const Cluster& cluster, int64_t micro_batches) {
  Run run{plan, {}, {}};
  run.plan.batch.num_micro_batches = micro_batches;
  run.programs = ProgramsOf(run.plan);
  const CostModel model(run.plan, cluster);
  run.times = Simulate(run.plan, run.programs, model.Costs(), /*steps=*/2);
  return run;
}

void Fill(const Plan& plan, const Cluster& cluster, const Sums& sums, Prediction& prediction) {
  const double pp = plan.topology.pp_size, world = plan.topology.world_size();
  const auto mean = [&](WaitKind kind) { return sums.waits[static_cast<size_t>(kind)] / pp; };
  prediction.step_seconds = sums.seconds;
  prediction.tokens_per_second = static_cast<double>(plan.batch.tokens_per_step()) / sums.seconds;
  prediction.tokens_per_second_per_rank = prediction.tokens_per_second / world;
  const ComputeRates& rates = cluster.device.RatesOf(plan.dtypes.compute);
  const double devices = static_cast<double>(std::min<int64_t>(plan.topology.world_size(), cluster.num_devices()));
  const double peak = (rates.peak > 0 ? rates.peak : rates.products) * devices;
  const double full = ModelFlopsPerToken(plan, AttentionCount::kWhole) * prediction.tokens_per_second;
  prediction.flops_per_second_per_rank = full / world;
  prediction.mfu_full = full / peak;
  prediction.mfu_causal = ModelFlopsPerToken(plan) * prediction.tokens_per_second / peak;
  prediction.exposed = {mean(WaitKind::kGather), mean(WaitKind::kReduce), sums.communication / pp,
                        mean(WaitKind::kTransfer)};
  prediction.exposed_share = prediction.exposed.total() / sums.seconds;
  prediction.bubble_seconds = mean(WaitKind::kBubble);
  prediction.copies_seconds = mean(WaitKind::kCopies);
  prediction.host_seconds = mean(WaitKind::kHost);
}

}  // namespace

std::vector<std::string> MissingRates(const Plan& plan, const Cluster& cluster) {
  std::vector<std::string> missing;
  const auto needs = [&](bool wanted, bool described, const char* key) {
    if (wanted && !described) missing.emplace_back(key);
  };
  const HostLinkDescription& link = cluster.host_link;
  const bool updates = std::ranges::any_of(plan.units, &UnitLayout::optimizer_on_host);
  needs(cluster.device.kind == DeviceKind::kCuda && (updates || plan.weights_on_host || plan.boundaries_on_host),
        link.up_bytes_per_second > 0 && link.down_bytes_per_second > 0, "host_link");
  needs(updates, cluster.host.update_bytes_per_second > 0 || cluster.host.MemoryBytesPerSecond() > 0, "host.memory");
  needs(plan.optimizer_on_disk || plan.weights_on_disk,
        cluster.disk.read_bytes_per_second > 0 && cluster.disk.write_bytes_per_second > 0, "disk");
  return missing;
}

std::string MissingRatesText(const std::vector<std::string>& missing, const Cluster& cluster) {
  return fmt::format("what is offloaded needs {}, which the cluster {} does not describe", Join(missing, " and "),
                     cluster.name);
}

Prediction Predict(const Plan& plan, const Cluster& cluster, const PredictOptions& options) {
  if (const std::vector<std::string> missing = MissingRates(plan, cluster); !missing.empty()) {
    throw Error(ErrorCode::kConfig, "PLN031", MissingRatesText(missing, cluster), missing.front(),
                "describe it (`trireme doctor --calibrate` measures it), or offload nothing");
  }
  const Folding folding = FoldingOf(plan);
  const int64_t m = plan.batch.num_micro_batches;
  const bool folds = options.folds && m > folding.first + folding.period;
  Run run = RunOf(plan, cluster, folds ? folding.first : m);
  Sums sums = SumsOf(run.times);
  double passes = run.times.passes_end - run.times.passes_begin;
  if (folds) {
    const Run more = RunOf(plan, cluster, folding.first + folding.period);
    const double periods = static_cast<double>(m - folding.first) / static_cast<double>(folding.period);
    sums = Extrapolate(sums, SumsOf(more.times), periods);
    passes += periods * (more.times.passes_end - more.times.passes_begin - passes);
  }
  Prediction prediction;
  Fill(plan, cluster, sums, prediction);
  prediction.bubble = passes > 0 ? sums.span_bubble / passes : 0;
  prediction.simulated_micro_batches = run.plan.batch.num_micro_batches;
  prediction.simulated_step_seconds = run.times.step_seconds;
  for (size_t rank = 0; rank < run.programs.size(); ++rank) {
    RankTimes& times = run.times.ranks[rank];
    RankPrediction& of = prediction.ranks.emplace_back();
    of.memory = MemoryOf(run.plan, static_cast<int>(rank), run.programs[rank], times.times);
    of.program = std::move(run.programs[rank]);
    of.timeline = std::move(times.times);
    of.busy_seconds = times.busy;
    of.wait_seconds = times.waits;
  }
  return prediction;
}

}  // namespace trireme
