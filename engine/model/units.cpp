#include "engine/model/units.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/model/flat_view.h"
#include "engine/model/rotary.h"
#include "engine/model/rows.h"

namespace trireme {

void Unit::BackwardInput(UnitArgs&) { TRIREME_CHECK(false, "the unit's backward pass is one piece"); }
void Unit::BackwardWeight(UnitArgs&) { TRIREME_CHECK(false, "the unit's backward pass is one piece"); }
void Unit::Decode(UnitArgs&, KeyValueCache*, int64_t) { TRIREME_CHECK(false, "the unit generates no text"); }
void Unit::Logits(UnitArgs&, int64_t, const at::Tensor&) { TRIREME_CHECK(false, "only the head has logits"); }

at::Tensor ParameterPlace::In(const at::Tensor& flat) const {
  return ViewOf(flat, begin * static_cast<int64_t>(flat.element_size()), flat.scalar_type(), shape);
}

ParameterPlace ParameterFinder::Find(std::string_view name, std::vector<int64_t> shape) {
  for (const Segment& segment : layout_.segments) {
    if (segment.parameter.name != name) continue;
    TRIREME_CHECK(
        segment.parameter.HeldShape() == shape,
        fmt::format("{} is held with {} elements, the layer's shape differs", segment.parameter.name, segment.count));
    ++found_;
    return {segment.begin, std::move(shape)};
  }
  TRIREME_CHECK(false, fmt::format("unit {} has no parameter {}", layout_.spec.name, name));
}

ParameterPlace ParameterFinder::FindJoined(const std::vector<std::string>& names, const std::vector<int64_t>& rows,
                                           int64_t columns) {
  const auto shape = [&](int64_t count) {
    return columns > 0 ? std::vector<int64_t>{count, columns} : std::vector<int64_t>{count};
  };
  ParameterPlace joined;
  int64_t total = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    const ParameterPlace part = Find(names[i], shape(rows[i]));
    if (i == 0) joined.begin = part.begin;
    TRIREME_CHECK(part.begin == joined.begin + total * std::max<int64_t>(columns, 1),
                  fmt::format("{} does not begin where {} ends", names[i], names[i == 0 ? 0 : i - 1]));
    total += rows[i];
  }
  joined.shape = shape(total);
  return joined;
}

void ParameterFinder::CheckAllFound() const {
  TRIREME_CHECK(found_ == layout_.segments.size(),
                fmt::format("{} has {} parameters, its layer {}", layout_.spec.name, layout_.segments.size(), found_));
}

size_t SavedViews::Find(std::string_view name, int64_t elements_per_token) {
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (specs_[i].name != name) continue;
    TRIREME_CHECK(specs_[i].elements_per_token == elements_per_token,
                  fmt::format("{} has {} elements a token, in the layer {}", name, specs_[i].elements_per_token,
                              elements_per_token));
    ++found_;
    return i;
  }
  TRIREME_CHECK(false, fmt::format("the unit saves no {}", name));
}

void SavedViews::CheckAllFound() const {
  TRIREME_CHECK(found_ == specs_.size(), fmt::format("{} saved tensors, the layer has {}", specs_.size(), found_));
}

at::Tensor SavedViews::In(const at::Tensor& buffer, size_t index, int64_t tokens) const {
  const SavedSpec& spec = specs_[index];
  const at::ScalarType compute = ScalarTypeOf(dtypes_.compute);
  const at::ScalarType type = spec.compute_dtype ? compute : StatisticsType(compute);
  if (spec.place == SavedSpec::Place::kRemade) return {};
  const int64_t offset = LayoutFor(tokens).offsets[index];
  const int64_t rows = tokens / spec.token_share;
  if (!spec.compute_dtype) return ViewOf(buffer, offset, type, {rows});
  return ViewOf(buffer, offset, type, {rows, spec.elements_per_token});
}

const SavedLayout& SavedViews::LayoutFor(int64_t tokens) const {
  if (tokens != laid_out_tokens_) {
    layout_ = LayOutSaved(specs_, dtypes_, tokens);
    laid_out_tokens_ = tokens;
  }
  return layout_;
}

int64_t PaddedVocab(const ModelSpec& model) { return std::max(model.vocab_size, model.padded_vocab_size); }

kernels::DropoutKey DropoutKeyOf(const UnitArgs& args, int64_t layer, int site) {
  kernels::DropoutKey key;
  key.probability = args.dropout.probability;
  key.seed = args.dropout.seed;
  key.step = args.dropout.step;
  key.first_sample = args.dropout.first_sample;
  key.layer = layer;
  key.site = site;
  key.sequence_length = args.sequence_length;
  key.first_row = FirstOwnRow(args);
  return key;
}

std::vector<std::unique_ptr<Unit>> MakeUnits(const Plan& plan) {
  TRIREME_CHECK(plan.units.size() >= 2,
                fmt::format("{} units, a decoder has at least embedding and head", plan.units.size()));
  const std::shared_ptr<RotaryTable> rotary = plan.model.rotary() ? std::make_shared<RotaryTable>(plan) : nullptr;
  std::vector<std::unique_ptr<Unit>> units;
  for (const UnitLayout& layout : plan.units) {
    units.emplace_back();
    if (layout.spec.autograd) continue;
    switch (layout.spec.kind) {
      case UnitKind::kEmbedding:
        units.back() = MakeEmbedding(plan);
        break;
      case UnitKind::kBlock:
        units.back() = MakeDecoderBlock(plan, layout, rotary);
        break;
      case UnitKind::kHead:
        units.back() = MakeHead(plan);
        break;
    }
  }
  return units;
}

}  // namespace trireme
