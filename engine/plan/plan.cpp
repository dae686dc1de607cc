#include "engine/plan/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "engine/plan/families/family.h"
#include "engine/plan/families/rope.h"
#include "engine/plan/parts.h"

namespace trireme {
namespace {

[[noreturn]] void Fail(const ModelSpec& model, const char* id, const std::string& what, const std::string& fix) {
  throw Error(ErrorCode::kConfig, id, what, model.name, fix);
}

void CheckHeads(const ModelSpec& model) {
  const int64_t h = model.hidden_size, heads = model.num_attention_heads, key_value = model.KeyValueHeads();
  const bool free_heads = TraitsOf(model.family).qkv.size() == 3;  // of any size, and grouped
  if (model.head_size == 0 && h % heads != 0) {
    Fail(model, "PLN005", fmt::format("hidden size {} does not divide by {} attention heads", h, heads),
         fmt::format("use a hidden size that is a multiple of {}, such as {}", heads, (h / heads + 1) * heads));
  }
  if (!free_heads && model.HeadSize() * heads != h) {
    Fail(model, "PLN005", fmt::format("{} heads of {} channels, hidden size {}", heads, model.HeadSize(), h),
         "in this family the heads make up the hidden size; leave the head size out");
  }
  if (heads % key_value != 0) {
    Fail(model, "PLN006", fmt::format("{} key-value heads, {} attention heads", key_value, heads),
         "the attention heads must be a multiple of the key-value heads");
  }
  if (!free_heads && key_value != heads) {
    Fail(model, "PLN006", fmt::format("{} key-value heads, {} attention heads", key_value, heads),
         "GPT-2 and GPT-NeoX have as many of one as of the other");
  }
}

void CheckFamily(const ModelSpec& model) {
  const bool gated = TraitsOf(model.family).gated();
  if (gated != (model.activation == Activation::kSilu)) {
    Fail(model, "PLN008", gated ? "the family's MLP is gated, the activation is not SiLU" : "the activation is SiLU",
         gated ? "give hidden_act silu" : "give gelu or gelu_new: a gated MLP comes with LLaMA and Qwen2");
  }
  if (!model.rotary()) return;
  const RopeSpec& rope = model.rope;
  const int64_t pairs = RotatedPairs(rope, model.HeadSize());
  if (pairs < 1 || 2 * pairs > model.HeadSize() || (rope.scaling == RopeSpec::Scaling::kDynamic && pairs < 2)) {
    Fail(model, "PLN009", fmt::format("rotary positions turn {} channels of a head of {}", 2 * pairs, model.HeadSize()),
         "give a share of rotated channels that leaves an even number, at least 2 (4 where they stretch dynamically)");
  }
  const auto size = static_cast<int64_t>(std::min(rope.short_factor.size(), rope.long_factor.size()));
  if (rope.scaling == RopeSpec::Scaling::kLongRope && size < pairs) {
    Fail(model, "PLN009", fmt::format("{} short or long factors for {} rotated pairs of channels", size, pairs),
         "give short_factor and long_factor one number a pair");
  }
}

void CheckModel(const ModelSpec& model, int64_t sequence_length) {
  if (model.num_layers < 1 || model.hidden_size < 1 || model.num_attention_heads < 1 || model.intermediate_size < 1 ||
      model.vocab_size < 1 || model.max_position_embeddings < 1 || model.num_key_value_heads < 0) {
    Fail(model, "PLN004",
         fmt::format("sizes must be positive: {} layers, hidden size {}, {} heads, {} key-value heads, intermediate "
                     "size {}, vocabulary {}, {} positions",
                     model.num_layers, model.hidden_size, model.num_attention_heads, model.num_key_value_heads,
                     model.intermediate_size, model.vocab_size, model.max_position_embeddings),
         "give all of them, or a --model_name");
  }
  CheckHeads(model);
  CheckFamily(model);
  const int64_t positions = MaxPositions(model);
  if (sequence_length < 1 || sequence_length > positions) {
    Fail(model, "PLN007", fmt::format("sequences of {} tokens, the model has {} positions", sequence_length, positions),
         fmt::format("set --seq-length to a value from 1 to {}, or give the model more positions", positions));
  }
}

// A quarter of the 2^63 bytes that are counted: the rest is for what the estimates below leave out.
constexpr double kMostBytes = 2.3e18;

// Estimates from above what a step of all ranks holds and sends, before anything is counted exactly.
void CheckCountable(const Plan& plan) {
  const ModelSpec& model = plan.model;
  const BatchPlan& batch = plan.batch;
  const auto number = [](int64_t count) { return static_cast<double>(count); };
  const double layers = number(model.num_layers), h = number(model.hidden_size);
  const double heads = number(model.num_attention_heads + model.KeyValueHeads()) * number(model.HeadSize());
  const double width = h + number(model.intermediate_size) + heads;
  const double rows = number(std::max(model.vocab_size, model.padded_vocab_size));
  const double parameters = 4 * layers * h * width + (2 * rows + number(model.max_position_embeddings)) * h;
  if (100 * parameters > kMostBytes) {
    Fail(model, "PLN032",
         fmt::format("{} layers of hidden size {}, MLP {}, vocabulary {}, {} positions: about {:.2g} parameters, whose "
                     "bytes 64 bits do not count",
                     model.num_layers, model.hidden_size, model.intermediate_size, model.vocab_size,
                     model.max_position_embeddings, parameters),
         "write the model's real sizes");
  }
  const double micro_batches = number(batch.num_micro_batches);
  const double packed = number(batch.dynamic.max_tokens) * micro_batches * number(plan.topology.dp_size);
  const double tokens = std::max(number(batch.train_batch_size) * number(batch.sequence_length), packed);
  const double bytes = 64 * tokens * (layers * width + rows) + parameters * (100 + 16 * micro_batches);
  if (bytes <= kMostBytes) return;
  throw Error(ErrorCode::kConfig, "PLN032",
              fmt::format("{} (micro) x {} (accumulation) x {} (dp) sequences of {} tokens through {} layers of hidden "
                          "size {}: about {:.2g} bytes a step, which 64 bits do not count",
                          batch.micro_batch_size, batch.num_micro_batches, plan.topology.dp_size, batch.sequence_length,
                          model.num_layers, model.hidden_size, bytes),
              batch.is_dynamic() ? "data_efficiency.data_sampling.dynamic_batching.max_tokens" : "train_batch_size",
              "set a smaller train_batch_size, micro-batch, accumulation or --seq-length");
}

PlanDTypes ResolveDTypes(const Config& config, bool fp64) {
  if (fp64 || config.fp64) return {DType::kFloat64, DType::kFloat64, DType::kFloat64, DType::kFloat64};
  PlanDTypes dtypes;
  dtypes.compute = ComputeDType(config);
  dtypes.master = dtypes.compute == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  dtypes.accumulate = GradAccumDType(config);
  dtypes.communicate = CommunicationDType(config);
  return dtypes;
}

// Positions that stretch with what is looked at would make a token's angles depend on its neighbours' padding.
void CheckDynamicBatches(const Plan& plan) {
  if (!plan.batch.is_dynamic() || !plan.model.rotary()) return;
  const int64_t longest = plan.batch.sequence_length;
  if (MakeRopeFrequencies(plan.model, 1) == MakeRopeFrequencies(plan.model, longest)) return;
  throw Error(ErrorCode::kConfig, "PLN025",
              fmt::format("dynamic batching of sequences of up to {} tokens, and this model's rotary positions depend "
                          "on a sequence's length there",
                          longest),
              "data_efficiency.data_sampling.dynamic_batching",
              "set --seq-length to the positions that the model had before they were stretched, or switch it off");
}

// Each tp rank has whole heads, and an equal part of everything that is split.
void CheckTensorParallel(const Plan& plan, bool own_modules) {
  const ModelSpec& model = plan.model;
  const int64_t tp = plan.topology.tp_size;
  if (own_modules && tp > 1) {
    throw Error(ErrorCode::kConfig, "PLN001", fmt::format("tp_size {}, and modules of one's own are not split", tp),
                "tensor_parallel.tp_size", "set it to 1; pipeline stages and ZeRO divide the weights too");
  }
  std::vector<std::pair<int64_t, const char*>> sizes = {
      {model.num_attention_heads, "attention heads"},
      {model.KeyValueHeads(), "key-value heads"},
      {model.intermediate_size, "channels of the MLP"},
      {std::max(model.vocab_size, model.padded_vocab_size), "rows of the padded vocabulary"}};
  if (plan.sequence_parallel && !plan.batch.is_dynamic()) {  // else every length divides (batch_plan.cpp)
    sizes.emplace_back(plan.batch.tokens_per_micro_batch(), "tokens of a micro-batch (sequence_parallel)");
  }
  std::string failing, legal;
  for (const auto& [size, what] : sizes) {
    if (size % tp != 0) failing += fmt::format("{}{} {}", failing.empty() ? "" : ", ", size, what);
  }
  if (failing.empty()) return;
  // The vocabulary is padded for whatever tp_size is asked.
  for (int64_t other = 1; other <= model.KeyValueHeads(); ++other) {
    const bool fits = std::ranges::all_of(
        sizes, [&](const auto& size) { return size.first % other == 0 || size.first == model.padded_vocab_size; });
    if (fits) legal += fmt::format("{}{}", legal.empty() ? "" : ", ", other);
  }
  throw Error(ErrorCode::kConfig, "PLN001", fmt::format("tp_size {} does not divide {}", tp, failing),
              "tensor_parallel.tp_size",
              fmt::format("this model can be split by {}; pipeline stages and ZeRO divide the weights too", legal));
}

void CheckPipeline(const Plan& plan) {
  const auto fail = [](const std::string& what, const std::string& fix) {
    throw Error(ErrorCode::kConfig, "PLN023", what, "trireme.pipeline", fix);
  };
  const int pp = plan.topology.pp_size;
  if (plan.virtual_stages > 1 && pp == 1) {
    fail(fmt::format("{} virtual stages on one pipeline rank", plan.virtual_stages),
         "remove virtual_stages, or raise pipeline_parallel.pp_size");
  }
  if (plan.virtual_stages > 1 && plan.pipeline_schedule != PipelineSchedule::kOneForwardOneBackward) {
    fail(fmt::format("{} virtual stages with a schedule that has one", plan.virtual_stages),
         "set schedule to 1f1b, or virtual_stages to 1");
  }
  if (plan.virtual_stages > 1 && plan.batch.num_micro_batches % pp != 0) {
    fail(fmt::format("{} virtual stages need a number of micro-batches that {} pipeline ranks divide, not {}",
                     plan.virtual_stages, pp, plan.batch.num_micro_batches),
         fmt::format("set gradient_accumulation_steps to a multiple of {}, or virtual_stages to 1", pp));
  }
  const bool splits = std::ranges::all_of(plan.units, [](const UnitLayout& unit) {
    return unit.spec.kind != UnitKind::kBlock || unit.spec.splits_weights;
  });
  if (plan.pipeline_schedule == PipelineSchedule::kZeroBubble && !splits) {
    fail("zero-bubble puts weight gradients off, and a unit of this model makes both gradients in one piece",
         "set schedule to 1f1b");
  }
}

std::vector<UnitSpec> SpecsOf(const ModelSpec& model, const FamilyOptions& options,
                              const std::vector<UnitSpec>& own_units) {
  std::vector<UnitSpec> specs = MakeUnitSpecs(model, options);
  for (const UnitSpec& own : own_units) {
    const auto place = std::ranges::find_if(
        specs, [&](const UnitSpec& spec) { return spec.kind == own.kind && spec.layer == own.layer; });
    TRIREME_CHECK(place != specs.end(), fmt::format("{} of {} layers", own.name, model.num_layers));
    *place = own;
  }
  return specs;
}

// Checkpoints go by names: two tensors of one name would be one.
void CountOwnParameters(Plan& plan) {
  std::set<std::string> names;
  plan.num_parameters = 0;
  for (const UnitLayout& unit : plan.units) {
    for (const Segment& segment : unit.segments) {
      const ParameterSpec& parameter = segment.parameter;
      plan.num_parameters +=
          std::accumulate(parameter.shape.begin(), parameter.shape.end(), int64_t{1}, std::multiplies<>());
      if (names.insert(parameter.name).second) continue;
      throw Error(ErrorCode::kConfig, "PLN020",
                  fmt::format("is the name of two tensors, the second in unit {}", unit.spec.name), parameter.name,
                  "give each own module another name");
    }
  }
}

// Of each stage the last units, whose gradients are ready first, until they hold `ratio` of its elements. A unit that
// two ranks hold (a tied weight's) is in the same place on both.
void PlaceOptimizer(Plan& plan, double ratio) {
  for (const UnitRange& stage : plan.stages) {
    double left = 0;
    for (int u = stage.first; u <= stage.last; ++u) {
      left += ratio * static_cast<double>(plan.units[static_cast<size_t>(u)].padded_elements);
    }
    for (int u = stage.last; u >= stage.first && left > 0; --u) {
      UnitLayout& unit = plan.units[static_cast<size_t>(u)];
      unit.optimizer_on_host = true;
      left -= static_cast<double>(unit.padded_elements);
    }
  }
}

int MomentsOf(const OptimizerConfig& optimizer) {
  switch (optimizer.type) {
    case OptimizerType::kAdam:
    case OptimizerType::kAdamW:
    case OptimizerType::kLamb:
      return 2;
    case OptimizerType::kAdagrad:
    case OptimizerType::kLion:
      return 1;
    case OptimizerType::kSgd:
      return optimizer.momentum != 0 ? 1 : 0;
  }
  return 0;
}

}  // namespace

int Plan::StageOf(int unit) const {
  int stage = 0;
  while (stages[static_cast<size_t>(stage)].last < unit) ++stage;
  return stage;
}

bool Plan::offloads() const { return weights_on_host || std::ranges::any_of(units, &UnitLayout::optimizer_on_host); }

std::vector<int> Plan::UnitsOf(int pp_rank) const {
  std::vector<int> held;
  if (tied_across_stages() && pp_rank == PpRankOf(head())) held.push_back(0);
  for (int stage = pp_rank; stage < num_stages(); stage += topology.pp_size) {
    const UnitRange& units_of_stage = stages[static_cast<size_t>(stage)];
    for (int unit = units_of_stage.first; unit <= units_of_stage.last; ++unit) held.push_back(unit);
  }
  return held;
}

int64_t WorkspaceBytes(const Plan& plan, int pp_rank) {
  const int64_t tokens = plan.batch.tokens_per_micro_batch();
  int64_t bytes = 0;
  for (const int u : plan.UnitsOf(pp_rank)) {
    const UnitSpec& spec = plan.units[static_cast<size_t>(u)].spec;
    for (const WorkspaceSpec& workspace : {spec.forward_workspace, spec.backward_workspace}) {
      bytes = std::max(bytes, tokens * workspace.bytes_per_token + workspace.fixed_bytes);
    }
  }
  return bytes;
}

int64_t LogitsBytes(const Plan& plan, int pp_rank) {
  if (plan.PpRankOf(plan.head()) != pp_rank || plan.units.back().spec.autograd) return 0;
  const int64_t vocabulary = plan.model.padded_vocab_size / plan.topology.tp_size;
  return HeadChunkTokens(plan.batch.tokens_per_micro_batch(), vocabulary) * vocabulary * SizeOf(plan.dtypes.compute);
}

int64_t UnsavedWorkspaceBytes(const Plan& plan, int64_t tokens) {
  int64_t bytes = 0;
  for (const UnitLayout& unit : plan.units) {
    const SavedLayout saved = LayOutSaved(unit.spec, plan.dtypes, tokens);
    const WorkspaceSpec& workspace = unit.spec.forward_workspace;
    bytes = std::max(bytes,
                     saved.arena_bytes + saved.pool_bytes + tokens * workspace.bytes_per_token + workspace.fixed_bytes);
  }
  return bytes;
}

Plan MakePlan(const Config& config, const ModelSpec& model, const PlanInputs& inputs) {
  CheckModel(model, inputs.sequence_length);
  Plan plan;
  plan.model = model;
  plan.topology = plan_parts::MakeTopology(config, inputs.world_size);
  plan.batch = plan_parts::MakeBatchPlan(config, plan.topology, inputs.sequence_length);
  CheckCountable(plan);
  plan.dtypes = ResolveDTypes(config, inputs.fp64);
  plan.zero_stage = config.zero_optimization.zero_stage;
  const ZeroConfig& zero = config.zero_optimization;
  plan.weights_on_host = zero.offload_param.device != OffloadDevice::kNone && plan.zero_stage == 3;
  plan.effective_zero_stage = plan.topology.dp_size > 1 || plan.weights_on_host ? plan.zero_stage : 0;
  plan.moments_per_element = MomentsOf(config.optimizer);
  plan.trust_ratios = config.optimizer.type == OptimizerType::kLamb;
  plan.separate_master = plan.dtypes.compute != plan.dtypes.master;
  plan.hidden_dropout = inputs.hidden_dropout;
  plan.sequence_parallel = config.tensor_parallel.sequence_parallel && plan.topology.tp_size > 1;
  CheckTensorParallel(plan, !inputs.own_units.empty());
  CheckDynamicBatches(plan);
  const FamilyOptions options{plan.dtypes.compute,   plan.batch.sequence_length, plan.batch.tokens_per_micro_batch(),
                              inputs.decay_all,      inputs.hidden_dropout,      plan.topology.tp_size,
                              plan.sequence_parallel};
  for (UnitSpec& spec : SpecsOf(model, options, inputs.own_units)) {
    plan.units.push_back(plan_parts::LayOutUnit(std::move(spec), plan.topology.dp_size));
  }
  plan.pipeline_schedule = config.pipeline_parallel.schedule;
  plan.virtual_stages = static_cast<int>(config.pipeline_parallel.virtual_stages);
  plan.stages = plan_parts::MakeStages(plan.units, config.pipeline_parallel);
  CheckPipeline(plan);
  plan_parts::AssignRecompute(config.recompute, inputs.recompute, plan);
  plan.buckets = plan_parts::MakeBuckets(plan.units, plan.stages, zero, plan.effective_zero_stage);
  if (zero.offload_optimizer.device != OffloadDevice::kNone && plan.zero_stage >= 1) {
    TRIREME_CHECK(!plan.trust_ratios, "the parser refuses Lamb on the host");
    PlaceOptimizer(plan, zero.offload_optimizer.ratio);
  }
  plan.optimizer_on_disk = zero.offload_optimizer.device == OffloadDevice::kNvme;
  plan.weights_on_disk = zero.offload_param.device == OffloadDevice::kNvme;
  plan.pin_memory = (zero.offload_optimizer.device == OffloadDevice::kNone || zero.offload_optimizer.pin_memory) &&
                    (!plan.weights_on_host || zero.offload_param.pin_memory);
  plan.num_parameters = NumParameters(model);
  if (!inputs.own_units.empty()) CountOwnParameters(plan);
  return plan;
}

}  // namespace trireme
