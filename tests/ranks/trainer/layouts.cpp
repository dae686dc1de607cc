#include "tests/ranks/trainer/layouts.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "engine/base/error.h"
#include "engine/schedule/pipeline_order.h"

namespace trireme::test {
namespace {

constexpr int64_t kSamples = 24, kTokens = 11, kVocabulary = 61;
constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::kOneForwardOneBackward, PipelineSchedule::kGPipe,
                                           PipelineSchedule::kZeroBubble};
constexpr Offload kOffloads[] = {Offload::kNone, Offload::kOptimizer, Offload::kOptimizerAndWeights};
constexpr Recompute kRecomputes[] = {Recompute::kNone, Recompute::kCheap, Recompute::kFull};

ModelSpec SpecOf(TinyModel model, int64_t tp) {
  ModelSpec spec;
  spec.name = Name(model);
  spec.num_layers = 5;
  spec.hidden_size = 24;
  spec.num_attention_heads = spec.num_key_value_heads = 12;
  spec.intermediate_size = 96;
  spec.vocab_size = kVocabulary;
  spec.padded_vocab_size = (64 + tp - 1) / tp * tp;
  spec.max_position_embeddings = 16;
  spec.tie_word_embeddings = model == TinyModel::kGpt || model == TinyModel::kQwen;
  if (model == TinyModel::kGpt || model == TinyModel::kGptUntied) return spec;
  spec.family = model == TinyModel::kQwen ? Family::kQwen2 : Family::kLlama;
  spec.activation = Activation::kSilu;
  spec.num_key_value_heads = 6;
  spec.intermediate_size = 42;
  spec.qkv_bias = model == TinyModel::kQwen;
  spec.attention_out_bias = spec.mlp_bias = false;
  return spec;
}

// Micro-batches a step; nullopt: the batch cannot be cut for it.
std::optional<int64_t> MicroBatches(const Layout& layout) {
  const std::vector<int64_t> in_a_pipeline = {4, 3, 6, 2, 8, 12, 1}, elsewhere = {2, 3, 4, 6, 8, 12, 1};
  for (const int64_t m : layout.pp > 1 ? in_a_pipeline : elsewhere) {
    if (kSamples % (layout.dp * m) != 0 || (layout.virtual_stages > 1 && m % layout.pp != 0)) continue;
    const int64_t micro = kSamples / layout.dp / m;
    if (!layout.sequence_parallel || micro * kTokens % layout.tp == 0) return m;
  }
  return std::nullopt;
}

// The first ZeRO stage that offloads so much.
int FirstStage(Offload offload) { return offload == Offload::kNone ? 0 : (offload == Offload::kOptimizer ? 1 : 3); }

bool SomethingElseUnderAnotherName(const Layout& layout) {
  return (layout.dp == 1 && layout.zero_stage > FirstStage(layout.offload)) ||
         (layout.tp == 1 && layout.sequence_parallel) ||
         (layout.pp == 1 && layout.schedule != PipelineSchedule::kOneForwardOneBackward);
}

bool Legal(const Layout& layout) {
  if (SomethingElseUnderAnotherName(layout) || !MicroBatches(layout)) return false;
  if (layout.zero_stage < FirstStage(layout.offload)) return false;
  const TrainerSetup setup = SetupOf(RunOf(layout, OneRankRun(layout.model, false)));
  PlanInputs inputs;
  inputs.world_size = layout.world();
  inputs.sequence_length = setup.sequence_length;
  inputs.fp64 = true;
  inputs.recompute = setup.recompute;
  try {
    MakePlan(setup.config, setup.model, inputs);
    return true;
  } catch (const Error&) {
    return false;
  }
}

using Axes = std::array<int, 10>;

Axes AxesOf(const Layout& l) {
  return {l.dp,
          l.tp,
          l.pp,
          l.virtual_stages,
          l.sequence_parallel,
          l.zero_stage,
          static_cast<int>(l.offload),
          static_cast<int>(l.recompute),
          static_cast<int>(l.schedule),
          static_cast<int>(l.model)};
}

using Pair = std::tuple<size_t, int, size_t, int>;

std::vector<Pair> PairsOf(const Layout& layout) {
  const Axes axes = AxesOf(layout);
  std::vector<Pair> pairs;
  for (size_t a = 0; a < axes.size(); ++a) {
    for (size_t b = a + 1; b < axes.size(); ++b) pairs.emplace_back(a, axes[a], b, axes[b]);
  }
  return pairs;
}

template <typename Visit>
void ForEachLayout(int max_ranks, Visit visit) {
  for (int dp = 1; dp <= max_ranks; ++dp) {
    for (int tp = 1; dp * tp <= max_ranks; ++tp) {
      for (int pp = 1; dp * tp * pp <= max_ranks; ++pp) {
        for (int v = 1; v <= 3; ++v) {
          for (const bool sequence_parallel : {false, true}) {
            for (const int zero : {0, 1, 2, 3}) {
              for (const PipelineSchedule schedule : kSchedules) {
                for (const Offload offload : kOffloads) {
                  for (const Recompute recompute : kRecomputes) {
                    visit(Layout{dp, tp, pp, v, sequence_parallel, zero, offload, recompute, schedule});
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace

std::string Name(TinyModel model) {
  constexpr const char* kNames[] = {"gpt", "gpt_untied", "llama", "qwen"};
  return kNames[static_cast<size_t>(model)];
}

std::string Name(Recompute recompute) {
  constexpr const char* kNames[] = {"keep", "cheap", "full"};
  return kNames[static_cast<size_t>(recompute)];
}

std::string Name(Offload offload) {
  constexpr const char* kNames[] = {"", "optimizer", "optimizer, weights"};
  return kNames[static_cast<size_t>(offload)];
}

std::string Name(const Layout& l) {
  std::string name = fmt::format("{}_dp{}_tp{}_pp{}", Name(l.model), l.dp, l.tp, l.pp);
  if (l.virtual_stages > 1) name += fmt::format("_v{}", l.virtual_stages);
  if (l.sequence_parallel) name += "_sp";
  name += fmt::format("_zero{}", l.zero_stage);
  if (l.offload != Offload::kNone) name += l.offload == Offload::kOptimizer ? "_offload" : "_offload_all";
  if (l.schedule == PipelineSchedule::kGPipe) name += "_gpipe";
  if (l.schedule == PipelineSchedule::kZeroBubble) name += "_zb";
  if (l.recompute != Recompute::kNone) name += "_" + Name(l.recompute);
  return name;
}

TinyRun OneRankRun(TinyModel model, bool sgd) {
  TinyRun run{.accumulation = 4, .global_batch = kSamples, .sgd = sgd};
  run.model = SpecOf(model, 1);
  return run;
}

TinyRun RunOf(const Layout& layout, TinyRun run) {
  run.model = SpecOf(layout.model, layout.tp);
  run.world = layout.world();
  run.tp = layout.tp;
  run.pp = layout.pp;
  run.virtual_stages = layout.virtual_stages;
  run.sequence_parallel = layout.sequence_parallel;
  run.zero_stage = layout.zero_stage;
  run.offload_optimizer = layout.offload == Offload::kNone ? 0 : 1;
  run.offload_param = layout.offload == Offload::kOptimizerAndWeights;
  run.recompute = layout.recompute;
  run.schedule = layout.schedule;
  run.accumulation = MicroBatches(layout).value_or(1);
  return run;
}

std::vector<Layout> LegalLayouts(int max_ranks) {
  std::vector<Layout> layouts;
  ForEachLayout(max_ranks, [&](Layout layout) {
    for (size_t i = 0; i < std::size(kTinyModels); ++i) {
      layout.model = kTinyModels[(layouts.size() + layouts.size() / 2 + i) % std::size(kTinyModels)];
      if (!Legal(layout)) continue;
      layouts.push_back(layout);
      return;
    }
  });
  return layouts;
}

std::vector<Layout> CoveringLayouts(size_t most, int max_ranks) {
  std::vector<Layout> left = LegalLayouts(max_ranks);
  std::stable_sort(left.begin(), left.end(), [](const Layout& a, const Layout& b) { return a.world() < b.world(); });
  std::set<Pair> open;
  for (const Layout& layout : left) {
    for (const Pair& pair : PairsOf(layout)) open.insert(pair);
  }
  std::vector<Layout> chosen;
  while (!open.empty() && chosen.size() < most) {
    const auto gain = [&](const Layout& layout) {
      const std::vector<Pair> pairs = PairsOf(layout);
      return std::ranges::count_if(pairs, [&](const Pair& pair) { return open.contains(pair); });
    };
    const Layout best = *std::ranges::max_element(left, {}, gain);  // the first of equals
    for (const Pair& pair : PairsOf(best)) open.erase(pair);
    chosen.push_back(best);
  }
  return chosen;
}

std::vector<Layout> StableLayouts(size_t most, int max_ranks) {
  std::vector<Layout> layouts = CoveringLayouts(most + 1, max_ranks);
  layouts.erase(layouts.begin());  // one rank
  for (Layout& layout : layouts) {
    if (layout.model == TinyModel::kGptUntied) layout.model = TinyModel::kGpt;
  }
  return layouts;
}

}  // namespace trireme::test
