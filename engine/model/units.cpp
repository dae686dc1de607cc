#include "engine/model/units.h"

#include <fmt/core.h>

#include "engine/base/error.h"
#include "engine/model/flat_view.h"

namespace trireme {

void Unit::BackwardInput(UnitArgs&) { TRIREME_CHECK(false, "the unit's backward pass is one piece"); }
void Unit::BackwardWeight(UnitArgs&) { TRIREME_CHECK(false, "the unit's backward pass is one piece"); }
void Unit::Decode(UnitArgs&, KeyValueCache*, int64_t) { TRIREME_CHECK(false, "the unit generates no text"); }
void Unit::Logits(UnitArgs&, int64_t, const at::Tensor&) { TRIREME_CHECK(false, "only the head has logits"); }

at::Tensor ParameterPlace::In(const at::Tensor& flat) const {
  return ViewOf(flat, begin * static_cast<int64_t>(flat.element_size()), flat.scalar_type(), shape);
}

ParameterPlace FindParameter(const UnitLayout& layout, std::string_view suffix, std::vector<int64_t> shape) {
  for (const Segment& segment : layout.segments) {
    if (!std::string_view(segment.parameter.name).ends_with(suffix)) continue;
    TRIREME_CHECK(
        segment.parameter.HeldShape() == shape,
        fmt::format("{} is held with {} elements, the layer's shape differs", segment.parameter.name, segment.count));
    return {segment.begin, std::move(shape)};
  }
  TRIREME_CHECK(false, fmt::format("unit {} has no parameter *{}", layout.spec.name, suffix));
}

size_t FindSaved(const UnitSpec& spec, std::string_view name, int64_t elements_per_token) {
  for (size_t i = 0; i < spec.saved.size(); ++i) {
    if (spec.saved[i].name != name) continue;
    TRIREME_CHECK(spec.saved[i].elements_per_token == elements_per_token,
                  fmt::format("{} of {} saves {} elements a token, the layer {}", name, spec.name,
                              spec.saved[i].elements_per_token, elements_per_token));
    return i;
  }
  TRIREME_CHECK(false, fmt::format("unit {} saves no {}", spec.name, name));
}

std::vector<std::unique_ptr<Unit>> MakeUnits(const Plan& plan) {
  switch (plan.model.family) {
    case Family::kGpt2:
      return MakeGpt2Units(plan);
    default:
      break;
  }
  TRIREME_CHECK(false, "a model family without layers");
}

}  // namespace trireme
