// Do all layouts train alike on this machine? A shrunken copy of a model is trained in each of them, by ranks that are
// threads of this process, and compared with one rank.
//   Selfcheck check({.model = model, .ranks = 4});
//   for (const SelfcheckLayout& layout : check.Layouts()) SelfcheckResult result = check.Run(layout);
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/in_process.h"
#include "engine/trainer/trainer.h"
#include "parsers/config.h"
#include "parsers/model_spec.h"

namespace trireme {

struct SelfcheckLayout {
  int tp = 1, pp = 1, dp = 1, virtual_stages = 1, zero_stage = 0;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  bool sequence_parallel = false;
  Recompute recompute = Recompute::kNone;
  int ranks() const { return tp * pp * dp; }
};
std::string Describe(const SelfcheckLayout& layout);  // "tp 2 pp 1 dp 2 ZeRO-3 sequence-parallel"

struct SelfcheckResult {
  SelfcheckLayout layout;
  std::string failed;                     // "" or what the ranks threw
  double loss_error = 0, norm_error = 0;  // largest relative difference from one rank over the steps
  double seconds = 0;
};

struct SelfcheckOptions {
  Config config;    // optimizer, scheduler and clipping are taken from it
  ModelSpec model;  // its family and features are kept, its sizes are not
  int ranks = 4;
  bool cuda = false;    // one GPU a rank, NCCL; else CPU threads
  int shared_gpus = 0;  // with cuda, above 0: the ranks share so many GPUs, over host memory
  int64_t steps = 20;
  DType dtype = DType::kFloat64;  // kFloat64, kFloat32 or kBFloat16
};

class Selfcheck {
 public:
  explicit Selfcheck(SelfcheckOptions options);
  ~Selfcheck();

  const ModelSpec& model() const { return model_; }
  // Every legal layout of all ranks: tp x pp x dp, ZeRO 0 to 3, schedules, sequence parallelism, recomputation.
  std::vector<SelfcheckLayout> Layouts() const;
  SelfcheckResult Run(const SelfcheckLayout& layout);

 private:
  struct Curve;
  struct Ranks;
  Curve Train(const SelfcheckLayout& layout);
  TrainerSetup SetupOf(const SelfcheckLayout& layout) const;
  RankWorld PlaceOf(int rank, int world, const std::shared_ptr<InProcessWorld>& comms) const;

  SelfcheckOptions options_;
  ModelSpec model_;
  std::unique_ptr<Ranks> ranks_;
  std::unique_ptr<Curve> reference_;
};

// A model of the same family and features, small enough to train in a second, that `ranks` tp or pp ranks can split.
ModelSpec ShrunkenModel(const ModelSpec& model, int ranks);

}  // namespace trireme
