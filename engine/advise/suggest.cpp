#include "engine/advise/suggest.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>

#include "engine/advise/bound.h"
#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/base/strings.h"
#include "engine/schedule/verify.h"

namespace trireme {
namespace {

// Timelines of every rank are of no use here.
Prediction Short(Prediction prediction) {
  prediction.ranks.clear();
  return prediction;
}

std::optional<Suggestion> Predicted(const AdviceRequest& request, std::optional<Filled> filled) {
  if (!filled || !filled->fits || !MissingRates(filled->plan, request.cluster).empty()) return std::nullopt;
  Prediction prediction = Short(Predict(filled->plan, request.cluster));
  const int64_t needed = request.fill.Needs(filled->plan);
  return Suggestion{LayoutOf(filled->config), std::move(filled->config), std::move(filled->plan), std::move(prediction),
                    needed};
}

// Nothing made again, nothing offloaded.
Config Kept(Config config) {
  config.recompute = {};
  config.recompute.runs = {{Recompute::kNone, 0}};
  config.zero_optimization.offload_optimizer.device = OffloadDevice::kNone;
  config.zero_optimization.offload_param.device = OffloadDevice::kNone;
  return config;
}

void TakeFaster(std::optional<Suggestion>& best, std::optional<Suggestion> other) {
  if (other && (!best || other->step_seconds() < best->step_seconds())) best = std::move(other);
}

bool Recomputes(const Suggestion& suggestion) { return DescribeRecompute(suggestion.plan) != "nothing"; }

// Where states can go: the host's memory, and a disk where the file names a folder of it; whichever the file asks for.
template <class Offload>
std::vector<Offload> PlacesOf(const Offload& own) {
  std::vector<Offload> places(own.nvme_path.empty() ? 1 : 2, own);
  places.front().device = OffloadDevice::kCpu;
  places.back().device = places.size() == 1 ? OffloadDevice::kCpu : OffloadDevice::kNvme;
  return places;
}

// Offloading leaves room for activations: how much of it costs least is the cluster's business. Of all units, then,
// where a share can be, of fewer: from a half on by halves of what is left, in the direction that is faster.
// `to_beat`: without offloading; nullptr: nothing fits so.
std::optional<Suggestion> FastestOffload(const AdviceRequest& request, Config config, const Suggestion* to_beat) {
  const ZeroConfig& zero = config.zero_optimization;
  const std::optional<Plan> shape = PlanShapeOf(request.job, config);
  if (!shape || !MissingRates(*shape, request.cluster).empty()) return std::nullopt;
  const int all = UnitsOfLargestStage(*shape);
  const auto with = [&](int units) {
    Config tried = config;
    if (units < all) tried.zero_optimization.zero_stage = 3;
    tried.zero_optimization.offload_optimizer.ratio = RatioOfUnits(*shape, units);
    return Predicted(request, FillRecompute(request.job, tried, request.fill));
  };
  const bool in_part = zero.zero_stage == 3 || config.dp_size == 1;
  // With the least that can be offloaded and all else kept, which may not fit: nothing is faster.
  Config least = Kept(config);
  least.zero_optimization.offload_optimizer = zero.offload_optimizer;
  if (in_part) least.zero_optimization.zero_stage = 3;
  least.zero_optimization.offload_optimizer.ratio = RatioOfUnits(*shape, in_part ? 1 : all);
  const std::optional<Plan> bound = PlanShapeOf(request.job, least);
  if (to_beat != nullptr && bound && Predict(*bound, request.cluster).step_seconds >= to_beat->step_seconds()) {
    return std::nullopt;
  }
  std::optional<Suggestion> best = with(all);
  if (!in_part) return best;
  for (const int units : {all / 2, all / 4}) {
    if (units >= 1) TakeFaster(best, with(units));
  }
  return best;
}

// Programs that are made to predict a layout, and to fill it, about.
constexpr int64_t kPredictions = 2, kFills = 15;

// A legal layout on its way through the search: what is known of its step time, and how.
struct Candidate {
  enum class Known : uint8_t { kLeast, kRoom, kKept, kFilled };
  double seconds = 0;
  size_t order = 0;  // of equal ones the first to be enumerated
  Known known = Known::kLeast;
  int64_t work = 0;  // of one set of Programs
  size_t index = 0;  // into layouts, or of what is filled
  bool operator>(const Candidate& other) const {
    return std::pair(seconds, order) > std::pair(other.seconds, other.order);
  }
};

class Search {
 public:
  explicit Search(const AdviceRequest& request)
      : request_(request), layouts_(EnumerateLayouts(request.job, request.ranks_per_node, &advice_.across_nodes)) {}

  // Best first: a candidate that comes out of the queue is dearer than nothing that is still in it.
  Advice Run() {
    for (size_t i = 0; i < layouts_.size(); ++i) AddLeast(i);
    while (!queue_.empty() && advice_.best.size() < request_.wanted) {
      Candidate candidate = queue_.top();
      queue_.pop();
      const bool done = advice_.work >= request_.most_work && (!advice_.best.empty() || !filled_.empty());
      if (done && candidate.known != Candidate::Known::kFilled) {
        ++advice_.not_looked_at;
        continue;
      }
      switch (candidate.known) {
        case Candidate::Known::kLeast:
          AddRoom(candidate);
          break;
        case Candidate::Known::kRoom:
          AddKept(candidate);
          break;
        case Candidate::Known::kKept:
          AddFilled(candidate);
          break;
        case Candidate::Known::kFilled:
          advice_.best.push_back(std::move(filled_[candidate.index]));
          break;
      }
    }
    advice_.slower = static_cast<int64_t>(queue_.size());
    return std::move(advice_);
  }

 private:
  Config ConfigOf(const Candidate& candidate) const {
    return WithLayout(request_.job.config, layouts_[candidate.index]);
  }

  void AddLeast(size_t index) {
    Candidate candidate{0, index, Candidate::Known::kLeast, 0, index};
    const std::optional<Plan> plan = PlanShapeOf(request_.job, Kept(ConfigOf(candidate)));
    if (!plan) return;
    ++advice_.legal;
    advice_.states_too_large += LeastBytes(*plan, /*offloaded=*/false) > request_.fill.limit_bytes;
    const bool offloads = request_.fill.may_offload && plan->zero_stage >= 1;
    if (LeastBytes(*plan, offloads) > request_.fill.limit_bytes) {
      ++advice_.too_large;
      return;
    }
    candidate.seconds = LeastSeconds(*plan, request_.cluster);
    queue_.push(candidate);
  }

  void AddRoom(Candidate candidate) {
    candidate.known = Candidate::Known::kRoom;
    Config config = Kept(ConfigOf(candidate));
    const auto with = [&](Recompute policy) {
      config.recompute.runs = {{policy, 0}};
      return PlanShapeOf(request_.job, config);
    };
    const std::optional<Plan> kept = with(Recompute::kNone), cheap = with(Recompute::kCheap),
                              full = with(Recompute::kFull);
    if (kept && cheap && full) {  // else a module of the user's: nothing of it is cheap
      const bool offloads = CanOffloadOptimizer(config, request_.fill);
      candidate.seconds = std::max(candidate.seconds, LeastSecondsThatFit(*kept, *cheap, *full, request_.cluster,
                                                                          request_.fill.limit_bytes, offloads));
    }
    if (std::isinf(candidate.seconds)) {
      ++advice_.too_large;
    } else {
      queue_.push(candidate);
    }
  }

  void AddKept(Candidate candidate) {
    candidate.known = Candidate::Known::kKept;
    const Plan plan = *PlanShapeOf(request_.job, Kept(ConfigOf(candidate)));
    candidate.work = plan.num_units() * FoldedMicroBatches(plan);
    advice_.work += kPredictions * candidate.work;
    candidate.seconds = std::max(candidate.seconds, Predict(plan, request_.cluster).step_seconds);
    queue_.push(candidate);
  }

  void AddFilled(Candidate candidate) {
    advice_.work += kFills * candidate.work;
    std::optional<Suggestion> suggestion = FastestFill(request_, ConfigOf(candidate));
    if (!suggestion) {
      ++advice_.too_large;
      return;
    }
    if (request_.allowed && !request_.allowed(suggestion->config)) return;
    candidate.known = Candidate::Known::kFilled;
    candidate.seconds = suggestion->step_seconds();
    candidate.index = filled_.size();
    filled_.push_back(std::move(*suggestion));
    queue_.push(candidate);
  }

  const AdviceRequest& request_;
  Advice advice_;
  std::vector<Layout> layouts_;
  std::vector<Suggestion> filled_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue_;
};

}  // namespace

std::optional<Suggestion> FastestFill(const AdviceRequest& request, const Config& config) {
  const Job& job = request.job;
  Config tried = config;
  OffloadOptimizerConfig& states = tried.zero_optimization.offload_optimizer;
  OffloadParamConfig& weights = tried.zero_optimization.offload_param;
  const std::vector<OffloadOptimizerConfig> places = PlacesOf(states);
  weights.device = OffloadDevice::kNone;
  std::optional<Suggestion> best;
  for (const OffloadOptimizerConfig& place : places) {
    states = place;
    if (!best || best->layout.offload_ratio() > 0) TakeFaster(best, Predicted(request, Fill(job, tried, request.fill)));
    if (!CanOffloadOptimizer(config, request.fill) ||
        (best && !Recomputes(*best) && best->layout.offload_ratio() == 0)) {
      return best;
    }
    TakeFaster(best, FastestOffload(request, tried, best ? &*best : nullptr));
  }
  if (best || tried.zero_optimization.zero_stage != 3) return best;
  for (const OffloadParamConfig& place : PlacesOf(config.zero_optimization.offload_param)) {
    weights = place;
    for (const OffloadOptimizerConfig& of_states : places) {
      states = of_states;
      states.ratio = 1;
      TakeFaster(best, Predicted(request, FillRecompute(job, tried, request.fill)));
    }
  }
  return best;
}

Advice Suggest(const AdviceRequest& request) { return Search(request).Run(); }

std::vector<std::string> Reasons(const AdviceRequest& request, const Advice& advice, const Suggestion& of) {
  const Plan& plan = of.plan;
  const Topology& t = plan.topology;
  const Prediction& p = of.prediction;
  std::vector<std::string> lines;
  std::string memory =
      fmt::format("{} of {} on the fullest rank", FormatBytes(of.needed_bytes), FormatBytes(request.fill.limit_bytes));
  if (plan.memory.host.total() > 0) memory += fmt::format(", {} on its host", FormatBytes(plan.memory.host.total()));
  memory += fmt::format("; recomputed: {}", DescribeRecompute(plan));
  if (advice.states_too_large > 0) {
    memory += fmt::format("; in {} of {} layouts the states alone take more", advice.states_too_large, advice.legal);
  }
  lines.push_back(memory);
  std::string topology = t.tp_size == 1 ? "no tensor parallelism"
                                        : fmt::format("tensor-parallel groups of {} inside nodes of {}", t.tp_size,
                                                      request.ranks_per_node);
  const int64_t nodes = (t.world_size() + request.ranks_per_node - 1) / request.ranks_per_node;
  if (nodes > 1) {
    const bool stages = t.pp_size > 1 && (t.dp_size == 1 || t.tp_size * t.dp_size >= request.ranks_per_node);
    topology += stages ? "; pipeline stages across nodes" : "; data parallelism across nodes";
  }
  if (advice.across_nodes > 0) {
    topology += fmt::format("; {} with groups across nodes left out", Counted(advice.across_nodes, "grid"));
  }
  lines.push_back(topology);
  std::string traffic = fmt::format("a rank sends {} a step", FormatBytes(plan.traffic.total()));
  traffic += fmt::format("; {:.1f} % of the step waits for it", 100 * p.exposed_share);
  if (t.pp_size > 1) traffic += fmt::format("; bubble {:.1f} %", 100 * p.bubble);
  lines.push_back(traffic);
  std::string speed = fmt::format("{:.4g} s a step, {} tokens/s, MFU {:.1f} %", p.step_seconds,
                                  FormatCount(static_cast<int64_t>(p.tokens_per_second)), 100 * p.mfu_full);
  if (advice.best.size() > 1 && &of == &advice.best.front()) {
    speed += fmt::format("; the next is {:.1f} % slower", 100 * (advice.best[1].step_seconds() / p.step_seconds - 1));
  }
  lines.push_back(speed);
  return lines;
}

}  // namespace trireme
