// The MLP of a block: product, GELU, product; or gate and up in one product, SwiGLU, product.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "engine/model/linear.h"
#include "engine/model/units.h"

namespace trireme {

class Mlp {
 public:
  Mlp(ParameterFinder& parameters, const std::string& prefix, const ModelSpec& model, int tp_size);

  const Linear& fc() const { return fc_; }
  const Linear& out() const { return out_; }
  bool gated() const { return activation_ == Activation::kSilu; }
  int64_t fc_width() const { return gated() ? 2 * intermediate_ : intermediate_; }
  int64_t intermediate() const { return intermediate_; }

  // fc: [T, fc_width], act: [T, intermediate].
  void Forward(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& fc, const at::Tensor& act) const;
  void Activate(const at::Tensor& fc, const at::Tensor& act) const;
  // dout -> dfc. dact: [T, intermediate] scratch; dfc itself where the MLP is not gated.
  void BackwardToFc(const at::Tensor& dout, const at::Tensor& fc, const at::Tensor& weights, const at::Tensor& dact,
                    const at::Tensor& dfc) const;

 private:
  const Activation activation_;
  const int64_t intermediate_;
  const Linear fc_, out_;
};

}  // namespace trireme
