#include "engine/advise/fill.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "engine/base/bytes.h"
#include "engine/schedule/compile.h"
#include "engine/schedule/make_program.h"
#include "engine/schedule/verify.h"
#include "parsers/layout_text.h"

namespace trireme {
namespace {

std::vector<RecomputeRun> RunsOf(const std::vector<Recompute>& policies) {
  std::vector<RecomputeRun> runs;
  for (const Recompute policy : policies) {
    if (runs.empty() || runs.back().policy != policy) runs.push_back({policy, 0});
    ++runs.back().layers;
  }
  if (runs.size() == 1) runs.front().layers = 0;
  return runs;
}

// The smallest step from `low` on to `high` at which `bytes` is at most `limit`, where it falls with the step; high + 1
// where there is none. Interpolates: two or three looks where bytes fall evenly.
template <typename Bytes>
int SmallestThatFits(int low, int high, int64_t limit, Bytes bytes) {
  int64_t at_low = bytes(low);
  if (at_low <= limit) return low;
  if (low == high) return high + 1;
  int64_t at_high = bytes(high);
  if (at_high > limit) return high + 1;
  while (high - low > 1) {
    const double share =
        static_cast<double>(at_low - limit) / static_cast<double>(std::max<int64_t>(1, at_low - at_high));
    const int guess = std::clamp(low + static_cast<int>(std::ceil(share * (high - low))), low + 1, high - 1);
    const int64_t at_guess = bytes(guess);
    (at_guess <= limit ? high : low) = guess;
    (at_guess <= limit ? at_high : at_low) = at_guess;
    if (high - low > 1 && at_guess <= limit) {  // most often the one before it does not fit
      const int64_t before = bytes(guess - 1);
      (before <= limit ? high : low) = guess - 1;
      (before <= limit ? at_high : at_low) = before;
    }
  }
  return high;
}

// Of the layers of one pipeline rank the first `full` are made again whole, the last `kept` kept, those between them
// made again where that is cheap.
struct RankChoice {
  int full = 0, kept = 0;
};

class RecomputeFiller {
 public:
  RecomputeFiller(const Job& job, const Config& config, const FillOptions& options, Plan plan)
      : job_(job), config_(config), options_(options), plan_(std::move(plan)), layers_(Ranks()), choices_(Ranks()) {
    config_.recompute.layers_per_checkpoint = config_.recompute.number_checkpoints = 0;
    config_.recompute.of_each_stage = false;
    for (int rank = 0; rank < plan_.topology.pp_size; ++rank) {
      for (const int unit : plan_.UnitsOf(rank)) {
        const UnitSpec& spec = plan_.units[static_cast<size_t>(unit)].spec;
        if (spec.kind != UnitKind::kBlock) continue;
        layers_[static_cast<size_t>(rank)].push_back(static_cast<int>(spec.layer));
        has_cheap_ = has_cheap_ && !spec.autograd;
      }
    }
  }

  Filled Fill() {
    for (int rank = 0; rank < plan_.topology.pp_size; ++rank) FillRank(rank);
    for (;;) {
      Filled filled = Whole();
      if (!Tighten(filled)) return filled;
    }
  }

 private:
  size_t Ranks() const { return static_cast<size_t>(plan_.topology.pp_size); }
  int LayersOf(int rank) const { return static_cast<int>(layers_[static_cast<size_t>(rank)].size()); }
  RankChoice& ChoiceOf(int rank) { return choices_[static_cast<size_t>(rank)]; }

  // Severity 0: all kept; then one layer more is cheap, until all are; then one more is full.
  RankChoice ChoiceAt(int rank, int severity) const {
    const int layers = LayersOf(rank);
    if (!has_cheap_) return {severity, layers - severity};
    return severity <= layers ? RankChoice{0, layers - severity} : RankChoice{severity - layers, 0};
  }

  void FillRank(int rank) {
    const int layers = LayersOf(rank), most = has_cheap_ ? 2 * layers : layers;
    const auto bytes = [&](int severity) { return BytesOf(rank, ChoiceAt(rank, severity)); };
    int severity = SmallestThatFits(0, has_cheap_ ? layers : most, options_.limit_bytes, bytes);
    if (has_cheap_ && severity > layers) severity = SmallestThatFits(layers, most, options_.limit_bytes, bytes);
    RankChoice& choice = ChoiceOf(rank) = ChoiceAt(rank, std::min(severity, most));
    if (severity > most || !has_cheap_ || choice.full == 0) return;
    // What a whole layer left free may keep the cheap parts of others.
    const int between = layers - choice.full;
    choice.kept = between - SmallestThatFits(0, between, options_.limit_bytes, [&](int cheap) {
                    return BytesOf(rank, {choice.full, between - cheap});
                  });
  }

  std::vector<Recompute> Policies() const {
    std::vector<Recompute> policies(static_cast<size_t>(plan_.model.num_layers), Recompute::kNone);
    for (size_t rank = 0; rank < layers_.size(); ++rank) {
      const int count = LayersOf(static_cast<int>(rank)), kept = count - choices_[rank].kept;
      for (int i = 0; i < kept; ++i) {
        policies[static_cast<size_t>(layers_[rank][static_cast<size_t>(i)])] =
            i < choices_[rank].full ? Recompute::kFull : Recompute::kCheap;
      }
    }
    return policies;
  }

  // Planned bytes of one rank, whatever the others do.
  int64_t BytesOf(int rank, RankChoice choice) {
    const auto [found, is_new] = seen_.try_emplace({rank, choice.full, choice.kept}, 0);
    if (!is_new) return found->second;
    const RankChoice before = std::exchange(ChoiceOf(rank), choice);
    config_.recompute.runs = RunsOf(Policies());
    Plan plan = *PlanShapeOf(job_, config_);
    ChoiceOf(rank) = before;
    Plan folded = plan;
    folded.batch.num_micro_batches = FoldedMicroBatches(plan);
    AccountMemory(plan, {Compile(MakeProgram(folded, ProgramKind::kTrain, plan.topology.RankOf({rank, 0, 0})),
                                 OptionsOf(folded))});
    return found->second = options_.Needs(plan);
  }

  Filled Whole() {
    config_.recompute.runs = RunsOf(Policies());
    Filled filled{config_, *PlanOf(job_, config_), false};
    filled.fits = options_.Fits(filled.plan);
    return filled;
  }

  // The ranks together may differ a little from each alone: one unit more on those that are over. False: none can.
  bool Tighten(const Filled& filled) {
    bool tightened = false;
    for (int rank = 0; rank < plan_.topology.pp_size; ++rank) {
      const MemoryAccount& account = filled.plan.memory_of_pp_rank[static_cast<size_t>(rank)];
      if (BytesIn(account, options_.scope) <= options_.limit_bytes) continue;
      RankChoice& choice = ChoiceOf(rank);
      if (choice.kept > 0) {
        --choice.kept;
        if (!has_cheap_) ++choice.full;
        tightened = true;
      } else if (choice.full < LayersOf(rank)) {
        ++choice.full;
        tightened = true;
      }
    }
    return tightened;
  }

  const Job& job_;
  Config config_;
  const FillOptions& options_;
  const Plan plan_;                       // its stages and layers; not its policies
  std::vector<std::vector<int>> layers_;  // of each pipeline rank, in the order of the model
  std::vector<RankChoice> choices_;
  bool has_cheap_ = true;
  std::map<std::tuple<int, int, int>, int64_t> seen_;
};

// What stage3_prefetch_bucket_size can be, from the deepest: below the target of a bucket each half gathers less ahead.
std::vector<int64_t> PrefetchSteps(const Plan& plan, int64_t own) {
  int64_t model = 0;
  for (const UnitLayout& unit : plan.units) model += unit.padded_elements;
  const int64_t target = std::min(kBucketTargetElements, model / kMinBucketsOfModel);
  std::vector<int64_t> steps = {std::max(own, target)};
  for (int64_t elements = target / 2; elements > 0 && steps.size() < 5; elements /= 2) steps.push_back(elements);
  steps.push_back(0);
  return steps;
}

std::vector<UnitRange> BucketsOf(const Job& job, Config config, int64_t prefetch) {
  config.zero_optimization.stage3_prefetch_bucket_size = prefetch;
  return PlanShapeOf(job, config)->buckets;
}

// The deepest that does not need another choice than the shallowest does.
void DeepenPrefetch(const Job& job, const FillOptions& options, const std::vector<int64_t>& steps, Filled& filled) {
  for (const int64_t prefetch : steps) {
    Config deeper = filled.config;
    deeper.zero_optimization.stage3_prefetch_bucket_size = prefetch;
    if (BucketsOf(job, deeper, prefetch) == filled.plan.buckets) {
      filled.config = deeper;
      return;
    }
    Plan plan = *PlanOf(job, deeper);
    if (!options.Fits(plan)) continue;
    filled = {deeper, std::move(plan), true};
    return;
  }
}

void SetRatio(Config& config, const OffloadOptimizerConfig& own, double ratio) {
  OffloadOptimizerConfig& offload = config.zero_optimization.offload_optimizer;
  offload = own;
  if (offload.device == OffloadDevice::kNone) offload.device = OffloadDevice::kCpu;
  if (ratio == 0) offload.device = OffloadDevice::kNone;
  offload.ratio = ratio == 0 ? 1 : ratio;
}

void RecordChoice(Config& config) {
  const ZeroConfig& zero = config.zero_optimization;
  const bool offloads = zero.offload_optimizer.device != OffloadDevice::kNone;
  const std::pair<std::string, std::string> chosen[] = {
      {"trireme.recompute", RecomputeText(config.recompute.runs)},
      {"zero_optimization.offload_optimizer.ratio", offloads ? fmt::format("{}", zero.offload_optimizer.ratio) : "0"},
      {"zero_optimization.stage3_prefetch_bucket_size", std::to_string(zero.stage3_prefetch_bucket_size)}};
  for (const auto& [key, value] : chosen) {
    const auto row = std::ranges::find(config.origins, key, &Origin::key);
    if (row == config.origins.end()) {
      if (key.ends_with("ratio") && offloads) config.origins.push_back({key, value, "trireme.fill", "1"});
    } else if (row->value != value) {
      row->value = value;
      row->source = "trireme.fill";
    }
  }
}

}  // namespace

int64_t BytesIn(const MemoryAccount& account, MemoryScope scope) {
  int64_t bytes = account.total();
  if (scope != MemoryScope::kProgram) bytes += account.saving;
  if (scope == MemoryScope::kSharedGpu || scope == MemoryScope::kGpu) bytes += account.context;
  if (scope == MemoryScope::kGpu) bytes += account.communicator;
  return bytes;
}

const MemoryAccount& FullestRank(const Plan& plan, MemoryScope scope) {
  return *std::ranges::max_element(plan.memory_of_pp_rank, {},
                                   [&](const MemoryAccount& account) { return BytesIn(account, scope); });
}

int64_t MemoryLimit(double bytes, MemoryScope scope, double share) {
  const double reserved = scope == MemoryScope::kProcess ? kReservedBytes : 0;
  return static_cast<int64_t>(std::max(0.0, share * (bytes - reserved)));
}

bool CanOffloadOptimizer(const Config& config, const FillOptions& options) {
  return options.may_offload && config.zero_optimization.zero_stage >= 1 &&
         config.optimizer.type != OptimizerType::kLamb;
}

int UnitsOfLargestStage(const Plan& plan) {
  int most = 0;
  for (const UnitRange& stage : plan.stages) most = std::max(most, stage.last - stage.first + 1);
  return most;
}

double RatioOfUnits(const Plan& plan, int units) {
  const UnitRange& stage =
      *std::ranges::max_element(plan.stages, {}, [](const UnitRange& range) { return range.last - range.first; });
  if (units <= 0) return 0;
  if (units > stage.last - stage.first) return 1;
  double all = 0, before = 0;
  for (int u = stage.first; u <= stage.last; ++u) {
    all += static_cast<double>(plan.units[static_cast<size_t>(u)].padded_elements);
  }
  for (int u = stage.last; u > stage.last - units + 1; --u) {
    before += static_cast<double>(plan.units[static_cast<size_t>(u)].padded_elements);
  }
  // Half of the last unit: nothing depends on how the ratio is rounded in a file.
  const double half = static_cast<double>(plan.units[static_cast<size_t>(stage.last - units + 1)].padded_elements) / 2;
  return std::round((before + half) / all * 1e4) / 1e4;
}

std::optional<Filled> FillRecompute(const Job& job, const Config& config, const FillOptions& options,
                                    std::string* why) {
  std::optional<Plan> plan = PlanShapeOf(job, config, why);
  if (!plan) return std::nullopt;
  return RecomputeFiller(job, config, options, std::move(*plan)).Fill();
}

std::optional<Filled> Fill(const Job& job, const Config& config, const FillOptions& options, std::string* why) {
  const std::optional<Plan> shape = PlanShapeOf(job, config, why);
  if (!shape) return std::nullopt;
  const OffloadOptimizerConfig own = config.zero_optimization.offload_optimizer;
  const std::vector<int64_t> steps = PrefetchSteps(*shape, config.zero_optimization.stage3_prefetch_bucket_size);
  const bool gathers = shape->effective_zero_stage == 3;
  Config tried = config;
  if (gathers) tried.zero_optimization.stage3_prefetch_bucket_size = steps.back();
  const auto with_ratio = [&](double ratio) {
    SetRatio(tried, own, ratio);
    return FillRecompute(job, tried, options);
  };
  std::optional<Filled> filled = with_ratio(0);
  if (!filled->fits && CanOffloadOptimizer(config, options)) {
    // With everything made again, the fewest units on the host that fit; then what is left free keeps activations.
    Config least = filled->config;
    const auto bytes = [&](int units) {
      SetRatio(least, own, RatioOfUnits(*shape, units));
      return options.Needs(*PlanOf(job, least));
    };
    const int all = UnitsOfLargestStage(*shape);
    const bool in_part = shape->zero_stage == 3;
    const int units = in_part ? SmallestThatFits(1, all, options.limit_bytes, bytes) : all;
    filled = with_ratio(RatioOfUnits(*shape, std::min(units, all)));
  }
  if (gathers && filled->fits) DeepenPrefetch(job, options, steps, *filled);
  return filled;
}

std::optional<Filled> FillOwn(const Job& job, const FillOptions& options) {
  std::optional<Filled> filled = Fill(job, job.config, options);
  if (filled) RecordChoice(filled->config);
  return filled;
}

std::string DescribeFill(const Filled& filled, const FillOptions& options) {
  const OffloadOptimizerConfig& offload = filled.config.zero_optimization.offload_optimizer;
  return fmt::format("made again: {}; optimizer offloaded: {:.3g}; planned {} of {} that a rank may take",
                     DescribeRecompute(filled.plan), offload.device == OffloadDevice::kNone ? 0 : offload.ratio,
                     FormatBytes(options.Needs(filled.plan)), FormatBytes(options.limit_bytes));
}

}  // namespace trireme
