// A user's module behind the contract of a unit: LibTorch's autograd makes the backward pass.
//   std::vector<std::unique_ptr<Unit>> units = MakeUnits(plan, modules, device);
//
// The module's parameters are views of one storage, whose address becomes that of UnitArgs::weights at each call. What
// autograd keeps of a parameter, a transposed view too, therefore reads the weights of the backward call, wherever ZeRO
// 3 has gathered them by then. Memory that autograd keeps is LibTorch's, from its pool; no plan counts it.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/model/own_modules.h"
#include "engine/model/unit.h"
#include "engine/model/units.h"

namespace trireme {

// Errors of the module or in what it returns: Error{kUsage, OWN005..OWN007}.
class AutogradLayer final : public Unit {
 public:
  // `unit`: index in the plan. The module's buffers go to `device`.
  AutogradLayer(const Plan& plan, int unit, const OwnModule& module, at::Device device);
  ~AutogradLayer() override;  // empties the module's parameters
  AutogradLayer(const AutogradLayer&) = delete;
  AutogradLayer& operator=(const AutogradLayer&) = delete;

  // kKeep leaves the output with its graph and the input in Saved::pool, and no more. The head makes loss and gradients
  // at once and leaves nothing.
  void Forward(UnitArgs& args) override;
  void Backward(UnitArgs& args) override;

 private:
  struct Parameter {
    at::Tensor tensor;  // the module's own
    ParameterPlace place;
  };

  void Bind(const at::Tensor& weights);
  void SetMode(bool training);
  at::Tensor InputOf(const UnitArgs& args, bool differentiates) const;
  at::Tensor Call(const UnitArgs& args, const at::Tensor& input);
  void CheckOutput(const UnitArgs& args, const at::Tensor& output) const;
  void CheckBuffers() const;
  void Loss(UnitArgs& args, const at::Tensor& input, const at::Tensor& logits);
  void Differentiate(UnitArgs& args, const at::Tensor& input, const at::Tensor& output,
                     const at::Tensor& output_gradient);

  const OwnModule own_;
  const std::string name_;
  const UnitKind kind_;
  const int unit_;
  const at::ScalarType compute_;
  const int64_t hidden_, vocab_;
  std::vector<Parameter> parameters_;
  std::vector<at::Tensor> buffers_;
  std::vector<int64_t> buffer_versions_;
  at::Tensor whole_;  // over the storage that all parameters view; its address is that of the last call's weights
};

// The units of a plan: the user's modules where UnitSpec::autograd says so, and the family's.
std::vector<std::unique_ptr<Unit>> MakeUnits(const Plan& plan, const OwnModules& modules, at::Device device);

}  // namespace trireme
