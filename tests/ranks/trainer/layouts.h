// Every layout of a tiny model over a few in-process ranks: what the table of docs/layouts.md and the tests of chosen
// layouts run.
//   for (const Layout& layout : CoveringLayouts(40)) Train(RunOf(layout, OneRank(layout.model, sgd).run));
#pragma once
#include <string>
#include <vector>

#include "tests/ranks/trainer/tiny_run.h"

namespace trireme::test {

// 5 layers of width 24, which 2, 3 and 4 stages do not divide; 12 heads; 61 tokens, padded. kGpt has a tied head,
// kLlama two query heads a key head, kQwen both.
enum class TinyModel : uint8_t { kGpt, kGptUntied, kLlama, kQwen };
inline constexpr TinyModel kTinyModels[] = {TinyModel::kGpt, TinyModel::kGptUntied, TinyModel::kLlama,
                                            TinyModel::kQwen};

enum class Offload : uint8_t { kNone, kOptimizer, kOptimizerAndWeights };  // to the host

struct Layout {
  int dp = 1, tp = 1, pp = 1, virtual_stages = 1;
  bool sequence_parallel = false;
  int zero_stage = 0;
  Offload offload = Offload::kNone;
  Recompute recompute = Recompute::kNone;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  TinyModel model = TinyModel::kGpt;

  int world() const { return dp * tp * pp; }
};

std::string Name(TinyModel model);
std::string Name(Recompute recompute);
std::string Name(Offload offload);
std::string Name(const Layout& layout);  // "gpt_dp2_tp1_pp3_v2_zero1_offload_full"

// Twelve steps of 24 samples on one rank.
TinyRun OneRankRun(TinyModel model, bool sgd);
// The same training in a layout; micro-batches as small as it asks for.
TinyRun RunOf(const Layout& layout, TinyRun one_rank);

// All that a plan can be made for and that are not another one under another name (ZeRO or sequence parallelism over
// one rank, a schedule of one stage). Models take turns.
std::vector<Layout> LegalLayouts(int max_ranks = 8);
// At most so many of them, so that two values of two axes that meet in a legal layout meet in one of these: each adds
// as many such pairs as any layout can. Of equals the one with fewer ranks comes first.
std::vector<Layout> CoveringLayouts(size_t most, int max_ranks = 8);
// Those of single precision. With a tied head in place of kGptUntied: fifty steps bring its norms 8e-6 apart.
std::vector<Layout> StableLayouts(size_t most, int max_ranks = 8);

}  // namespace trireme::test
