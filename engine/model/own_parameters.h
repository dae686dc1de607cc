// Parameters of a user's module, as this room handles them. Private to it.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/model/own_modules.h"

namespace trireme {

// Name within the module -> the module's own tensor (a handle: set_data changes it there), each tensor once, in the
// order of registration.
std::vector<std::pair<std::string, at::Tensor>> ParametersOf(const OwnModule& own);

// Whether an AutogradLayer has made the parameter a view of its unit's weights: their storage is nobody's to resize.
inline bool IsBound(const at::Tensor& parameter) { return parameter.has_storage() && !parameter.storage().resizable(); }

}  // namespace trireme
