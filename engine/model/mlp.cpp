#include "engine/model/mlp.h"

#include "engine/kernels/kernels.h"
#include "engine/plan/families/family.h"

namespace trireme {

Mlp::Mlp(ParameterFinder& parameters, const std::string& prefix, const ModelSpec& model, int tp_size)
    : activation_(model.activation),
      intermediate_(model.intermediate_size / tp_size),
      fc_(parameters, prefix, TraitsOf(model.family).fc, FcRows(TraitsOf(model.family), BlockWidths(model, tp_size)),
          model.hidden_size, model.mlp_bias),
      out_(parameters, prefix, {TraitsOf(model.family).mlp_out}, {model.hidden_size}, intermediate_, model.mlp_bias) {}

void Mlp::Forward(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& fc, const at::Tensor& act) const {
  fc_.Forward(x, weights, {}, fc);
  Activate(fc, act);
}

void Mlp::Activate(const at::Tensor& fc, const at::Tensor& act) const {
  switch (activation_) {
    case Activation::kGeluTanh:
      kernels::GeluTanhForward(fc, act);
      break;
    case Activation::kGelu:
      kernels::GeluForward(fc, act);
      break;
    case Activation::kSilu:
      kernels::SwiGluForward(fc, act);
      break;
  }
}

void Mlp::BackwardToFc(const at::Tensor& dout, const at::Tensor& fc, const at::Tensor& weights, const at::Tensor& dact,
                       const at::Tensor& dfc) const {
  out_.BackwardInput(dout, weights, dact);
  switch (activation_) {
    case Activation::kGeluTanh:
      kernels::GeluTanhBackward(fc, dact, dfc);
      break;
    case Activation::kGelu:
      kernels::GeluBackward(fc, dact, dfc);
      break;
    case Activation::kSilu:
      kernels::SwiGluBackward(fc, dact, dfc);
      break;
  }
}

}  // namespace trireme
