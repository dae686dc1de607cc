#include "engine/calibrate/compute.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "engine/kernels/kernels.h"
#include "engine/plan/unit_spec.h"

namespace trireme::calibrate {
namespace {

constexpr double kWarmSeconds = 1.5;    // of products first: clocks and power settle
constexpr int64_t kSmallElements = 64;  // of a kernel that only costs its start

at::ScalarType TypeOf(DType dtype) {
  return dtype == DType::kBFloat16  ? at::kBFloat16
         : dtype == DType::kFloat16 ? at::kHalf
         : dtype == DType::kFloat64 ? at::kDouble
                                    : at::kFloat;
}
at::ScalarType AccumulationType(at::ScalarType compute) { return compute == at::kDouble ? at::kDouble : at::kFloat; }

// Values of a trained network's size: zeros take less power, and run faster than a model does.
at::Tensor Normal(int64_t elements, at::ScalarType type, at::Device device) {
  at::Tensor tensor = at::empty({elements}, at::TensorOptions().dtype(type).device(device));
  kernels::InitNormal(tensor, /*seed=*/1, /*stream=*/0, 0, 1, 0, 0.02);
  return tensor;
}

at::Tensor First(const at::Tensor& buffer, std::vector<int64_t> shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return buffer.narrow(0, 0, elements).view(shape);
}

struct Matrix {
  int64_t out = 0, in = 0;
};

struct Shape {
  int64_t tokens = 0;
  Matrix matrix;
};

// The products of one type, in buffers that the largest of them fills.
class Products {
 public:
  Products(at::ScalarType type, at::Device device, const std::vector<Shape>& shapes) {
    int64_t rows = 0, largest = 0;
    for (const auto& [tokens, m] : shapes) {
      rows = std::max(rows, tokens * std::max(m.out, m.in));
      largest = std::max(largest, m.out * m.in);
    }
    x_ = Normal(rows, type, device);
    y_ = Normal(rows, type, device);
    weight_ = Normal(largest, type, device);
    gradient_ = at::zeros({largest}, at::TensorOptions().dtype(AccumulationType(type)).device(device));
    workspace_ = at::empty({kWeightScratchBytes}, at::TensorOptions().dtype(at::kByte).device(device));
  }
  void Forward(int64_t tokens, const Matrix& m) const {
    kernels::LinearForward(First(x_, {tokens, m.in}), First(weight_, {m.out, m.in}), {}, {},
                           First(y_, {tokens, m.out}));
  }
  void Input(int64_t tokens, const Matrix& m) const {
    kernels::LinearBackwardInput(First(y_, {tokens, m.out}), First(weight_, {m.out, m.in}), First(x_, {tokens, m.in}));
  }
  void Weight(int64_t tokens, const Matrix& m) const {
    kernels::LinearBackwardWeight(First(y_, {tokens, m.out}), First(x_, {tokens, m.in}),
                                  First(gradient_, {m.out, m.in}), /*add=*/true, workspace_);
  }

 private:
  at::Tensor x_, y_, weight_, gradient_, workspace_;
};

class ComputeRun {
 public:
  ComputeRun(const Stopwatch& watch, const Sizes& sizes, int64_t sharing, DeviceDescription& device, Figures& figures)
      : watch_(watch),
        sizes_(sizes),
        sharing_(static_cast<double>(sharing)),
        device_(device),
        figures_(figures),
        on_(watch.world().device) {}

  void Run() {
    KernelStart();
    for (const DType dtype : sizes_.dtypes) {
      MeasureProducts(dtype, /*all=*/dtype == sizes_.dtypes.front() || !on_.is_cuda());
      MeasureAttention(dtype);
    }
    MeasureElementwise(sizes_.dtypes.front());
    MeasureUpdate();
  }

 private:
  // What all ranks of the device do together in a second, if each does `amount` in the timing's.
  double Rate(double amount, const Timing& timing) const {
    return sharing_ * amount / std::max(timing.seconds - device_.kernel_seconds, 0.1 * timing.seconds);
  }
  double Show(const std::string& what, double value, const char* unit, const Timing& timing) {
    figures_.push_back({what, value, unit, timing.spread});
    return value;
  }

  void KernelStart() {
    const at::Tensor x = Normal(kSmallElements, at::kFloat, on_), y = at::empty_like(x);
    const Timing timing = watch_.Time([&] { kernels::GeluForward(x, y); });
    device_.kernel_seconds = timing.seconds;
    Show("a kernel of nothing", timing.seconds, "s", timing);
  }

  // Those of a block, and of the head on as many rows as it takes at a time.
  std::vector<Shape> ShapesOf(bool all) const {
    std::vector<int64_t> hidden = sizes_.hidden, tokens = sizes_.tokens;
    if (!all) {
      hidden = {hidden[hidden.size() / 2]};
      tokens = {tokens[tokens.size() / 2]};
    }
    std::vector<Shape> shapes;
    for (const int64_t h : hidden) {
      for (const int64_t t : tokens) {
        for (const Matrix m : {Matrix{3 * h, h}, Matrix{h, h}, Matrix{4 * h, h}, Matrix{h, 4 * h}}) {
          shapes.push_back({t, m});
        }
      }
      shapes.push_back({HeadChunkTokens(tokens.back(), sizes_.vocabulary), {sizes_.vocabulary, h}});
    }
    return shapes;
  }

  void MeasureProducts(DType dtype, bool all) {
    const std::vector<Shape> shapes = ShapesOf(all);
    const Products products(TypeOf(dtype), on_, shapes);
    if (on_.is_cuda()) Warm([&] { products.Forward(shapes.back().tokens, shapes.back().matrix); });
    double best = 0, worst_spread = 0;
    const auto measure = [&](int64_t m, int64_t n, int64_t k, const std::function<void()>& work) {
      const Timing timing = watch_.Time(work);
      const double rate = Rate(2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k), timing);
      device_.products.push_back({dtype, m, n, k, rate});
      best = std::max(best, rate);
      worst_spread = std::max(worst_spread, timing.spread);
    };
    for (const auto& [t, matrix] : shapes) {
      measure(t, matrix.out, matrix.in, [&] { products.Forward(t, matrix); });
      measure(t, matrix.in, matrix.out, [&] { products.Input(t, matrix); });
      measure(matrix.out, matrix.in, t, [&] { products.Weight(t, matrix); });
    }
    device_.rates[dtype].products = best;
    figures_.push_back(
        {fmt::format("products {}, best of {}", Name(dtype), 3 * shapes.size()), best, "FLOP/s", worst_spread});
  }

  void Warm(const std::function<void()>& work) const {
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < kWarmSeconds) {
      for (int i = 0; i < 20; ++i) work();
      Synchronise(on_);
    }
  }

  void MeasureAttention(DType dtype) {
    const int64_t heads = sizes_.attention_hidden / sizes_.head_size;
    const kernels::AttentionShape shape{.micro_batch_size = sizes_.attention_batch,
                                        .sequence_length = sizes_.sequence,
                                        .num_heads = heads,
                                        .num_kv_heads = heads,
                                        .head_size = sizes_.head_size};
    const at::Tensor qkv = Normal(shape.tokens() * shape.width(), TypeOf(dtype), on_).view({shape.tokens(), -1}),
                     dout = Normal(shape.tokens() * shape.query_width(), TypeOf(dtype), on_).view({shape.tokens(), -1}),
                     dqkv = at::empty_like(qkv);
    std::vector<at::Tensor> pool;
    const double useful = 2.0 * static_cast<double>(shape.tokens() * sizes_.sequence * sizes_.attention_hidden);
    ComputeRates& rates = device_.rates[dtype];
    const Timing forward = watch_.Time([&] { kernels::AttentionForward(qkv, shape, pool); });
    rates.attention_forward =
        Show(fmt::format("attention {}, forward", Name(dtype)), Rate(useful, forward), "FLOP/s", forward);
    const Timing backward = watch_.Time([&] { kernels::AttentionBackward(dout, qkv, shape, pool, dqkv); });
    rates.attention_backward =
        Show(fmt::format("attention {}, backward", Name(dtype)), Rate(2 * useful, backward), "FLOP/s", backward);
  }

  // A norm and an activation, forward and backward: what a block does beside products and attention.
  void MeasureElementwise(DType dtype) {
    const at::ScalarType type = TypeOf(dtype);
    const int64_t h = sizes_.elementwise_hidden, t = sizes_.elementwise_tokens;
    const auto rows = [&](int64_t width) { return Normal(t * width, type, on_).view({t, width}); };
    const auto sums = at::TensorOptions().dtype(AccumulationType(type)).device(on_);
    const at::Tensor x = rows(h), y = rows(h), dx = rows(h), fc = rows(4 * h), act = rows(4 * h), dfc = rows(4 * h),
                     weight = Normal(h, type, on_), bias = Normal(h, type, on_), mean = at::zeros({t}, sums),
                     rstd = at::zeros({t}, sums), dweight = at::zeros({h}, sums), dbias = at::zeros({h}, sums);
    const Timing timing = watch_.Time([&] {
      kernels::LayerNormForward(x, weight, bias, 1e-5, y, mean, rstd);
      kernels::GeluTanhForward(fc, act);
      kernels::GeluTanhBackward(fc, act, dfc);
      kernels::LayerNormBackward(y, x, mean, rstd, weight, y, dx, dweight, dbias, /*add=*/true);
    });
    const double bytes = static_cast<double>(t * h * 26 * static_cast<int64_t>(c10::elementSize(type)));
    device_.memory_bytes_per_second =
        Show(fmt::format("norms and activations {}", Name(dtype)), sharing_ * bytes / timing.seconds, "B/s", timing);
  }

  // States of a size that no cache holds.
  void MeasureUpdate() {
    const int64_t n = sizes_.wide_elements / 4;
    const Timing timing = TimeAdam(watch_, n, [&](int64_t elements, at::ScalarType type) {
      return at::empty({elements}, at::TensorOptions().dtype(type).device(on_));
    });
    device_.update_bytes_per_second =
        Show("Adam", sharing_ * static_cast<double>(n) * kAdamBytes / timing.seconds, "B/s", timing);
  }

  const Stopwatch& watch_;
  const Sizes& sizes_;
  const double sharing_;
  DeviceDescription& device_;
  Figures& figures_;
  const at::Device on_;
};

}  // namespace

Timing TimeAdam(const Stopwatch& watch, int64_t elements, const MakeFlat& make) {
  const auto fill = [&](double value, at::ScalarType type) { return make(elements, type).fill_(value); };
  const at::Tensor master = fill(0.02, at::kFloat), first = fill(1e-3, at::kFloat), second = fill(1e-6, at::kFloat),
                   gradient = fill(1e-3, at::kFloat), weights = fill(0, at::kBFloat16);
  const auto table = at::TensorOptions().dtype(at::kDouble).device(master.device());
  const at::Tensor state = at::zeros({kStepStateSize}, table), rates = at::full({1}, 1e-4, table),
                   betas = at::full({1, 2}, 0.95, table);
  state.narrow(0, kUpdateFactor, 1).fill_(0.7);
  state.narrow(0, kRateFactor, 1).fill_(1);
  state.narrow(0, kAppliedSteps, 1).fill_(10);
  return watch.Time([&] {
    kernels::AdamUpdate(master, first, second, gradient, weights, state, rates, betas, {.weight_decay = 0.1});
  });
}

void MeasureCompute(const Stopwatch& watch, const Sizes& sizes, int64_t sharing, DeviceDescription& device,
                    Figures& figures) {
  ComputeRun(watch, sizes, sharing, device, figures).Run();
}

}  // namespace trireme::calibrate
