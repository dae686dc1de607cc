// A product with one weight, or with several that lie joined in the flat buffer, and an optional bias.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/units.h"

namespace trireme {

// x: [T, in], y, dy: [T, sum of rows].
class Linear {
 public:
  // Weights "{prefix}.{name}.weight" [rows, in], biases "{prefix}.{name}.bias" [rows].
  Linear(ParameterFinder& parameters, const std::string& prefix, const std::vector<std::string_view>& names,
         const std::vector<int64_t>& rows, int64_t in, bool bias);

  // `adds` false: a part of a sum over tp ranks, to which another rank adds bias and residual.
  void Forward(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& residual, const at::Tensor& y,
               bool adds = true) const;
  void BackwardInput(const at::Tensor& dy, const at::Tensor& weights, const at::Tensor& dx) const;
  // Gradients of weight and bias, written or added (args.add_gradients); the bias's from bias_dy, the rows that this
  // rank counts. scratch: kernels::LinearBackwardWeight's.
  void BackwardWeight(const at::Tensor& dy, const at::Tensor& bias_dy, const at::Tensor& x, const UnitArgs& args,
                      const at::Tensor& scratch) const;

 private:
  ParameterPlace weight_;
  std::optional<ParameterPlace> bias_;
};

}  // namespace trireme
