// What the units of every family share: their parameters by name, and views of what Forward leaves for Backward.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/kernels/kernels.h"
#include "engine/model/unit.h"
#include "engine/plan/plan.h"

namespace trireme {

class RotaryTable;

// Where a parameter, or several that lie one behind the other, are in their unit's flat buffer; held shape.
struct ParameterPlace {
  int64_t begin = 0;  // elements
  std::vector<int64_t> shape;

  at::Tensor In(const at::Tensor& flat) const;
};

// Looks parameters of one unit up and counts them, so that a layer and its spec cannot disagree (TRIREME_CHECK).
class ParameterFinder {
 public:
  explicit ParameterFinder(const UnitLayout& layout) : layout_(layout) {}

  // The parameter of this name; its held shape must be `shape`.
  ParameterPlace Find(std::string_view name, std::vector<int64_t> shape);
  // Parameters that one product reads: each begins where the one before it ends. `rows` of each; columns 0: vectors.
  ParameterPlace FindJoined(const std::vector<std::string>& names, const std::vector<int64_t>& rows, int64_t columns);
  void CheckAllFound() const;

 private:
  const UnitLayout& layout_;
  size_t found_ = 0;
};

// Views of UnitSpec::saved or ::deferred in their buffer. Vectors where the spec has one element a token.
class SavedViews {
 public:
  SavedViews(std::vector<SavedSpec> specs, const PlanDTypes& dtypes) : specs_(std::move(specs)), dtypes_(dtypes) {}

  // Index of `name`, which must have elements_per_token elements (TRIREME_CHECK).
  size_t Find(std::string_view name, int64_t elements_per_token);
  void CheckAllFound() const;

  // Undefined where the tensor is not kept (Place::kRemade).
  at::Tensor In(const at::Tensor& buffer, size_t index, int64_t tokens) const;
  int64_t Bytes(int64_t tokens) const { return LayoutFor(tokens).arena_bytes; }

 private:
  const SavedLayout& LayoutFor(int64_t tokens) const;

  const std::vector<SavedSpec> specs_;
  const PlanDTypes dtypes_;
  size_t found_ = 0;
  mutable SavedLayout layout_;  // of the last size
  mutable int64_t laid_out_tokens_ = -1;
};

inline at::ScalarType StatisticsType(at::ScalarType compute) {
  return compute == at::kDouble ? at::kDouble : at::kFloat;
}
inline int64_t Tokens(const UnitArgs& args) { return args.micro_batch_size * args.sequence_length; }
int64_t PaddedVocab(const ModelSpec& model);

// Where a mask of this micro-batch comes from. layer 0: embedding.
kernels::DropoutKey DropoutKeyOf(const UnitArgs& args, int64_t layer, int site);

std::unique_ptr<Unit> MakeEmbedding(const Plan& plan);  // embedding.cpp
std::unique_ptr<Unit> MakeDecoderBlock(
    const Plan& plan, const UnitLayout& layout,
    std::shared_ptr<RotaryTable> rotary);          // decoder_block.cpp; rotary: null in GPT-2
std::unique_ptr<Unit> MakeHead(const Plan& plan);  // head.cpp

}  // namespace trireme
