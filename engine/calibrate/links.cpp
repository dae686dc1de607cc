#include "engine/calibrate/links.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/kernels/kernels.h"

#ifdef TRIREME_HAS_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace trireme::calibrate {
namespace {

constexpr double kOverlapSeconds = 20e-3;  // of collectives in one sample
constexpr int64_t kOverlapSamples = 7;
constexpr double kWorkSeconds = 2e-3;  // of compute between collectives, as between those of a small layer
// What a collective takes at least of a product and itself: noise makes nothing free.
constexpr double kLeastShare = 0.01;

// Work of lane dp beside that of the calling thread: another thread on the CPU, another stream on a GPU.
void Beside(at::Device device, const std::function<void(CommStream)>& side, const std::function<void()>& own) {
#ifdef TRIREME_HAS_CUDA
  if (device.is_cuda()) {
    const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index());
    side(stream.stream());
    own();
    stream.synchronize();
    return;
  }
#endif
  (void)device;
  std::exception_ptr failure;
  std::thread thread([&] {
    try {
      side(nullptr);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  own();
  thread.join();
  if (failure) std::rethrow_exception(failure);
}

class LinkRun {
 public:
  LinkRun(const Stopwatch& watch, const Sizes& sizes, Cluster& cluster, Figures& figures)
      : watch_(watch),
        sizes_(sizes),
        cluster_(cluster),
        figures_(figures),
        comm_(*watch.world().world),
        ranks_(comm_.size()),
        on_cpu_(watch.world().device.is_cpu()),
        buffer_(Zeros({sizes.link_bytes.back() / 4 / ranks_ * ranks_}, at::kFloat)),
        x_(Zeros({sizes.tokens.back(), sizes.hidden.back()}, on_cpu_ ? at::kFloat : at::kBFloat16)),
        weight_(Zeros({sizes.hidden.back(), sizes.hidden.back()}, x_.scalar_type())),
        y_(at::empty_like(x_)) {}

  void Run() {
    if (on_cpu_) {
      const double product = watch_.Time([&] { Product(); }).seconds;
      products_before_ = std::max<int64_t>(1, std::llround(kWorkSeconds / product));
    }
    const double k = ranks_;
    LinkDescription& link = cluster_.node_link;
    link.all_reduce =
        Measure("all-reduce", 2 * (k - 1) / k, [&](const at::Tensor& all) { comm_.AllReduce(all, ReduceOp::kSum); });
    link.reduce_scatter = Measure("reduce-scatter", (k - 1) / k, [&](const at::Tensor& all) {
      comm_.ReduceScatter(all, OwnPart(all), ReduceOp::kSum);
    });
    link.all_gather =
        Measure("all-gather", (k - 1) / k, [&](const at::Tensor& all) { comm_.AllGather(OwnPart(all), all); });
    // Neighbours in pairs, one sends and one receives; the last of an odd number looks on.
    const int peer = comm_.rank() ^ 1;
    link.transfer = Measure("transfer", 1, [&](const at::Tensor& all) {
      if (peer >= ranks_) return;
      comm_.rank() < peer ? comm_.Send(all, peer) : comm_.Recv(all, peer);
    });
    link.all = *link.all_reduce;
    MeasureOverlap();
  }

 private:
  at::Tensor Zeros(at::IntArrayRef shape, at::ScalarType type) const {
    return at::zeros(shape, at::TensorOptions().dtype(type).device(watch_.world().device));
  }
  void Product() const { kernels::LinearForward(x_, weight_, {}, {}, y_); }

  // What a collective adds to a product before it. Ranks on the CPU take unequal times for equal work, and their
  // threads sleep while they wait: a collective of a step costs several times what it does in a row of its like.
  // Neither is so on GPUs, where it is timed alone.
  Timing AfterWork(const std::function<void()>& collective) const {
    if (!on_cpu_) return watch_.Time(collective);
    const auto products_first = [&] {
      for (int64_t i = 0; i < products_before_; ++i) Product();
    };
    const Timing work = watch_.Time(products_first);  // anew each time: clocks drift
    const Timing both = watch_.Time([&] {
      products_first();
      collective();
    });
    return {std::max(both.seconds - work.seconds, kLeastShare * both.seconds), both.spread};
  }

  at::Tensor OwnPart(const at::Tensor& all) const {
    const int64_t part = all.numel() / ranks_;
    return all.narrow(0, comm_.rank() * part, part);
  }

  // `wire`: bytes that a rank sends for each of the tensor.
  LinkRate Measure(const char* name, double wire, const std::function<void(const at::Tensor&)>& operation) {
    std::vector<Point> points;
    double spread = 0;
    for (const int64_t bytes : sizes_.link_bytes) {
      const at::Tensor part = buffer_.narrow(0, 0, std::max<int64_t>(bytes / 4 / ranks_, 1) * ranks_);
      const Timing timing = AfterWork([&] { operation(part); });
      points.push_back({wire * static_cast<double>(part.nbytes()), timing.seconds});
      spread = std::max(spread, timing.spread);
    }
    const LinkRate rate = FitLink(points);
    figures_.push_back({fmt::format("{} of {} ranks", name, ranks_), rate.bytes_per_second, "B/s", spread});
    figures_.push_back({fmt::format("{}, latency", name), rate.latency_seconds, "s", spread});
    return rate;
  }

  // A chain of products beside a chain of reductions that takes half as long, alone and together. While the reductions
  // run the products keep `kept` of their speed: together = reductions + (products - kept * reductions).
  void MeasureOverlap() {
    const at::Device device = watch_.world().device;
    const auto product = [&] { Product(); };
    const auto reduce = [&](CommStream stream) { comm_.AllReduce(buffer_, ReduceOp::kSum, stream); };
    const double one_product = watch_.Time(product).seconds,
                 one_reduction = watch_.Time([&] { reduce(nullptr); }).seconds;
    const int64_t reductions = std::max<int64_t>(1, std::llround(kOverlapSeconds / one_reduction));
    const double reducing = static_cast<double>(reductions) * one_reduction;
    const int64_t products = std::max<int64_t>(1, std::llround(2 * reducing / one_product));
    const auto many_products = [&] {
      for (int64_t i = 0; i < products; ++i) product();
    };
    const auto many_reductions = [&](CommStream stream) {
      for (int64_t i = 0; i < reductions; ++i) reduce(stream);
    };
    const Timing alone = watch_.TimeSamples(many_products, 1, kOverlapSamples),
                 collectives = watch_.TimeSamples([&] { many_reductions(nullptr); }, 1, kOverlapSamples),
                 both = watch_.TimeSamples([&] { Beside(device, many_reductions, many_products); }, 1, kOverlapSamples);
    const double kept =
        std::clamp((collectives.seconds + alone.seconds - both.seconds) / collectives.seconds, 0.0, 1.0);
    if (!on_cpu_) {
      cluster_.device.communication_slowdown = 1 / std::max(kept, 0.1) - 1;
    } else {
      cluster_.overlap = {.data_parallel = kept, .tensor_parallel = kept, .pipeline = kept};
    }
    figures_.push_back({"speed of products beside collectives", kept, "", both.spread});
  }

  const Stopwatch& watch_;
  const Sizes& sizes_;
  Cluster& cluster_;
  Figures& figures_;
  Communicator& comm_;
  const int ranks_;
  const bool on_cpu_;
  int64_t products_before_ = 0;               // of a collective, on the CPU
  const at::Tensor buffer_, x_, weight_, y_;  // of the collectives; of a product between them
};

}  // namespace

LinkRate FitLink(const std::vector<Point>& points) {
  // Relative errors: each point weighs 1 / seconds^2.
  double weight = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const Point& p : points) {
    const double w = 1 / (p.seconds * p.seconds);
    weight += w;
    x += w * p.bytes;
    y += w * p.seconds;
    xx += w * p.bytes * p.bytes;
    xy += w * p.bytes * p.seconds;
  }
  const double spread = weight * xx - x * x;
  double slope = spread > 0 ? (weight * xy - x * y) / spread : 0;
  double latency = weight > 0 ? (y - slope * x) / weight : 0;
  if (slope <= 0) {  // no trend: what the largest took is all that is known
    slope = points.back().seconds / points.back().bytes;
    latency = 0;
  } else if (latency < 0) {
    latency = 0;
    slope = xy / xx;
  }
  return {.bytes_per_second = 1 / slope, .half_size_bytes = 0, .latency_seconds = latency};
}

void MeasureLinks(const Stopwatch& watch, const Sizes& sizes, Cluster& cluster, Figures& figures) {
  LinkRun(watch, sizes, cluster, figures).Run();
}

}  // namespace trireme::calibrate
