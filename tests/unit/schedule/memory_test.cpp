// The account of memory and traffic against closed formulas (arXiv:1910.02054, 3 and 7; arXiv:2205.05198, 4).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "engine/schedule/make_program.h"
#include "engine/schedule/verify.h"
#include "parsers/model_config.h"
#include "tests/unit/plan/small_plan.h"

namespace trireme {
namespace {

Plan Accounted(const ModelSpec& model, int stage, int64_t ranks, int64_t micro_batches = 1,
               Recompute recompute = Recompute::kNone, bool bf16 = true) {
  Config config;
  config.batch = {ranks * micro_batches, 1, micro_batches};
  config.bf16.enabled = bf16;
  config.zero_optimization.zero_stage = stage;
  PlanInputs inputs;
  inputs.world_size = ranks;
  inputs.sequence_length = 1024;
  inputs.recompute = recompute;
  Plan plan = MakePlan(config, model, inputs);
  AccountMemory(plan);
  return plan;
}

Plan Accounted(const ModelSpec& model, const RecomputeConfig& activations, int64_t tp = 1) {
  Config config;
  config.batch = {1, 1, 1};
  config.bf16.enabled = true;
  config.recompute = activations;
  config.tensor_parallel.tp_size = tp;
  PlanInputs inputs;
  inputs.world_size = tp;
  inputs.sequence_length = 1024;
  Plan plan = MakePlan(config, model, inputs);
  AccountMemory(plan);
  return plan;
}

int64_t PaddedElements(const Plan& plan) {
  int64_t elements = 0;
  for (const UnitLayout& unit : plan.units) elements += unit.padded_elements;
  return elements;
}

// 2 + 4 (weights, fp32 gradients) + 4 + 8 (master, moments) bytes a parameter, each sharded from its stage on.
TEST(Memory, StatesOf1B3AreTheFormula) {
  for (const int64_t n : {2, 8, 64}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const Plan plan = Accounted(NamedModel("gpt-1.3b"), stage, n);
      const MemoryAccount& m = plan.memory;
      const int64_t psi = PaddedElements(plan);
      EXPECT_EQ(m.weights, 2 * psi / (stage >= 3 ? n : 1));
      EXPECT_EQ(m.gradients, 4 * psi / (stage >= 2 ? n : 1));
      EXPECT_EQ(m.master_weights, 4 * psi / (stage >= 1 ? n : 1));
      EXPECT_EQ(m.moments, 8 * psi / (stage >= 1 ? n : 1));
      EXPECT_LT(static_cast<double>(psi - plan.num_parameters) / static_cast<double>(plan.num_parameters), 1e-3);
    }
  }
}

TEST(Memory, TablesOfRotaryPositionsCount) {
  const MemoryAccount m = Accounted(NamedModel("llama2-7b"), 3, 8).memory;
  EXPECT_EQ(m.tables, 2 * 1024 * 64 * 4);  // cosines and sines, one a pair of a head's 128 channels
  EXPECT_EQ(m.total() - m.tables,
            m.weights + m.master_weights + m.moments + m.gradients + m.arena + m.workspace + m.pool);
  EXPECT_EQ(Accounted(NamedModel("gpt-1.3b"), 3, 8).memory.tables, 0);
}

TEST(Memory, Fp32HasNoSeparateMaster) {
  const Plan plan = Accounted(NamedModel("gpt-125m"), 1, 4, 1, Recompute::kNone, /*bf16=*/false);
  const int64_t psi = PaddedElements(plan);
  EXPECT_EQ(plan.memory.weights, 4 * psi);
  EXPECT_EQ(plan.memory.master_weights, 0);
  EXPECT_EQ(plan.memory.moments, 2 * psi);
}

// One rank: all saved activations and boundaries at the head, and nothing else; with recomputation one block's.
TEST(Memory, ArenaIsTheActivations) {
  const ModelSpec model = NamedModel("gpt-1.3b");
  const int64_t tokens = 1024, h = 2048, layers = 24;
  const int64_t boundary = tokens * h * 2, saved = tokens * (14 * h * 2 + 4 * 4), load = 1025 * 4;
  const Plan none = Accounted(model, 0, 1);
  // Tokens, x of embedding and blocks, dx of the last block, saved of all.
  EXPECT_NEAR(static_cast<double>(none.memory.arena),
              static_cast<double>(load + (layers + 2) * boundary + layers * saved), 1e5);
  const Plan full = Accounted(model, 0, 1, 1, Recompute::kFull);
  EXPECT_NEAR(static_cast<double>(full.memory.arena), static_cast<double>(load + (layers + 2) * boundary + saved), 1e5);
  EXPECT_EQ(none.memory.pool, layers * tokens * (h * 2 + 16 * 4));
  EXPECT_EQ(full.memory.pool, none.memory.pool / layers);
}

// Of 14 h a block keeps 8 h: two norms' outputs and the MLP's activation are made in the workspace. In all 16 h and 10
// h a token and layer, with input and attention's output.
TEST(Memory, CheapRecomputationKeepsTenSixteenths) {
  const ModelSpec model = NamedModel("gpt-1.3b");
  const int64_t tokens = 1024, h = 2048, layers = 24;
  const Plan none = Accounted(model, 0, 1), cheap = Accounted(model, 0, 1, 1, Recompute::kCheap);
  EXPECT_EQ(none.memory.arena - cheap.memory.arena, layers * tokens * 6 * h * 2);
  EXPECT_EQ(none.memory.pool, cheap.memory.pool);
  EXPECT_LE(cheap.memory.workspace - none.memory.workspace, tokens * 4 * h * 2);
  const auto kept = [&](const Plan& plan) {
    return static_cast<double>(plan.memory.arena + plan.memory.pool) / static_cast<double>(layers * tokens * h * 2);
  };
  EXPECT_NEAR(kept(none), 16, 0.2);
  EXPECT_NEAR(kept(cheap), 10, 0.2);
}

// Six checkpoints of four layers: six inputs of 24, what four blocks save, and three inputs made once more.
TEST(Memory, SegmentsKeepTheirInputsAlone) {
  const ModelSpec model = NamedModel("gpt-1.3b");
  const int64_t tokens = 1024, h = 2048, boundary = tokens * h * 2, saved = tokens * (14 * h * 2 + 4 * 4);
  const Plan segments = Accounted(model, {.runs = {{Recompute::kFull, 0}}, .number_checkpoints = 6});
  EXPECT_EQ(segments.units[1].segment, (UnitRange{1, 4}));
  // And the last block's dx, what it makes of it, and the head's input or nothing.
  EXPECT_NEAR(static_cast<double>(segments.memory.arena),
              static_cast<double>((6 + 3 + 2) * boundary + 4 * saved + 1025 * 4), 1e5);
  EXPECT_EQ(segments.memory.pool, 4 * tokens * (h * 2 + 16 * 4));
}

TEST(Memory, MEM_16_PartitionedInputsAreDividedByTp) {
  const ModelSpec model = NamedModel("gpt-1.3b");
  const int64_t tokens = 1024, boundary = tokens * 2048 * 2, layers = 24, tp = 4;
  RecomputeConfig activations{.runs = {{Recompute::kFull, 0}}};
  const Plan whole = Accounted(model, activations, tp);
  activations.partition_activations = true;
  const Plan parts = Accounted(model, activations, tp);
  // But for what the layer at work has whole.
  EXPECT_NEAR(static_cast<double>(whole.memory.arena - parts.memory.arena),
              static_cast<double>((layers - 1) * boundary * (tp - 1) / tp), 1.01 * static_cast<double>(boundary));
  EXPECT_EQ(parts.traffic.tensor_parallel - whole.traffic.tensor_parallel, layers * boundary * (tp - 1) / tp);
}

TEST(Memory, InputsOnTheHostLeaveTheDevice) {
  const ModelSpec model = NamedModel("gpt-1.3b");
  const int64_t boundary = 1024 * 2048 * 2, layers = 24;
  RecomputeConfig activations{.runs = {{Recompute::kFull, 0}}};
  const Plan device = Accounted(model, activations);
  activations.cpu_checkpointing = true;
  const Plan host = Accounted(model, activations);
  EXPECT_EQ(host.memory.host.arena, layers * boundary);
  EXPECT_EQ(host.traffic.down, layers * boundary);
  EXPECT_EQ(host.traffic.up, layers * boundary);
  // A few stay: of the layer at work, and on their way.
  EXPECT_GE(device.memory.arena - host.memory.arena, (layers - 5) * boundary);
  activations.partition_activations = true;
  EXPECT_EQ(Accounted(model, activations, 4).memory.host.arena, layers * boundary / 4);
}

TEST(Memory, AccumulationDoesNotGrowTheArena) {
  for (int stage = 0; stage <= 3; ++stage) {
    const int64_t one = Accounted(NamedModel("gpt-1.3b"), stage, 8, 1).memory.total();
    const int64_t three = Accounted(NamedModel("gpt-1.3b"), stage, 8, 3).memory.total();
    // The last reductions of one micro-batch may run under the forward pass of the next.
    EXPECT_LE(static_cast<double>(three), 1.02 * static_cast<double>(one)) << "stage " << stage;
    EXPECT_EQ(Accounted(NamedModel("gpt-1.3b"), stage, 8, 100).memory.total(), three) << "stage " << stage;
  }
}

// Without lanes that lag, nothing but what is live at one instruction takes room.
TEST(Memory, ArenaIsPackedTightly) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kCheap, Recompute::kFull}) {
      const Plan plan = Accounted(NamedModel("gpt-1.3b"), stage, 8, 3, recompute);
      CompileOptions options = OptionsOf(plan);
      options.max_unjoined_frees = 0;
      const CompiledProgram program = Compile(MakeProgram(plan, ProgramKind::kTrain, 0), options);
      std::map<BufferKey, int64_t> live;
      int64_t bytes = 0, peak = 0;
      for (const CompiledInstruction& compiled : program.instructions) {
        for (const auto* uses : {&compiled.writes, &compiled.adds}) {
          for (const BufferUse& use : *uses) {
            if (!IsPersistent(use.key.kind) && live.emplace(use.key, use.bytes).second) bytes += use.bytes;
          }
        }
        peak = std::max(peak, bytes);
        for (const BufferKey& key : compiled.instruction.frees) bytes -= live.extract(key).mapped();
      }
      EXPECT_GE(program.arena_bytes, peak);
      EXPECT_LE(static_cast<double>(program.arena_bytes), 1.02 * static_cast<double>(peak)) << "stage " << stage;
    }
  }
}

// Whole gradients of a few units live at once, however many layers there are.
TEST(Memory, ArenaOfStage2DoesNotGrowWithTheLayersGradients) {
  ModelSpec model = NamedModel("gpt-1.3b");
  const auto gradients = [&](int64_t layers) {
    model.num_layers = layers;
    return Accounted(model, 2, 8, 1, Recompute::kFull).memory.arena -
           Accounted(model, 0, 1, 1, Recompute::kFull).memory.arena;
  };
  const int64_t block = 4 * int64_t{50'358'272};
  EXPECT_LT(gradients(48), 4 * block + 4 * int64_t{107'217'000});
  EXPECT_LE(gradients(48), gradients(24));
}

ModelSpec TenMillion() {
  testing::SmallPlan small;
  small.layers = 10;
  small.hidden = 256;
  small.heads = 4;
  small.vocab = 8000;
  small.positions = 1024;
  return testing::ModelOf(small);
}

TEST(Memory, MEM_05_Stage2NeedsNoMoreThanStage1) {
  for (const int64_t ranks : {2, 4, 8}) {
    for (const char* name : {"gpt-125m", "gpt-350m", "gpt-1.3b"}) {
      const MemoryAccount one = Accounted(NamedModel(name), 1, ranks, 2).memory,
                          two = Accounted(NamedModel(name), 2, ranks, 2).memory;
      EXPECT_LE(static_cast<double>(two.total()), 1.05 * static_cast<double>(one.total())) << name << " on " << ranks;
    }
  }
}

TEST(Memory, MEM_06_ShardedPartsHalveWhenRanksDouble) {
  const MemoryAccount two = Accounted(NamedModel("gpt-1.3b"), 2, 2).memory,
                      four = Accounted(NamedModel("gpt-1.3b"), 2, 4).memory;
  EXPECT_EQ(four.gradients * 2, two.gradients);
  EXPECT_EQ(four.master_weights * 2, two.master_weights);
  EXPECT_EQ(four.moments * 2, two.moments);
  EXPECT_EQ(four.weights, two.weights);
}

TEST(Memory, MEM_15_HigherStagesNeedNoMoreInASmallModel) {
  for (const int64_t ranks : {2, 4, 8}) {
    int64_t last = INT64_MAX;
    for (int stage = 0; stage <= 3; ++stage) {
      const int64_t total = Accounted(TenMillion(), stage, ranks, 2).memory.total();
      EXPECT_LE(static_cast<double>(total), 1.05 * static_cast<double>(last)) << "stage " << stage << " on " << ranks;
      last = total;
    }
  }
}

// Elements sent, in units of the model's (n - 1) / n: arXiv:1910.02054, 7.
TEST(Traffic, IsTheFormula) {
  const int64_t n = 8, m = 5;
  for (int stage = 0; stage <= 3; ++stage) {
    const Plan plan = Accounted(NamedModel("gpt-1.3b"), stage, n, m);
    const int64_t psi = PaddedElements(plan) / n * (n - 1);
    int64_t last_bucket = 0;
    for (int unit = plan.buckets.back().first; unit <= plan.buckets.back().last; ++unit) {
      last_bucket += plan.units[static_cast<size_t>(unit)].padded_elements / n * (n - 1);
    }
    const int64_t reduce = stage == 0 ? 2 * psi : stage == 1 ? psi : m * psi;
    // Stage 3 gathers all twice, but the last bucket; the embedding's second time is for the tied head.
    const int64_t gather = stage == 0 ? 0 : stage <= 2 ? psi : m * (2 * psi - last_bucket);
    EXPECT_EQ(plan.traffic.reduce, 4 * reduce) << stage;
    EXPECT_EQ(plan.traffic.gather, 2 * gather) << stage;
  }
  EXPECT_EQ(Accounted(NamedModel("gpt-125m"), 3, 1).traffic.gather, 0);
}

// Lamb sums two doubles a tensor; the rest is Adam's.
TEST(Traffic, OfLambHasTheNorms) {
  testing::SmallPlan small{.ranks = 4, .zero_stage = 1};
  Plan adam = PlanOf(small);
  small.optimizer = OptimizerType::kLamb;
  Plan lamb = PlanOf(small);
  AccountMemory(adam);
  AccountMemory(lamb);
  int64_t tensors = 0;
  for (const UnitLayout& unit : lamb.units) tensors += static_cast<int64_t>(unit.segments.size());
  EXPECT_EQ(lamb.traffic.reduce, adam.traffic.reduce + 2 * 16 * tensors * 3 / 4);
  EXPECT_EQ(lamb.memory.moments, adam.memory.moments + 16 * tensors);
}

}  // namespace
}  // namespace trireme
