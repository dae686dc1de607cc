// The first unit: rows of the token table, plus those of the positions where the family learns them, and dropout.
#include <optional>

#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "engine/model/flat_view.h"
#include "engine/model/units.h"
#include "engine/plan/families/family.h"

namespace trireme {
namespace {

using at::Tensor;

class Embedding final : public Unit {
 public:
  explicit Embedding(const Plan& plan) {
    const FamilyTraits& traits = TraitsOf(plan.model.family);
    const ModelSpec& model = plan.model;
    ParameterFinder parameters(plan.units.front());
    token_table_ =
        parameters.Find(std::string(traits.token_table) + ".weight", {PaddedVocab(model), model.hidden_size});
    if (!model.rotary()) {
      position_table_ = parameters.Find(std::string(traits.position_table) + ".weight",
                                        {model.max_position_embeddings, model.hidden_size});
    }
    parameters.CheckAllFound();
    TRIREME_CHECK(plan.units.front().spec.saved.empty(), "the embedding saves nothing");
  }

  void Forward(UnitArgs& args) override { Run(args, 0); }
  void Decode(UnitArgs& args, KeyValueCache*, int64_t past) override { Run(args, past); }

  void Backward(UnitArgs& args) override {
    if (args.dropout.probability > 0) {
      kernels::Dropout(args.output_gradient, {}, DropoutKeyOf(args, 0, 0), args.output_gradient);
    }
    kernels::EmbeddingBackward(args.output_gradient, args.tokens, token_table_.In(args.gradients),
                               position_table_ ? position_table_->In(args.gradients) : Tensor(), args.add_gradients);
  }

 private:
  void Run(UnitArgs& args, int64_t first_position) {
    kernels::EmbeddingForward(args.tokens, token_table_.In(args.weights), PositionsFrom(args.weights, first_position),
                              args.output);
    if (args.dropout.probability > 0) kernels::Dropout(args.output, {}, DropoutKeyOf(args, 0, 0), args.output);
  }

  Tensor PositionsFrom(const Tensor& weights, int64_t first) const {
    if (!position_table_) return {};
    const Tensor table = position_table_->In(weights);
    const int64_t width = table.size(1), row_bytes = width * static_cast<int64_t>(table.element_size());
    return ViewOf(table, first * row_bytes, table.scalar_type(), {table.size(0) - first, width});
  }

  ParameterPlace token_table_;
  std::optional<ParameterPlace> position_table_;
};

}  // namespace

std::unique_ptr<Unit> MakeEmbedding(const Plan& plan) { return std::make_unique<Embedding>(plan); }

}  // namespace trireme
