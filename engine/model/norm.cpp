#include "engine/model/norm.h"

#include "engine/kernels/kernels.h"
#include "engine/plan/families/family.h"

namespace trireme {

Norm::Norm(ParameterFinder& parameters, const std::string& name, const ModelSpec& model)
    : weight_(parameters.Find(name + ".weight", {model.hidden_size})), epsilon_(model.layer_norm_epsilon) {
  if (!TraitsOf(model.family).rms_norm) bias_ = parameters.Find(name + ".bias", {model.hidden_size});
}

void Norm::Forward(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& y, const at::Tensor& mean,
                   const at::Tensor& rstd) const {
  if (bias_) {
    kernels::LayerNormForward(x, weight_.In(weights), bias_->In(weights), epsilon_, y, mean, rstd);
  } else {
    kernels::RmsNormForward(x, weight_.In(weights), epsilon_, y, rstd);
  }
}

void Norm::Backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
                    const at::Tensor& residual_gradient, const at::Tensor& dx, const UnitArgs& args) const {
  const at::Tensor weight = weight_.In(args.weights), dweight = weight_.In(args.gradients);
  if (bias_) {
    kernels::LayerNormBackward(dy, x, mean, rstd, weight, residual_gradient, dx, dweight, bias_->In(args.gradients),
                               args.add_gradients);
  } else {
    kernels::RmsNormBackward(dy, x, rstd, weight, residual_gradient, dx, dweight, args.add_gradients);
  }
}

}  // namespace trireme
