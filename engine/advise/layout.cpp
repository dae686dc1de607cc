#include "engine/advise/layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "engine/base/error.h"
#include "engine/schedule/verify.h"

namespace trireme {
namespace {

std::vector<int64_t> DivisorsOf(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d * d <= number; ++d) {
    if (number % d == 0) divisors.push_back(d);
  }
  for (size_t i = divisors.size(); i-- > 0;) {
    if (divisors[i] * divisors[i] < number) divisors.push_back(number / divisors[i]);
  }
  return divisors;
}

bool CanSplit(const ModelSpec& model, int64_t tp) {
  return model.num_attention_heads % tp == 0 && model.KeyValueHeads() % tp == 0 && model.intermediate_size % tp == 0;
}

struct Order {  // in which a pipeline works
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int64_t virtual_stages = 1;
};

// 1F1B, with numbers of stages of one rank that make interleaving worth a look: doubling, up to a layer each; and
// zero-bubble. GPipe holds more and gains nothing.
std::vector<Order> Orders(const Job& job, int64_t pp, int64_t micro_batches) {
  const PipelineParallelConfig& own = job.config.pipeline_parallel;
  std::vector<Order> orders = {{}};
  if (pp == 1) return orders;
  orders.push_back({PipelineSchedule::kZeroBubble, 1});
  if (micro_batches % pp != 0) return orders;
  bool has_own = own.virtual_stages == 1;
  for (int64_t v = 2; v * pp <= job.model.num_layers; v *= 2) {
    orders.push_back({PipelineSchedule::kOneForwardOneBackward, v});
    has_own = has_own || v == own.virtual_stages;
  }
  if (!has_own) orders.push_back({PipelineSchedule::kOneForwardOneBackward, own.virtual_stages});
  return orders;
}

// The stages worth a look. Stage 0 moves and holds more than stage 1 does, but it may be what the user has.
std::vector<int> ZeroStages(const Job& job, int64_t dp) {
  const int own = job.config.zero_optimization.zero_stage;
  if (dp == 1 && !job.inputs.own_units.empty()) return {own};
  if (dp == 1) return {std::max(own, 1)};  // one rank shards nothing; its states can be offloaded from stage 1 on
  std::vector<int> stages = {1, 2, 3};
  if (own == 0) stages.insert(stages.begin(), 0);
  return stages;
}

// Ways to cut the model into stages: the config's, and by time where that is another. Stages of equal parameters have
// equal states, stages of equal time no rank that the others wait for.
std::vector<std::string> Partitions(const Job& job, Layout layout) {
  std::vector<std::string> ways = {job.config.pipeline_parallel.partition};
  if (layout.pp == 1 || ways.front() == "time") return ways;
  const auto stages = [&] {
    const std::optional<Plan> plan = PlanShapeOf(job, WithLayout(job.config, layout));
    return plan ? plan->stages : std::vector<UnitRange>{};
  };
  layout.partition = ways.front();
  const std::vector<UnitRange> own = stages();
  layout.partition = "time";
  if (stages() != own) ways.push_back(layout.partition);
  return ways;
}

}  // namespace

Layout LayoutOf(const Config& config) {
  const ZeroConfig& zero = config.zero_optimization;
  return {config.tensor_parallel.tp_size,
          config.pipeline_parallel.pp_size,
          config.pipeline_parallel.virtual_stages,
          config.pipeline_parallel.schedule,
          config.pipeline_parallel.partition,
          config.tensor_parallel.sequence_parallel,
          zero.zero_stage,
          config.batch.train_micro_batch_size_per_gpu,
          zero.offload_optimizer,
          zero.offload_param,
          zero.stage3_prefetch_bucket_size,
          config.recompute};
}

Config WithLayout(const Config& config, const Layout& layout) {
  Config other = config;
  other.tensor_parallel = {layout.tp, layout.sequence_parallel};
  PipelineParallelConfig& pipeline = other.pipeline_parallel;
  const bool as_many = layout.pp * layout.virtual_stages == pipeline.pp_size * pipeline.virtual_stages;
  const bool by_hand = layout.partition.starts_with("layers:");
  pipeline.partition = by_hand && !as_many ? PipelineParallelConfig{}.partition : layout.partition;
  pipeline.pp_size = layout.pp;
  pipeline.virtual_stages = layout.virtual_stages;
  pipeline.schedule = layout.schedule;
  other.dp_size = config.world_size / (layout.tp * layout.pp);
  const int64_t batch = config.batch.train_batch_size;
  other.batch = {batch, layout.micro_batch, batch / (layout.micro_batch * other.dp_size)};
  ZeroConfig& zero = other.zero_optimization;
  zero.zero_stage = layout.zero_stage;
  zero.offload_optimizer = layout.offload_optimizer;
  zero.offload_param = layout.offload_param;
  zero.stage3_prefetch_bucket_size = layout.prefetch_elements;
  other.recompute = layout.recompute;
  return other;
}

std::string DescribeRecompute(const Plan& plan) {
  int64_t cheap = 0, full = 0, layers = 0;
  for (const UnitLayout& unit : plan.units) {
    layers += unit.spec.kind == UnitKind::kBlock;
    cheap += unit.recompute == Recompute::kCheap;
    full += unit.recompute == Recompute::kFull && unit.spec.kind == UnitKind::kBlock;
  }
  if (cheap + full == 0) return "nothing";
  if (cheap == layers) return "cheap";
  if (full == layers) return "full";
  std::string text;
  if (full > 0) text = fmt::format("full in {}", full);
  if (cheap > 0) text += fmt::format("{}cheap in {}", text.empty() ? "" : ", ", cheap);
  return text + fmt::format(" of {} layers", layers);
}

std::string Describe(const Layout& layout, const Plan& plan) {
  const BatchPlan& batch = plan.batch;
  std::string text =
      fmt::format("tp {} x pp {} x dp {}, ZeRO {}, micro-batch {} x {}", layout.tp, layout.pp, plan.topology.dp_size,
                  layout.zero_stage, batch.micro_batch_size, batch.num_micro_batches);
  if (layout.virtual_stages > 1) text += fmt::format(", {} virtual stages", layout.virtual_stages);
  if (layout.schedule == PipelineSchedule::kZeroBubble && layout.pp > 1) text += ", zero-bubble";
  if (layout.schedule == PipelineSchedule::kGPipe && layout.pp > 1) text += ", gpipe";
  if (layout.pp > 1 && layout.partition != PipelineParallelConfig{}.partition) {
    text += fmt::format(", stages by {}", layout.partition);
  }
  if (plan.sequence_parallel) text += ", sequence parallel";
  const std::string made_again = DescribeRecompute(plan);
  if (made_again != "nothing") text += fmt::format(", recompute {}", made_again);
  if (layout.offload_ratio() > 0 && layout.zero_stage > 0) {
    text += fmt::format(", offload {:.3g} of the optimizer{}", layout.offload_ratio(),
                        plan.optimizer_on_disk ? " to NVMe" : "");
  }
  if (plan.weights_on_host) text += plan.weights_on_disk ? ", offload weights to NVMe" : ", offload weights";
  return text;
}

std::optional<Plan> PlanShapeOf(const Job& job, const Config& config, std::string* why) {
  try {
    ModelSpec model = job.model;
    const int64_t tp = config.tensor_parallel.tp_size;
    if (model.padded_vocab_size == 0 || tp != job.config.tensor_parallel.tp_size) PadVocabulary(model, tp);
    return MakePlan(config, model, job.inputs);
  } catch (const Error& error) {
    if (why != nullptr) *why = error.message();
    return std::nullopt;
  }
}

std::optional<Plan> PlanOf(const Job& job, const Config& config, std::string* why) {
  std::optional<Plan> plan = PlanShapeOf(job, config, why);
  if (plan) AccountMemory(*plan);
  return plan;
}

std::vector<Layout> EnumerateLayouts(const Job& job, int64_t ranks_per_node, int64_t* across_nodes) {
  std::vector<Layout> layouts;
  const Config& config = job.config;
  const int64_t world = job.inputs.world_size, batch = config.batch.train_batch_size;
  const bool dynamic = config.data_efficiency.dynamic_batching.enabled;
  Layout layout = LayoutOf(config);
  std::map<std::tuple<int64_t, int64_t, int64_t>, std::vector<std::string>> cuts;  // by tp, pp, virtual stages
  for (const int64_t tp : DivisorsOf(world)) {
    if (!CanSplit(job.model, tp) || (tp > 1 && !job.inputs.own_units.empty())) continue;
    const bool spans = world > ranks_per_node && ranks_per_node % tp != 0;
    for (const int64_t pp : DivisorsOf(world / tp)) {
      const int64_t dp = world / tp / pp;
      if (pp > job.model.num_layers || batch % dp != 0) continue;
      if (spans) {
        if (across_nodes != nullptr) ++*across_nodes;
        continue;
      }
      for (const int64_t micro : dynamic ? std::vector<int64_t>{1} : DivisorsOf(batch / dp)) {
        for (const Order& order : Orders(job, pp, batch / dp / micro)) {
          layout.tp = tp;
          layout.pp = pp;
          layout.schedule = order.schedule;
          layout.virtual_stages = order.virtual_stages;
          layout.micro_batch = micro;
          layout.sequence_parallel = tp > 1 && micro * job.inputs.sequence_length % tp == 0;
          const auto [ways, is_new] = cuts.try_emplace({tp, pp, order.virtual_stages});
          if (is_new) ways->second = Partitions(job, layout);
          for (const std::string& partition : ways->second) {
            for (const int zero : ZeroStages(job, dp)) {
              layout.partition = partition;
              layout.zero_stage = zero;
              layouts.push_back(layout);
            }
          }
        }
      }
    }
  }
  return layouts;
}

}  // namespace trireme
