#include "engine/advise/changes.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/shell_text.h"
#include "engine/schedule/predict.h"
#include "parsers/layout_text.h"

namespace trireme {
namespace {

std::optional<double> StepSeconds(const Plan& plan, const Cluster* cluster) {
  if (cluster == nullptr) return std::nullopt;
  try {
    return Predict(plan, *cluster).step_seconds;
  } catch (const Error&) {  // ranks that the cluster has no link between
    return std::nullopt;
  }
}

class Changer {
 public:
  Changer(const Job& job, const FillOptions& options, int64_t ranks_per_node, const Cluster* cluster)
      : job_(job), options_(options), ranks_per_node_(ranks_per_node), cluster_(cluster), own_(LayoutOf(job.config)) {
    if (const std::optional<Plan> plan = PlanShapeOf(job, job.config)) own_seconds_ = StepSeconds(*plan, cluster);
  }

  std::vector<Change> All() {
    SmallerMicroBatch();
    LessKept();
    SplitSequences();
    HigherStage();
    OffloadOptimizer();
    OffloadWeights();
    MoreTensorParallel();
    MorePipeline();
    return std::move(found_);
  }

  // Where single changes are not enough: what fills the layout (fill.h), then with micro-batches of one sequence, then
  // at ZeRO 3.
  std::vector<Change> Several(size_t wanted) {
    Layout layout = own_;
    FillAndTake(layout);
    if (!config().data_efficiency.dynamic_batching.enabled && found_.size() < wanted && layout.micro_batch > 1) {
      layout.micro_batch = 1;
      FillAndTake(layout);
    }
    if (found_.size() < wanted && layout.zero_stage < 3) {
      layout.zero_stage = 3;
      FillAndTake(layout);
    }
    return std::move(found_);
  }

 private:
  using Keys = std::vector<std::pair<std::string, std::string>>;

  const Config& config() const { return job_.config; }

  // Whether the config fits; then it is among the changes.
  bool Take(const Config& changed, const std::string& what, Keys keys) {
    std::optional<Plan> plan = PlanOf(job_, changed);
    if (!plan || !options_.Fits(*plan)) return false;
    const int64_t needed = options_.Needs(*plan);
    Change change{what, std::move(keys), changed, std::move(*plan), needed, std::nullopt};
    const std::optional<double> seconds = StepSeconds(change.plan, cluster_);
    if (seconds && own_seconds_) change.step_ratio = *seconds / *own_seconds_;
    found_.push_back(std::move(change));
    return true;
  }

  Keys BatchKeys(const Config& changed) const {
    return {{"train_micro_batch_size_per_gpu", std::to_string(changed.batch.train_micro_batch_size_per_gpu)},
            {"gradient_accumulation_steps", std::to_string(changed.batch.gradient_accumulation_steps)}};
  }

  void FillAndTake(const Layout& layout) {
    const std::optional<Filled> filled = Fill(job_, WithLayout(config(), layout), options_);
    if (!filled || !filled->fits) return;
    const Layout to = LayoutOf(filled->config);
    const ZeroConfig& zero = filled->config.zero_optimization;
    std::string what;
    Keys keys;
    const auto add = [&](const std::string& text, const std::string& key, const std::string& value) {
      if (!text.empty()) what += (what.empty() ? "" : ", ") + text;
      keys.emplace_back(key, value);
    };
    if (to.micro_batch != own_.micro_batch) {
      what = fmt::format("train_micro_batch_size_per_gpu {} -> {}", own_.micro_batch, to.micro_batch);
      keys = BatchKeys(filled->config);
    }
    if (to.zero_stage != own_.zero_stage) {
      add(fmt::format("zero_optimization.stage {} -> {}", own_.zero_stage, to.zero_stage), "zero_optimization.stage",
          std::to_string(to.zero_stage));
    }
    if (to.prefetch_elements != own_.prefetch_elements) {
      add("less gathered ahead", "zero_optimization.stage3_prefetch_bucket_size", std::to_string(to.prefetch_elements));
    }
    const bool keeps_as_before = own_.recompute.runs.empty() && DescribeRecompute(filled->plan) == "nothing";
    if (to.recompute.runs != own_.recompute.runs && !keeps_as_before) {
      add("recompute " + DescribeRecompute(filled->plan), "trireme.recompute", RecomputeText(to.recompute.runs));
    }
    if (to.offload_ratio() != own_.offload_ratio()) {
      add(fmt::format("offload_optimizer of {:.3g} of the elements", to.offload_ratio()),
          "zero_optimization.offload_optimizer.device",
          zero.offload_optimizer.device == OffloadDevice::kNvme  ? "nvme"
          : zero.offload_optimizer.device == OffloadDevice::kCpu ? "cpu"
                                                                 : "none");
      if (to.zero_stage == 3) {
        add("", "zero_optimization.offload_optimizer.ratio", fmt::format("{}", zero.offload_optimizer.ratio));
      }
    }
    Take(filled->config, what, std::move(keys));
  }

  void SmallerMicroBatch() {
    const int64_t per_rank = config().batch.train_batch_size / config().dp_size;
    for (int64_t micro = own_.micro_batch - 1; micro >= 1; --micro) {
      if (per_rank % micro != 0) continue;
      Layout layout = own_;
      layout.micro_batch = micro;
      const Config changed = WithLayout(config(), layout);
      const std::string what =
          fmt::format("train_micro_batch_size_per_gpu {} -> {} (accumulation {} -> {})", own_.micro_batch, micro,
                      config().batch.gradient_accumulation_steps, changed.batch.gradient_accumulation_steps);
      if (Take(changed, what, BatchKeys(changed))) return;
    }
  }

  void LessKept() {
    const std::optional<Filled> filled = FillRecompute(job_, config(), options_);
    if (!filled || !filled->fits) return;
    const std::string runs = RecomputeText(filled->config.recompute.runs);
    Take(filled->config, "recompute " + DescribeRecompute(filled->plan), {{"trireme.recompute", runs}});
  }

  void SplitSequences() {
    if (own_.tp == 1 || own_.sequence_parallel) return;
    Layout layout = own_;
    layout.sequence_parallel = true;
    Take(WithLayout(config(), layout), "trireme.sequence_parallel true", {{"trireme.sequence_parallel", "true"}});
  }

  void HigherStage() {
    for (int stage = own_.zero_stage + 1; stage <= 3; ++stage) {
      Layout layout = own_;
      layout.zero_stage = stage;
      if (Take(WithLayout(config(), layout), fmt::format("zero_optimization.stage {} -> {}", own_.zero_stage, stage),
               {{"zero_optimization.stage", std::to_string(stage)}})) {
        return;
      }
    }
  }

  void OffloadOptimizer() {
    if (!CanOffloadOptimizer(config(), options_)) return;
    Config changed = config();
    OffloadOptimizerConfig& offload = changed.zero_optimization.offload_optimizer;
    if (offload.device == OffloadDevice::kNone) offload.device = OffloadDevice::kCpu;
    const std::optional<Plan> shape = PlanShapeOf(job_, changed);
    if (!shape) return;
    const double before = own_.offload_ratio();
    const int all = UnitsOfLargestStage(*shape);
    for (int units = own_.zero_stage == 3 ? 1 : all; units <= all; ++units) {
      offload.ratio = RatioOfUnits(*shape, units);
      if (offload.ratio <= before) continue;
      Keys keys = {
          {"zero_optimization.offload_optimizer.device", offload.device == OffloadDevice::kNvme ? "nvme" : "cpu"}};
      if (own_.zero_stage == 3) {
        keys.emplace_back("zero_optimization.offload_optimizer.ratio", fmt::format("{}", offload.ratio));
      }
      if (Take(changed, fmt::format("offload_optimizer of {:.3g} of the elements", offload.ratio), keys)) return;
    }
  }

  void OffloadWeights() {
    if (!options_.may_offload || own_.zero_stage != 3 || own_.offload_param.device != OffloadDevice::kNone) return;
    Layout layout = own_;
    layout.offload_param.device = OffloadDevice::kCpu;
    Take(WithLayout(config(), layout), "offload_param to the host",
         {{"zero_optimization.offload_param.device", "cpu"}});
  }

  // Larger sizes of an axis that leave the batch whole, the smallest that fits.
  template <typename Allowed>
  void Grow(int64_t Layout::*axis, const char* key, int64_t most, Allowed allowed) {
    const int64_t world = config().world_size, batch = config().batch.train_batch_size;
    for (int64_t size = own_.*axis + 1; size <= most; ++size) {
      Layout layout = own_;
      layout.*axis = size;
      const int64_t parts = layout.tp * layout.pp;
      if (!allowed(size) || world % parts != 0 || batch % (world / parts * layout.micro_batch) != 0) continue;
      const Config changed = WithLayout(config(), layout);
      Keys keys = BatchKeys(changed);
      keys.insert(keys.begin(), {key, std::to_string(size)});
      if (Take(changed, fmt::format("{} {} -> {}", key, own_.*axis, size), keys)) return;
    }
  }
  void MoreTensorParallel() {
    const int64_t node = std::min(ranks_per_node_, config().world_size);
    Grow(&Layout::tp, "tensor_parallel.tp_size", node, [&](int64_t size) { return node % size == 0; });
  }
  void MorePipeline() {
    Grow(&Layout::pp, "pipeline_parallel.pp_size", job_.model.num_layers, [](int64_t) { return true; });
  }

  const Job& job_;
  const FillOptions& options_;
  const int64_t ranks_per_node_;
  const Cluster* cluster_;
  const Layout own_;
  std::optional<double> own_seconds_;
  std::vector<Change> found_;
};

}  // namespace

std::vector<Change> CheapestChanges(const Job& job, const FillOptions& options, int64_t ranks_per_node,
                                    const Cluster* cluster, size_t wanted) {
  Changer changer(job, options, ranks_per_node, cluster);
  const auto by_step = [](const Change& change) { return change.step_ratio.value_or(1e9); };
  std::vector<Change> changes = changer.All();
  std::ranges::stable_sort(changes, {}, by_step);
  if (changes.size() < wanted) {
    std::vector<Change> several = changer.Several(wanted - changes.size());
    std::ranges::stable_sort(several, {}, by_step);
    for (Change& change : several) {
      const bool known = std::ranges::find(changes, change.what, &Change::what) != changes.end();
      if (!known) changes.push_back(std::move(change));
    }
  }
  if (changes.size() > wanted) changes.resize(wanted);
  return changes;
}

std::string WithFlags(const Change& change) {
  std::string text = "--with";
  for (const auto& [key, value] : change.keys) text += " " + ShellWord(key + "=" + value);
  return text;
}

}  // namespace trireme
