#include "tests/ranks/trainer/tiny_run.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"
#include "engine/data/sampler.h"
#include "tests/support/run_threads.h"

namespace trireme::test {

TrainerSetup SetupOf(const TinyRun& run, int rank) {
  TrainerSetup setup;
  ModelSpec& model = setup.model;
  model.name = "tiny";
  model.num_layers = run.layers;
  model.hidden_size = 24;
  model.num_attention_heads = model.num_key_value_heads = run.heads;
  model.intermediate_size = 96;
  model.vocab_size = 61;
  model.padded_vocab_size = (64 + run.tp - 1) / run.tp * run.tp;  // every tp rank has tokens, the last one padding too
  model.max_position_embeddings = 16;
  model.tie_word_embeddings = run.tied;
  if (run.model) model = *run.model;
  Config& config = setup.config;
  config.fp64 = run.fp64;
  config.bf16.enabled = run.bf16;
  config.fp16.enabled = run.fp16;
  config.fp16.loss_scale = run.loss_scale;
  config.fp16.initial_scale_power = run.initial_scale_power;
  config.fp16.loss_scale_window = run.loss_scale_window;
  config.fp16.hysteresis = run.hysteresis;
  const int64_t dp = run.world / run.pp / run.tp;
  config.batch = {run.global_batch, run.global_batch / dp / run.accumulation, run.accumulation};
  config.optimizer.type = run.sgd ? OptimizerType::kSgd : OptimizerType::kAdamW;
  config.optimizer.lr = run.sgd ? 0.03 : 1e-3;
  config.optimizer.momentum = run.sgd ? 0.9 : 0;
  config.optimizer.weight_decay = 0.1;
  if (run.optimizer) config.optimizer = *run.optimizer;
  config.zero_optimization.zero_stage = run.zero_stage;
  config.zero_optimization.reduce_bucket_size = config.zero_optimization.allgather_bucket_size = run.bucket;
  config.zero_optimization.stage3_prefetch_bucket_size = run.bucket;
  const OffloadDevice place = run.nvme.empty() ? OffloadDevice::kCpu : OffloadDevice::kNvme;
  config.zero_optimization.offload_optimizer.nvme_path = config.zero_optimization.offload_param.nvme_path = run.nvme;
  if (run.offload_optimizer > 0) config.zero_optimization.offload_optimizer.device = place;
  config.zero_optimization.offload_optimizer.ratio = run.offload_optimizer;
  if (run.offload_param) config.zero_optimization.offload_param.device = place;
  config.trireme.fill = run.fill_bytes > 0;
  setup.memory_limits.device_bytes = run.fill_bytes;
  config.gradient_clipping = run.clip;
  config.world_size = run.world;
  config.dp_size = dp;
  config.tensor_parallel = {run.tp, run.sequence_parallel};
  config.pipeline_parallel = {run.pp, run.virtual_stages, run.schedule, "parameters"};
  setup.sequence_length = 11;
  if (run.max_tokens > 0) {
    setup.sequence_length = 16;
    config.batch = {run.global_batch, 1, run.global_batch / dp};
    DynamicBatchingConfig& dynamic = config.data_efficiency.dynamic_batching;
    dynamic.enabled = true;
    dynamic.max_tokens = run.max_tokens;
    dynamic.lr_scaling_method = run.scaling;
  }
  setup.train_iters = run.steps;
  setup.recompute = run.recompute;
  config.recompute = run.activations;
  setup.hidden_dropout = run.dropout;
  if (run.modules) setup.modules = run.modules(rank);
  setup.inject_overflow = run.inject_overflow;
  setup.inject_values = run.inject_values;
  config.trireme.check_replicas_every = run.check_replicas_every;
  config.trireme.find_bad_value = run.find_bad_value;
  if (run.before_instruction) {
    setup.before_instruction = [run, rank](const Instruction& instruction, int64_t) {
      run.before_instruction(rank, instruction);
    };
  }
  return setup;
}

TokenFill SyntheticFill(const Trainer& trainer) {
  const BatchPlan batch = trainer.plan().batch;
  const int64_t consumed = trainer.consumed_samples(), vocab = trainer.plan().model.vocab_size;
  const int dp_size = trainer.plan().topology.dp_size, rank = const_cast<Trainer&>(trainer).state().dp_rank();
  return [=](int64_t micro_batch, const at::Tensor& tokens) {
    const int64_t first = data::FirstSample(consumed, micro_batch, rank, dp_size, batch.micro_batch_size);
    int32_t* out = tokens.mutable_data_ptr<int32_t>();
    for (int64_t s = 0; s < batch.micro_batch_size; ++s) {
      uint64_t x = static_cast<uint64_t>(first + s) * 2654435761u + 12345;
      for (int64_t i = 0; i <= batch.sequence_length; ++i) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        out[s * (batch.sequence_length + 1) + i] = static_cast<int32_t>((x >> 33) % static_cast<uint64_t>(vocab));
      }
    }
  };
}

void Collect(Trainer& trainer, Weights& weights) {
  const RankState& state = trainer.state();
  for (const OwnedSlice& slice : state.OwnedSlices()) {
    int64_t logical = 1;
    for (const int64_t extent : slice.segment->parameter.shape) logical *= extent;
    std::vector<double>& whole = weights[slice.segment->parameter.name];
    whole.resize(static_cast<size_t>(logical), NAN);
    const at::Tensor part =
        state.OptimizerState(slice.unit, 0).narrow(0, slice.own_begin, slice.count).cpu().to(at::kDouble).contiguous();
    for (const HeldRun& run : HeldRuns(slice.segment->parameter, state.tp_rank())) {
      const int64_t begin = std::max(run.held_begin, slice.held_begin),
                    end = std::min(run.held_begin + run.count, slice.held_begin + slice.count);
      for (int64_t i = begin; i < end; ++i) {
        double& element = whole[static_cast<size_t>(run.whole_begin + i - run.held_begin)];
        const double mine = part.const_data_ptr<double>()[i - slice.held_begin];
        element = std::isnan(element) || element == mine ? mine : INFINITY;
      }
    }
  }
}

bool ReplicaEquals(Trainer& trainer, const Weights& masters) {
  const RankState& state = trainer.state();
  if (trainer.plan().effective_zero_stage == 3) return true;
  for (const int u : state.held_units()) {
    const at::Tensor& flat = state.weights(u);
    for (const Segment& segment : trainer.plan().units[static_cast<size_t>(u)].segments) {
      const at::Tensor whole = at::tensor(masters.at(segment.parameter.name), at::kDouble).to(flat.options());
      for (const HeldRun& run : HeldRuns(segment.parameter, state.tp_rank())) {
        const at::Tensor mine = flat.narrow(0, segment.begin + run.held_begin, run.count);
        if (!at::equal(mine, whole.narrow(0, run.whole_begin, run.count))) return false;
      }
    }
  }
  return true;
}

namespace {

// 23 samples: no multiple of any batch.
class SyntheticSamples : public data::BatchSource {
 public:
  int64_t num_samples() const override { return 23; }
  int64_t seq_length() const override { return 11; }
  void Fill(int64_t first, int64_t count, std::span<int32_t> tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>((static_cast<size_t>(first) * 31 + i * 7 + i * i) % 61);
    (void)count;
  }
};

}  // namespace

void TrainRank(const TinyRun& run, Trainer& trainer, std::vector<double>& losses, std::vector<double>& norms,
               std::vector<double>* scales) {
  if (run.load.empty()) {
    trainer.InitialiseWeights(7);
  } else {
    trainer.Load(run.load);
  }
  while (trainer.steps_finished() < run.steps) {
    if (run.next) {
      trainer.StartStep(run.next(trainer));
    } else {
      trainer.StartStep(SyntheticFill(trainer));
    }
    const StepResult result = trainer.FinishStep();
    losses.push_back(result.loss);
    norms.push_back(std::isfinite(result.grad_norm) ? result.grad_norm : -1);
    if (scales != nullptr) scales->push_back(result.loss_scale);
    if (run.evaluates && trainer.steps_finished() % 2 == 0) trainer.Evaluate(std::make_shared<SyntheticSamples>(), 0);
  }
  trainer.executor().Drain();
  if (!run.save.empty()) trainer.Save(run.save, std::nullopt);
}

Curve Train(const TinyRun& run, std::shared_ptr<InProcessWorld> comms) {
  if (!comms) comms = MakeInProcessWorld(run.world, std::chrono::seconds(60));
  struct Rank {
    std::unique_ptr<Trainer> trainer;
    std::vector<double> losses, norms, scales;
  };
  std::vector<Rank> ranks(static_cast<size_t>(run.world));
  Curve curve;
  curve.failed = RunThreadRanks(comms, [&](ThreadRank& self) {
    RankWorld world;
    world.rank = self.rank;
    world.world_size = self.world;
    world.device = run.device;
    world.make_group = [&run, make = self.GroupMaker()](const std::string& name, const std::vector<int>& members) {
      return run.carry ? run.carry(make(name, members)) : make(name, members);
    };
    world.world = run.carry ? run.carry(self.MakeCommunicator("world")) : self.MakeCommunicator("world");
    Rank& mine = ranks[static_cast<size_t>(self.rank)];
    mine.trainer = std::make_unique<Trainer>(SetupOf(run, self.rank), std::move(world));
    TrainRank(run, *mine.trainer, mine.losses, mine.norms, &mine.scales);
  });
  if (!curve.failed.empty()) return curve;
  for (Rank& rank : ranks) Collect(*rank.trainer, curve.weights);
  curve.losses = ranks[0].losses;
  curve.scales = ranks[0].scales;
  curve.skips = ranks[0].trainer->skips();
  curve.norms = ranks[0].norms;
  for (Rank& rank : ranks) {
    curve.ranks_agree =
        curve.ranks_agree && rank.losses == curve.losses && rank.norms == curve.norms && rank.scales == curve.scales;
    curve.replicas_equal = curve.replicas_equal && ReplicaEquals(*rank.trainer, curve.weights);
  }
  return curve;
}

double RelativeDifference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]) / std::max(std::abs(b[i]), 1e-30);
    largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
  }
  return largest;
}

double WeightDifference(const Weights& a, const Weights& b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (const auto& [name, want] : b) {
    const auto got = a.find(name);
    if (got == a.end() || got->second.size() != want.size()) return INFINITY;
    const bool fused_bias = name.ends_with("c_attn.bias");  // q | k | v
    for (size_t i = 0; i < want.size(); ++i) {
      if (fused_bias && i >= want.size() / 3 && i < 2 * want.size() / 3) continue;
      difference += (got->second[i] - want[i]) * (got->second[i] - want[i]);
      norm += want[i] * want[i];
    }
  }
  return std::isnan(difference) ? INFINITY : std::sqrt(difference / norm);
}

std::vector<OperationCount> OperationsOfTraining(const InProcessWorld& comms) {
  std::vector<OperationCount> operations = comms.Operations();
  std::erase_if(operations, [](const OperationCount& operation) {
    return operation.group == "world" && operation.op == OpKind::kAllGather;
  });
  return operations;
}

}  // namespace trireme::test
