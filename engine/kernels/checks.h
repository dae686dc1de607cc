// Checks of arguments that kernels.cpp and attention.cpp share: our bugs only.
#pragma once
#include <ATen/core/Tensor.h>
#include <fmt/core.h>

#include <initializer_list>
#include <string>

#include "engine/base/error.h"
#include "engine/kernels/kernels.h"

namespace trireme::kernels {

inline std::string ShapeText(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::string text = "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) text += fmt::format("{}{}", i > 0 ? ", " : "", tensor.size(i));
  return text + "] " + std::string(c10::toString(tensor.scalar_type()));
}

inline void CheckShape(const at::Tensor& tensor, std::initializer_list<int64_t> shape, const char* name) {
  bool good = tensor.defined() && tensor.dim() == static_cast<int64_t>(shape.size());
  int64_t dim = 0;
  for (int64_t size : shape) good = good && tensor.size(dim++) == size;
  good = good && tensor.is_contiguous();
  if (good) return;
  std::string wanted;
  for (int64_t size : shape) wanted += fmt::format(" {}", size);
  TRIREME_CHECK(good, fmt::format("{} is {}, wanted a contiguous tensor of shape{}", name, ShapeText(tensor), wanted));
}

inline void CheckAttentionShape(const at::Tensor& qkv, const AttentionShape& shape, const char* name) {
  TRIREME_CHECK(shape.num_kv_heads > 0 && shape.num_heads > 0 && shape.num_heads % shape.num_kv_heads == 0 &&
                    shape.head_size > 0 && (!shape.interleaved || shape.num_kv_heads == shape.num_heads),
                fmt::format("{} heads over {} key heads of size {}{}", shape.num_heads, shape.num_kv_heads,
                            shape.head_size, shape.interleaved ? ", interleaved" : ""));
  CheckShape(qkv, {shape.tokens(), shape.width()}, name);
}

inline void CheckType(const at::Tensor& tensor, at::ScalarType type, const char* name) {
  TRIREME_CHECK(tensor.scalar_type() == type,
                fmt::format("{} is {}, wanted {}", name, ShapeText(tensor), c10::toString(type)));
}

inline void CheckFlat(const at::Tensor& tensor, int64_t count, const char* name) { CheckShape(tensor, {count}, name); }

inline void CheckState(const at::Tensor& state) {
  CheckShape(state, {kStepStateSize}, "step_state");
  CheckType(state, at::kDouble, "step_state");
}

inline void CheckSameDevice(const at::Tensor& first, std::initializer_list<const at::Tensor*> others) {
  for (const at::Tensor* other : others) {
    TRIREME_CHECK(!other->defined() || other->device() == first.device(),
                  fmt::format("tensors on {} and {} in one call", first.device().str(), other->device().str()));
  }
}

inline at::ScalarType AccumulateScalar(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

// A gradient's type beside a compute type.
inline void CheckGradientType(const at::Tensor& gradient, at::ScalarType compute, const char* name) {
  const at::ScalarType type = gradient.scalar_type();
  TRIREME_CHECK(type == compute || (type == at::kFloat && compute != at::kDouble),
                fmt::format("{} is {} beside compute type {}", name, ShapeText(gradient), c10::toString(compute)));
}

}  // namespace trireme::kernels
