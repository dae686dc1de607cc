#include "engine/model/linear.h"

#include <fmt/core.h>

#include "engine/kernels/kernels.h"

namespace trireme {

Linear::Linear(ParameterFinder& parameters, const std::string& prefix, const std::vector<std::string_view>& names,
               const std::vector<int64_t>& rows, int64_t in, bool bias) {
  std::vector<std::string> weights, biases;
  for (const std::string_view name : names) {
    weights.push_back(fmt::format("{}.{}.weight", prefix, name));
    biases.push_back(fmt::format("{}.{}.bias", prefix, name));
  }
  weight_ = parameters.FindJoined(weights, rows, in);
  if (bias) bias_ = parameters.FindJoined(biases, rows, 0);
}

void Linear::Forward(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& residual, const at::Tensor& y,
                     bool adds) const {
  kernels::LinearForward(x, weight_.In(weights), bias_ && adds ? bias_->In(weights) : at::Tensor(),
                         adds ? residual : at::Tensor(), y);
}

void Linear::BackwardInput(const at::Tensor& dy, const at::Tensor& weights, const at::Tensor& dx) const {
  kernels::LinearBackwardInput(dy, weight_.In(weights), dx);
}

void Linear::BackwardWeight(const at::Tensor& dy, const at::Tensor& bias_dy, const at::Tensor& x, const UnitArgs& args,
                            const at::Tensor& scratch) const {
  kernels::LinearBackwardWeight(dy, x, weight_.In(args.gradients), args.add_gradients, scratch);
  if (bias_) kernels::LinearBackwardBias(bias_dy, bias_->In(args.gradients), args.add_gradients);
}

}  // namespace trireme
