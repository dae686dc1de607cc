#include "engine/schedule/pipeline_times.h"

#include <algorithm>
#include <array>

#include "engine/base/error.h"

namespace trireme {
namespace {

using Kind = Pass::Kind;

class PassClock {
 public:
  PassClock(const PipelineShape& shape, const std::vector<std::vector<Pass>>& passes, const PassSeconds& seconds)
      : shape_(shape), passes_(passes), seconds_(seconds), stages_(shape.pp_size * shape.chunks) {
    for (std::vector<double>& ends : ends_) {
      ends.assign(static_cast<size_t>(stages_) * static_cast<size_t>(shape.num_micro_batches), kNotYet);
    }
    for (const std::vector<Pass>& of_rank : passes) times_.emplace_back().reserve(of_rank.size());
    free_.resize(passes.size());
  }

  std::vector<std::vector<PassTime>> Run() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (size_t rank = 0; rank < passes_.size(); ++rank) {
        while (times_[rank].size() < passes_[rank].size() && Step(rank)) progress = true;
      }
    }
    for (size_t rank = 0; rank < passes_.size(); ++rank) {
      TRIREME_CHECK(times_[rank].size() == passes_[rank].size(), "the passes of a pipeline wait for each other");
    }
    return std::move(times_);
  }

 private:
  static constexpr double kNotYet = -1;
  enum Direction : size_t { kUpwards, kDownwards };  // forward outputs, gradients of inputs

  double& End(Direction direction, int stage, int micro_batch) {
    return ends_[direction][static_cast<size_t>(stage * shape_.num_micro_batches + micro_batch)];
  }

  // When what the pass needs is there, or kNotYet.
  double ReadyAt(const Pass& pass, int stage) {
    switch (pass.kind) {
      case Kind::kForward:
        return stage == 0 ? 0 : End(kUpwards, stage - 1, pass.micro_batch);
      case Kind::kBackward:
      case Kind::kBackwardInput:
        return stage == stages_ - 1 ? End(kUpwards, stage, pass.micro_batch)
                                    : End(kDownwards, stage + 1, pass.micro_batch);
      case Kind::kBackwardWeight:
        return End(kDownwards, stage, pass.micro_batch);
    }
    return kNotYet;
  }

  bool Step(size_t rank) {
    const Pass& pass = passes_[rank][times_[rank].size()];
    const int stage = pass.chunk * shape_.pp_size + static_cast<int>(rank);
    const double ready = ReadyAt(pass, stage);
    if (ready < 0) return false;
    const double start = std::max(free_[rank], ready), end = start + seconds_(stage, pass.kind);
    if (pass.kind == Kind::kForward) End(kUpwards, stage, pass.micro_batch) = end;
    if (pass.kind == Kind::kBackward || pass.kind == Kind::kBackwardInput)
      End(kDownwards, stage, pass.micro_batch) = end;
    free_[rank] = end;
    times_[rank].push_back({start, end});
    return true;
  }

  const PipelineShape& shape_;
  const std::vector<std::vector<Pass>>& passes_;
  const PassSeconds& seconds_;
  const int stages_;
  std::array<std::vector<double>, 2> ends_;
  std::vector<double> free_;  // when each rank has done its last pass
  std::vector<std::vector<PassTime>> times_;
};

}  // namespace

std::vector<std::vector<PassTime>> TimePasses(const PipelineShape& shape, const std::vector<std::vector<Pass>>& passes,
                                              const PassSeconds& seconds) {
  TRIREME_CHECK(passes.size() == static_cast<size_t>(shape.pp_size), "one list of passes a rank");
  return PassClock(shape, passes, seconds).Run();
}

double Bubble(const std::vector<std::vector<PassTime>>& times) {
  double last = 0, busy = 0;
  for (const std::vector<PassTime>& of_rank : times) {
    for (const PassTime& time : of_rank) {
      last = std::max(last, time.end);
      busy += time.end - time.start;
    }
  }
  return last > 0 ? 1 - busy / (last * static_cast<double>(times.size())) : 0;
}

}  // namespace trireme
