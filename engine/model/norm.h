// LayerNorm or RMSNorm over a unit's flat buffers, as the family has it.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "engine/model/units.h"

namespace trireme {

// x, y: [T, h]; mean (LayerNorm only), rstd: [T].
class Norm {
 public:
  // Weight "{name}.weight" and, for LayerNorm, "{name}.bias".
  Norm(ParameterFinder& parameters, const std::string& name, const ModelSpec& model);

  bool has_mean() const { return bias_.has_value(); }
  void Forward(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& y, const at::Tensor& mean,
               const at::Tensor& rstd) const;
  // dx = gradient of x (+ residual_gradient where defined); gradients of the parameters by args.add_gradients.
  void Backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
                const at::Tensor& residual_gradient, const at::Tensor& dx, const UnitArgs& args) const;

 private:
  ParameterPlace weight_;
  std::optional<ParameterPlace> bias_;
  double epsilon_ = 0;
};

}  // namespace trireme
