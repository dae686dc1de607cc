#include "engine/model/autograd_layer.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include <mutex>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "engine/model/flat_view.h"
#include "engine/model/own_parameters.h"

namespace trireme {
namespace {

using at::Tensor;

std::string ShapeText(at::IntArrayRef shape) {
  std::string text = "[";
  for (const int64_t extent : shape) text += fmt::format("{}{}", text.size() > 1 ? ", " : "", extent);
  return text + "]";
}

// The default generators of LibTorch, set to `seed` while this lives and then put back. They are the process's: ranks
// that are threads take turns.
class SeededDraws {
 public:
  SeededDraws(at::Device device, uint64_t seed) : lock_(Turn()) {
    Seed(at::globalContext().defaultGenerator(at::kCPU), seed);
    if (!device.is_cpu()) Seed(at::globalContext().defaultGenerator(device), seed);
  }
  ~SeededDraws() {
    for (auto& [generator, state] : before_) generator.set_state(state);
  }
  SeededDraws(const SeededDraws&) = delete;
  SeededDraws& operator=(const SeededDraws&) = delete;

 private:
  static std::mutex& Turn() {
    static std::mutex turn;
    return turn;
  }
  void Seed(at::Generator generator, uint64_t seed) {
    before_.emplace_back(generator, generator.get_state());
    generator.set_current_seed(seed);
  }

  std::lock_guard<std::mutex> lock_;
  std::vector<std::pair<at::Generator, Tensor>> before_;
};

// splitmix64 over the parts of the seed.
uint64_t Mix(std::initializer_list<uint64_t> parts) {
  uint64_t mixed = 0;
  for (const uint64_t part : parts) {
    uint64_t z = (mixed ^ part) + 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    mixed = z ^ (z >> 31);
  }
  return mixed;
}

// [count] of `flat` from an element on.
Tensor Range(const Tensor& flat, int64_t begin, int64_t count) {
  return ViewOf(flat, begin * static_cast<int64_t>(flat.element_size()), flat.scalar_type(), {count});
}

void WriteGradient(const Tensor& gradient, const Tensor& target, bool add) {
  if (!gradient.defined()) {  // the output does not depend on this parameter
    if (!add) target.zero_();
    return;
  }
  const Tensor flat = (gradient.is_sparse() ? gradient.to_dense() : gradient).contiguous().view({-1});
  if (add) {
    kernels::AddInto(flat, target);
  } else {
    kernels::CastCopy(flat, target);
  }
}

}  // namespace

AutogradLayer::AutogradLayer(const Plan& plan, int unit, const OwnModule& module, at::Device device)
    : own_(module),
      name_(plan.units[static_cast<size_t>(unit)].spec.name),
      kind_(plan.units[static_cast<size_t>(unit)].spec.kind),
      unit_(unit),
      compute_(ScalarTypeOf(plan.dtypes.compute)),
      hidden_(plan.model.hidden_size),
      vocab_(plan.model.vocab_size),
      buffers_(BuffersOf(module)) {
  const UnitLayout& layout = plan.units[static_cast<size_t>(unit)];
  const auto parameters = ParametersOf(own_);
  TRIREME_CHECK(parameters.size() == layout.segments.size(), name_ + ": another module than the plan's");
  for (size_t p = 0; p < parameters.size(); ++p) {
    const Segment& segment = layout.segments[p];
    TRIREME_CHECK(parameters[p].second.sizes() == at::IntArrayRef(segment.parameter.shape), segment.parameter.name);
    parameters_.push_back({parameters[p].second, {segment.begin, segment.parameter.shape}});
  }
  for (Tensor& buffer : buffers_) {
    buffer.set_data(buffer.to(device, buffer.is_floating_point() ? compute_ : buffer.scalar_type()));
    buffer_versions_.push_back(buffer._version());
  }
}

AutogradLayer::~AutogradLayer() {
  if (!whole_.defined()) return;
  for (Parameter& parameter : parameters_) {
    parameter.tensor.set_data(at::empty({0}, parameter.tensor.options().requires_grad(false)));
  }
}

void AutogradLayer::Bind(const Tensor& weights) {
  at::DataPtr address(weights.mutable_data_ptr(), weights.device());
  if (whole_.defined()) {
    whole_.storage().set_data_ptr_noswap(std::move(address));
    return;
  }
  c10::Storage storage(c10::Storage::use_byte_size_t(), weights.nbytes(), std::move(address), /*allocator=*/nullptr,
                       /*resizable=*/false);
  whole_ = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), weights.key_set(), weights.dtype());
  whole_.unsafeGetTensorImpl()->set_sizes_contiguous(weights.sizes());
  for (Parameter& parameter : parameters_) parameter.tensor.set_data(parameter.place.In(whole_));
}

void AutogradLayer::SetMode(bool training) {
  if (own_.module && own_.module->is_training() != training) own_.module->train(training);
}

// Views of the arena: what they hold stays until Backward.
Tensor AutogradLayer::InputOf(const UnitArgs& args, bool differentiates) const {
  const int64_t micro = args.micro_batch_size, sequence = args.sequence_length;
  // A row past the end of an evaluation holds -1: any token will do, since it has no loss.
  if (kind_ == UnitKind::kEmbedding) return args.tokens.narrow(1, 0, sequence).to(at::kLong).clamp_min(0);
  return ViewOf(args.input, 0, compute_, {micro, sequence, hidden_}).set_requires_grad(differentiates);
}

Tensor AutogradLayer::Call(const UnitArgs& args, const Tensor& input) {
  const auto version = input._version();
  Tensor output;
  try {
    std::optional<SeededDraws> draws;
    const DropoutArgs& at = args.dropout;
    if (args.use != ForwardUse::kEvaluate) {
      draws.emplace(args.weights.device(), Mix({at.seed, static_cast<uint64_t>(at.step),
                                                static_cast<uint64_t>(at.first_sample), static_cast<uint64_t>(unit_)}));
    }
    output = own_.forward(input);
  } catch (const c10::Error& error) {
    throw Error(
        ErrorCode::kUsage, "OWN005",
        fmt::format("the module failed on its input {}: {}", ShapeText(input.sizes()), error.what_without_backtrace()),
        name_, "mend its forward(); it must not change its input in place");
  }
  if (input._version() != version) {
    throw Error(ErrorCode::kUsage, "OWN005", "the module changes its input in place", name_,
                "make a new tensor: the input is read once more in the backward pass");
  }
  CheckOutput(args, output);
  CheckBuffers();
  return output.scalar_type() == compute_ ? output : output.to(compute_);
}

void AutogradLayer::CheckOutput(const UnitArgs& args, const Tensor& output) const {
  const bool head = kind_ == UnitKind::kHead;
  const std::string wanted = fmt::format("[{}, {}, {}{}]", args.micro_batch_size, args.sequence_length,
                                         head ? "at least " : "", head ? vocab_ : hidden_);
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::kUsage, "OWN006", fmt::format("the module returned {}, wanted {}", what, wanted), name_,
                head ? "a head returns the logits of every token" : "return one vector of the hidden size a token");
  };
  if (!output.defined()) fail("no tensor");
  const bool shaped = output.dim() == 3 && output.size(0) == args.micro_batch_size &&
                      output.size(1) == args.sequence_length &&
                      (head ? output.size(2) >= vocab_ : output.size(2) == hidden_);
  if (!shaped) fail(ShapeText(output.sizes()));
  if (!output.is_floating_point() || output.is_sparse() || output.device() != args.weights.device()) {
    fail(fmt::format("{} of type {} on {}", ShapeText(output.sizes()), c10::toString(output.scalar_type()),
                     output.device().str()));
  }
}

void AutogradLayer::CheckBuffers() const {
  for (size_t b = 0; b < buffers_.size(); ++b) {
    if (buffers_[b]._version() == buffer_versions_[b]) continue;
    throw Error(ErrorCode::kUsage, "OWN007",
                fmt::format("the module changed its buffer number {} of shape {}", b, ShapeText(buffers_[b].sizes())),
                name_, "buffers are constants: no checkpoint holds them, and ranks would come apart");
  }
}

void AutogradLayer::Forward(UnitArgs& args) {
  const bool head = kind_ == UnitKind::kHead;
  const bool differentiates = args.use == ForwardUse::kKeep && (head ? args.input_gradient : args.weights).defined();
  Bind(args.weights);
  SetMode(args.use != ForwardUse::kEvaluate);
  const at::AutoGradMode graph(differentiates);
  const Tensor input = InputOf(args, differentiates && kind_ != UnitKind::kEmbedding);
  const Tensor output = Call(args, input);
  const at::NoGradGuard no_graph;
  if (head) return Loss(args, input, output);
  if (args.output.defined()) ViewOf(args.output, 0, compute_, output.sizes()).copy_(output);
  if (differentiates && args.saved != nullptr) args.saved->pool = {output, input};
}

// Autograd may read the logits again, so their gradient is made in a copy.
void AutogradLayer::Loss(UnitArgs& args, const Tensor& input, const Tensor& logits) {
  const bool train = args.input_gradient.defined();
  const int64_t tokens = args.micro_batch_size * args.sequence_length;
  Tensor rows = logits.detach().reshape({tokens, logits.size(2)}).contiguous();
  Workspace workspace(args.workspace);
  const Tensor losses = workspace.Take(compute_ == at::kDouble ? at::kDouble : at::kFloat, {tokens});
  if (!train) return kernels::CrossEntropyForward(rows, args.tokens, 0, vocab_, losses, args.step_state);
  if (rows.is_alias_of(logits)) rows = rows.clone();
  kernels::CrossEntropyForwardBackward(rows, args.tokens, 0, vocab_, args.gradient_scale, losses, args.step_state);
  Differentiate(args, input, logits, rows.view(logits.sizes()));
}

void AutogradLayer::Backward(UnitArgs& args) {
  TRIREME_CHECK(args.saved != nullptr && args.saved->pool.size() == 2, "Backward reads what Forward kept");
  Bind(args.weights);
  const Tensor output = std::exchange(args.saved->pool[0], Tensor()),
               input = std::exchange(args.saved->pool[1], Tensor());
  Differentiate(args, input, output, ViewOf(args.output_gradient, 0, compute_, output.sizes()));
}

// On a GPU autograd runs each step on the stream of its forward, which is the compute lane's, and has joined the
// current stream when it returns.
void AutogradLayer::Differentiate(UnitArgs& args, const Tensor& input, const Tensor& output,
                                  const Tensor& output_gradient) {
  const bool has_input = kind_ != UnitKind::kEmbedding;
  std::vector<Tensor> inputs, gradients;
  if (has_input) inputs.push_back(input);
  for (const Parameter& parameter : parameters_) inputs.push_back(parameter.tensor);
  gradients.resize(inputs.size());
  if (output.requires_grad() && !inputs.empty()) {
    try {
      gradients = torch::autograd::grad({output}, inputs, {output_gradient}, /*retain_graph=*/false,
                                        /*create_graph=*/false, /*allow_unused=*/true);
    } catch (const c10::Error& error) {
      throw Error(ErrorCode::kUsage, "OWN005",
                  fmt::format("the module's backward pass failed: {}", error.what_without_backtrace()), name_,
                  "mend its forward(), or its own autograd functions");
    }
  }
  const at::NoGradGuard no_graph;
  if (has_input) WriteGradient(gradients[0], args.input_gradient.view({-1}), /*add=*/false);
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const ParameterPlace& place = parameters_[p].place;
    Tensor& gradient = gradients[p + (has_input ? 1 : 0)];
    WriteGradient(gradient, Range(args.gradients, place.begin, parameters_[p].tensor.numel()), args.add_gradients);
    gradient = Tensor();
  }
}

std::vector<std::unique_ptr<Unit>> MakeUnits(const Plan& plan, const OwnModules& modules, at::Device device) {
  std::vector<std::unique_ptr<Unit>> units = MakeUnits(plan);
  for (size_t u = 0; u < units.size(); ++u) {
    const OwnModule* own = FindOwnModule(modules, plan.units[u].spec);
    if (own != nullptr) units[u] = std::make_unique<AutogradLayer>(plan, static_cast<int>(u), *own, device);
  }
  return units;
}

}  // namespace trireme
