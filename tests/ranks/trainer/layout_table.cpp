// Writes docs/layouts.md: every legal layout of up to 8 in-process ranks against one rank.
//   layout_table [MAX_RANKS [PART]]     to standard output; PART: only layouts whose name has it
// Exit code 1 where a layout differs from one rank.
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "engine/schedule/pipeline_order.h"
#include "tests/ranks/trainer/layouts.h"
#include "tests/ranks/trainer/trains_alike.h"

namespace trireme::test {
namespace {

enum class Training { kAdamW, kSgd, kSinglePrecision };

struct Differences {
  std::string failed = {};
  double losses = 0, norms = 0, weights = 0;
  bool agree = true;
  bool Within(const Tolerance& tolerance) const {
    return failed.empty() && agree && losses <= tolerance.losses && norms <= tolerance.norms &&
           weights <= tolerance.weights;
  }
  std::string Cells() const {
    return failed.empty() ? fmt::format("{:.1e} | {:.1e} | {:.1e}", losses, norms, weights) : "- | - | -";
  }
};

using References = std::map<std::pair<TinyModel, Training>, Reference>;

References MakeReferences() {
  References references;
  for (const TinyModel model : kTinyModels) {
    for (const Training training : {Training::kAdamW, Training::kSgd, Training::kSinglePrecision}) {
      TinyRun run = OneRankRun(model, training == Training::kSgd);
      run.fp64 = training != Training::kSinglePrecision;
      if (!run.fp64) run.steps = 50;
      references[{model, training}] = ReferenceOf(run);
    }
  }
  return references;
}

Differences Compare(const Layout& layout, const Reference& one_rank) {
  const Curve got = Train(RunOf(layout, one_rank.run));
  if (!got.failed.empty() || !one_rank.curve.failed.empty()) return {.failed = got.failed + one_rank.curve.failed};
  return {.losses = RelativeDifference(got.losses, one_rank.curve.losses),
          .norms = RelativeDifference(got.norms, one_rank.curve.norms),
          .weights = WeightDifference(got.weights, one_rank.curve.weights),
          .agree = got.ranks_agree && got.replicas_equal};
}

// By layout, one a training; a layout for each processor at a time.
std::vector<std::vector<Differences>> CompareAll(const std::vector<Layout>& layouts, const References& references,
                                                 const std::vector<Training>& trainings) {
  std::vector<std::vector<Differences>> all(layouts.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> workers;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    workers.emplace_back([&] {
      for (size_t row = next++; row < layouts.size(); row = next++) {
        for (const Training training : trainings) {
          all[row].push_back(Compare(layouts[row], references.at({layouts[row].model, training})));
        }
        if (row % 50 == 0) fmt::print(stderr, "{} of {}\n", row, layouts.size());
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  return all;
}

constexpr const char* kHead =
    R"(# Layouts against one rank

Made by `tests/ranks/layout_table.sh`; do not edit. Every legal layout of up to {} ranks over data (dp), tensor (tp) and pipeline (pp)
parallelism, stages of one pipeline rank (v), sequence parallelism (sp), ZeRO stage, offload to the host, recomputation and pipeline schedule, as
ranks that are threads of one process. Models take turns: 5 layers of width 24, 12 heads (LLaMA and Qwen: 6 key-value heads), 61 tokens padded to a
multiple of tp; 11 tokens a sample, 24 samples a step.

Columns: the largest relative difference from one rank of the losses and of the gradient norms before clipping, over all steps, and the L2
norm of the weights' difference over that of the weights (key biases of GPT left out: their exact gradient is zero). `equal`: all are within
the limits, all ranks report the same bits, and every copy of a weight has the same bits.

## Double precision

12 steps, with AdamW clipped at half of the first gradient norm, and with SGD (rate 0.03, momentum 0.9) without clipping; limits 1e-12.

| model | dp | tp | pp | v | sp | ZeRO | offload | recompute | schedule | AdamW losses | norms | weights | SGD losses | norms | weights | verdict |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
)";

constexpr const char* kSingleHead = R"(
## Single precision

50 steps of AdamW at a rate of 1e-3, clipped at half of the first norm; limits: losses 2e-6, norms and weights 1e-5.

| model | dp | tp | pp | v | sp | ZeRO | offload | recompute | schedule | losses | norms | weights | verdict |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
)";

class Table {
 public:
  void Row(const Layout& l, const std::vector<Differences>& trainings, const Tolerance& tolerance) {
    std::string cells, failed;
    bool equal = true;
    for (const Differences& d : trainings) {
      equal = equal && d.Within(tolerance);
      cells += d.Cells() + " | ";
      failed += d.failed;
      worst_ = std::max({worst_, d.losses, d.norms, d.weights});
    }
    fmt::print("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {}{} |\n", Name(l.model), l.dp, l.tp, l.pp,
               l.virtual_stages, l.sequence_parallel ? "yes" : "", l.zero_stage, Name(l.offload), Name(l.recompute),
               l.pp == 1 ? "" : trireme::Name(l.schedule), cells, equal ? "equal" : "**DIFFERS** " + failed);
    ++rows_;
    wrong_ += equal ? 0 : 1;
  }
  // Returns whether all are equal.
  bool Finish() const {
    fmt::print("\n{} layouts, {} of them differ; the largest difference is {:.1e}.\n", rows_, wrong_, worst_);
    return wrong_ == 0;
  }

 private:
  int rows_ = 0, wrong_ = 0;
  double worst_ = 0;
};

bool Write(const std::vector<Layout>& layouts, const References& references, const std::vector<Training>& trainings,
           const Tolerance& tolerance) {
  const auto differences = CompareAll(layouts, references, trainings);
  Table table;
  for (size_t row = 0; row < layouts.size(); ++row) table.Row(layouts[row], differences[row], tolerance);
  return table.Finish();
}

int Run(int max_ranks, const std::string& part) {
  const auto start = std::chrono::steady_clock::now();
  const References references = MakeReferences();
  const auto chosen = [&](std::vector<Layout> layouts) {
    std::erase_if(layouts, [&](const Layout& l) { return Name(l).find(part) == std::string::npos; });
    return layouts;
  };
  fmt::print(kHead, max_ranks);
  const bool wide = Write(chosen(LegalLayouts(max_ranks)), references, {Training::kAdamW, Training::kSgd}, Tolerance{});
  fmt::print(kSingleHead);
  const bool single =
      Write(chosen(StableLayouts(24, max_ranks)), references, {Training::kSinglePrecision}, kSinglePrecision);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  fmt::print(stderr, "{:.0f} s\n", seconds.count());
  return wide && single ? 0 : 1;
}

}  // namespace
}  // namespace trireme::test

int main(int argc, char** argv) {
  return trireme::test::Run(argc > 1 ? std::stoi(argv[1]) : 8, argc > 2 ? argv[2] : "");
}
