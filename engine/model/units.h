// What the layers of every family share: parameters of a unit by name, their views, and the place of saved activations.
#pragma once
#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "engine/model/unit.h"
#include "engine/plan/plan.h"

namespace trireme {

// Where a parameter lies in its unit's flat buffer, held shape.
struct ParameterPlace {
  int64_t begin = 0;  // elements
  std::vector<int64_t> shape;

  at::Tensor In(const at::Tensor& flat) const;
};

// The parameter whose name ends with `suffix`; its held shape must be `shape` (TRIREME_CHECK).
ParameterPlace FindParameter(const UnitLayout& layout, std::string_view suffix, std::vector<int64_t> shape);

// Index of the saved tensor `name` in spec.saved; it must have elements_per_token elements (TRIREME_CHECK).
size_t FindSaved(const UnitSpec& spec, std::string_view name, int64_t elements_per_token);

// gpt.cpp
std::vector<std::unique_ptr<Unit>> MakeGpt2Units(const Plan& plan);

}  // namespace trireme
