// The first unit: rows of the token table, plus those of the positions where the family learns them, and dropout. Over
// tp ranks each has a part of the token table: an id of another part counts as a zero vector, and the sum is the whole.
#include <ATen/ops/sub.h>

#include <optional>

#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "engine/model/flat_view.h"
#include "engine/model/rows.h"
#include "engine/model/tensor_parallel.h"
#include "engine/model/units.h"
#include "engine/plan/families/family.h"

namespace trireme {
namespace {

using at::Tensor;

class Embedding final : public Unit {
 public:
  explicit Embedding(const Plan& plan)
      : compute_(ScalarTypeOf(plan.dtypes.compute)),
        hidden_(plan.model.hidden_size),
        held_rows_(PaddedVocab(plan.model) / plan.topology.tp_size) {
    const FamilyTraits& traits = TraitsOf(plan.model.family);
    const ModelSpec& model = plan.model;
    ParameterFinder parameters(plan.units.front());
    token_table_ = parameters.Find(std::string(traits.token_table) + ".weight", {held_rows_, model.hidden_size});
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
    Workspace workspace(args.workspace);
    const Tensor tokens = HeldIds(args, workspace);
    if (args.dropout.probability > 0) {
      kernels::Dropout(args.output_gradient, {}, DropoutKeyOf(args, 0, 0), args.output_gradient);
    }
    const WholeRows whole(args, workspace, compute_, hidden_);
    const Tensor dx = whole.Gather(args, args.output_gradient);
    const Tensor positions = position_table_ ? position_table_->In(args.gradients) : Tensor();
    // Under sequence parallelism gradients of what every rank has whole are parts of a sum.
    const bool counts = !args.sequence_parallel || AddsOnce(args);
    kernels::EmbeddingBackward(dx, tokens, token_table_.In(args.gradients), counts ? positions : Tensor(),
                               args.add_gradients);
    if (!counts && positions.defined() && !args.add_gradients) positions.zero_();
  }

 private:
  void Run(UnitArgs& args, int64_t first_position) {
    Workspace workspace(args.workspace);
    const Tensor tokens = HeldIds(args, workspace);
    const WholeRows whole(args, workspace, compute_, hidden_);
    kernels::EmbeddingForward(tokens, token_table_.In(args.weights),
                              AddsOnce(args) ? PositionsFrom(args.weights, first_position) : Tensor(),
                              whole.PartialOf(args.output));
    whole.StartSum(args, args.output);
    FinishSum(args);
    if (args.dropout.probability > 0) kernels::Dropout(args.output, {}, DropoutKeyOf(args, 0, 0), args.output);
  }

  // Ids as rows of this rank's part of the table; those of other parts are outside of it.
  Tensor HeldIds(const UnitArgs& args, Workspace& workspace) const {
    if (args.tp == nullptr) return args.tokens;
    Tensor ids = workspace.Take(at::kInt, args.tokens.sizes());
    at::sub_out(ids, args.tokens, args.tp->rank() * held_rows_);
    return ids;
  }

  Tensor PositionsFrom(const Tensor& weights, int64_t first) const {
    if (!position_table_) return {};
    const Tensor table = position_table_->In(weights);
    const int64_t width = table.size(1), row_bytes = width * static_cast<int64_t>(table.element_size());
    return ViewOf(table, first * row_bytes, table.scalar_type(), {table.size(0) - first, width});
  }

  const at::ScalarType compute_;
  const int64_t hidden_, held_rows_;
  ParameterPlace token_table_;
  std::optional<ParameterPlace> position_table_;
};

}  // namespace

std::unique_ptr<Unit> MakeEmbedding(const Plan& plan) { return std::make_unique<Embedding>(plan); }

}  // namespace trireme
