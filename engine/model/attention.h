// Causal self-attention of a block: fused product of query, key and value, rotation where the family turns, attention,
// output product. The block owns order and memory.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/model/linear.h"
#include "engine/model/rotary.h"
#include "engine/model/units.h"

namespace trireme {

class Attention {
 public:
  Attention(ParameterFinder& parameters, const std::string& prefix, const ModelSpec& model, int tp_size,
            std::shared_ptr<RotaryTable> rotary);

  kernels::AttentionShape ShapeOf(const UnitArgs& args) const;
  const Linear& qkv() const { return qkv_; }
  const Linear& out() const { return out_; }

  // qkv [T, width]: queries and keys turned by their positions, from first_position on.
  void Project(const at::Tensor& x, const UnitArgs& args, int64_t first_position, const at::Tensor& qkv) const;
  // From the gradient of the attention's output to dqkv before the rotation.
  void BackwardToQkv(const at::Tensor& dattended, const at::Tensor& qkv, const UnitArgs& args,
                     const std::vector<at::Tensor>& pool, const at::Tensor& dqkv) const;

 private:
  void Turn(const at::Tensor& qkv, const UnitArgs& args, int64_t first_position, bool inverse) const;

  kernels::AttentionShape heads_;
  std::shared_ptr<RotaryTable> rotary_;  // null: positions are learned
  Linear qkv_, out_;
};

}  // namespace trireme
