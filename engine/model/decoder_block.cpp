// A decoder block of any family: norm, attention, norm, MLP, each branch with dropout before it joins the residual
// stream. Serial: x + attention(norm(x)), then + mlp(norm of that); parallel (GPT-NeoX): both read x. Over tp ranks
// query, key, value, gate and up are split by rows, the two output products by columns (arXiv:1909.08053).
// Recompute::kCheap (arXiv:2205.05198, 5, without its attention, which the fused kernels make again by themselves): the
// norms' outputs and the MLP's activation are needed by the gradients of weights alone, and are made there once more.
#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "engine/model/attention.h"
#include "engine/model/flat_view.h"
#include "engine/model/mlp.h"
#include "engine/model/norm.h"
#include "engine/model/rows.h"
#include "engine/model/tensor_parallel.h"
#include "engine/model/units.h"
#include "engine/plan/families/family.h"

namespace trireme {
namespace {

using at::Tensor;

enum DropoutSite : int { kAfterAttention = 0, kAfterMlp = 1 };

class DecoderBlock final : public Unit {
 public:
  DecoderBlock(const Plan& plan, const UnitLayout& layout, ParameterFinder parameters,
               std::shared_ptr<RotaryTable> rotary);

  // Without `output` (recomputation) what Backward does not need is left out.
  void Forward(UnitArgs& args) override { Run(args, nullptr, 0); }
  void Decode(UnitArgs& args, KeyValueCache* cache, int64_t past) override { Run(args, cache, past); }

  void Backward(UnitArgs& args) override;
  void BackwardInput(UnitArgs& args) override;
  void BackwardWeight(UnitArgs& args) override;

 private:
  struct Activations {
    Tensor mean_1, rstd_1, norm_1, qkv, mid, mean_2, rstd_2, norm_2, fc, act;
  };
  // Of what the four products returned: all that the weights' gradients need beside the activations.
  struct ProductGradients {
    Tensor mlp_out, fc, attention_out, qkv;
  };
  struct SavedIndices {
    size_t mean_1, rstd_1, norm_1, qkv, mid, mean_2, rstd_2, norm_2, fc, act;
  };
  struct DeferredIndices {
    size_t mlp_out, fc, attention_out, qkv;
    size_t norm_1, norm_2;  // kCheap: outputs, since the later half has no weights to make them with
  };
  static constexpr size_t kNone = static_cast<size_t>(-1);

  SavedIndices FindSaved();
  DeferredIndices FindDeferred();
  Activations ActivationsIn(const Tensor& arena, int64_t tokens) const;
  ProductGradients DeferredIn(const Tensor& buffer, int64_t tokens) const;
  const Tensor& SecondNormReads(const UnitArgs& args, const Activations& a) const {
    return parallel_ ? args.input : a.mid;
  }
  void PlaceCheap(const UnitArgs& args, Workspace& workspace, Activations& a) const;
  void FirstNorm(const UnitArgs& args, const Activations& a) const {
    norm_1_.Forward(args.input, args.weights, a.norm_1, a.mean_1, a.rstd_1);
  }
  void SecondNorm(const UnitArgs& args, const Activations& a) const {
    norm_2_.Forward(SecondNormReads(args, a), args.weights, a.norm_2, a.mean_2, a.rstd_2);
  }

  void Run(UnitArgs& args, KeyValueCache* cache, int64_t past);
  void AddBranch(const Linear& product, const Tensor& x, const Tensor& residual, DropoutSite site, const UnitArgs& args,
                 const WholeRows& whole, const Tensor& y) const;
  // Both halves of the backward pass end with the sum of dnorm over the tp ranks; the gradients of the weights hide it
  // where they are made now. `norm`: whole rows of the norm's output, gathered under the products before.
  enum class Weights { kNow, kLater };
  void Pass(const UnitArgs& args, const Activations& a, ProductGradients& g, Workspace& workspace,
            Weights weights) const;
  void MlpWeights(const UnitArgs& args, const Activations& a, const ProductGradients& g, const Tensor& norm,
                  const Tensor& scratch) const;
  void AttentionWeights(const UnitArgs& args, const ProductGradients& g, const Tensor& norm,
                        const Tensor& scratch) const;
  Tensor GradientOfProduct(const Tensor& dy, DropoutSite site, const UnitArgs& args, const Tensor& buffer) const;

  const at::ScalarType compute_;
  const int64_t layer_, hidden_;
  const bool parallel_, cheap_;
  const Norm norm_1_;
  const Attention attention_;
  const Norm norm_2_;
  const Mlp mlp_;
  SavedViews saved_, deferred_;
  const SavedIndices at_;
  const DeferredIndices deferred_at_;
};

DecoderBlock::DecoderBlock(const Plan& plan, const UnitLayout& layout, ParameterFinder parameters,
                           std::shared_ptr<RotaryTable> rotary)
    : compute_(ScalarTypeOf(plan.dtypes.compute)),
      layer_(layout.spec.layer),
      hidden_(plan.model.hidden_size),
      parallel_(plan.model.parallel_residual),
      cheap_(layout.recompute == Recompute::kCheap),
      norm_1_(parameters, layout.spec.name + "." + std::string(TraitsOf(plan.model.family).norm_1), plan.model),
      attention_(parameters, layout.spec.name, plan.model, plan.topology.tp_size, std::move(rotary)),
      norm_2_(parameters, layout.spec.name + "." + std::string(TraitsOf(plan.model.family).norm_2), plan.model),
      mlp_(parameters, layout.spec.name, plan.model, plan.topology.tp_size),
      saved_(layout.spec.saved, plan.dtypes),
      deferred_(layout.spec.deferred, plan.dtypes),
      at_(FindSaved()),
      deferred_at_(FindDeferred()) {
  parameters.CheckAllFound();
  saved_.CheckAllFound();
  deferred_.CheckAllFound();
  TRIREME_CHECK(layout.spec.splits_weights, "a decoder block has the split backward pass");
}

DecoderBlock::SavedIndices DecoderBlock::FindSaved() {
  const kernels::AttentionShape heads = attention_.ShapeOf({});
  saved_.Find("attn.out", heads.query_width());
  saved_.Find("attn.lse", heads.num_heads);
  return {.mean_1 = norm_1_.has_mean() ? saved_.Find("norm_1.mean", 1) : kNone,
          .rstd_1 = saved_.Find("norm_1.rstd", 1),
          .norm_1 = saved_.Find("norm_1.out", hidden_),
          .qkv = saved_.Find("attn.qkv", heads.width()),
          .mid = parallel_ ? kNone : saved_.Find("mid", hidden_),
          .mean_2 = norm_2_.has_mean() ? saved_.Find("norm_2.mean", 1) : kNone,
          .rstd_2 = saved_.Find("norm_2.rstd", 1),
          .norm_2 = saved_.Find("norm_2.out", hidden_),
          .fc = saved_.Find("mlp.fc", mlp_.fc_width()),
          .act = saved_.Find("mlp.act", mlp_.intermediate())};
}

DecoderBlock::DeferredIndices DecoderBlock::FindDeferred() {
  return {.mlp_out = deferred_.Find("mlp.dout", hidden_),
          .fc = deferred_.Find("mlp.dfc", mlp_.fc_width()),
          .attention_out = deferred_.Find("attn.dout", hidden_),
          .qkv = deferred_.Find("attn.dqkv", attention_.ShapeOf({}).width()),
          .norm_1 = cheap_ ? deferred_.Find("norm_1.out", hidden_) : kNone,
          .norm_2 = cheap_ ? deferred_.Find("norm_2.out", hidden_) : kNone};
}

DecoderBlock::Activations DecoderBlock::ActivationsIn(const Tensor& arena, int64_t tokens) const {
  const auto view = [&](size_t index) { return index == kNone ? Tensor() : saved_.In(arena, index, tokens); };
  return {view(at_.mean_1), view(at_.rstd_1), view(at_.norm_1), view(at_.qkv), view(at_.mid),
          view(at_.mean_2), view(at_.rstd_2), view(at_.norm_2), view(at_.fc),  view(at_.act)};
}

DecoderBlock::ProductGradients DecoderBlock::DeferredIn(const Tensor& buffer, int64_t tokens) const {
  const auto view = [&](size_t index) { return deferred_.In(buffer, index, tokens); };
  return {view(deferred_at_.mlp_out), view(deferred_at_.fc), view(deferred_at_.attention_out), view(deferred_at_.qkv)};
}

// kCheap: what is not kept has one place, since each is used up before the next is made.
void DecoderBlock::PlaceCheap(const UnitArgs& args, Workspace& workspace, Activations& a) const {
  if (!cheap_) return;
  const int64_t own = OwnRows(args) * hidden_, wide = Tokens(args) * mlp_.intermediate();
  const Tensor place = workspace.Take(compute_, {std::max(own, wide)});
  const auto rows = [&](int64_t count, int64_t width) { return ViewOf(place, 0, compute_, {count, width}); };
  if (!a.norm_1.defined()) a.norm_1 = rows(OwnRows(args), hidden_);
  if (!a.norm_2.defined()) a.norm_2 = rows(OwnRows(args), hidden_);
  a.act = rows(Tokens(args), mlp_.intermediate());
}

void DecoderBlock::Run(UnitArgs& args, KeyValueCache* cache, int64_t past) {
  const int64_t tokens = Tokens(args);
  const kernels::AttentionShape shape = attention_.ShapeOf(args);
  std::vector<Tensor> own_pool;
  const bool keeps = args.saved != nullptr && cache == nullptr;
  std::vector<Tensor>& pool = keeps ? args.saved->pool : own_pool;
  Workspace workspace(args.workspace);
  Activations a = ActivationsIn(keeps ? args.saved->arena : workspace.Take(at::kByte, {saved_.Bytes(tokens)}), tokens);
  PlaceCheap(args, workspace, a);

  const WholeRows whole(args, workspace, compute_, hidden_);
  FirstNorm(args, a);
  attention_.Project(whole.Gather(args, a.norm_1), args, past, a.qkv);
  Tensor attended;
  if (cache == nullptr) {
    kernels::AttentionForward(a.qkv, shape, pool);
    attended = kernels::AttentionOutput(pool);
  } else {
    attended = workspace.Take(compute_, {tokens, shape.query_width()});
    kernels::AttentionDecode(a.qkv, shape, cache->keys, cache->values, past, attended);
  }
  const Tensor mid = parallel_ && args.output.defined() ? workspace.Take(compute_, {OwnRows(args), hidden_}) : a.mid;
  if (mid.defined()) AddBranch(attention_.out(), attended, args.input, kAfterAttention, args, whole, mid);
  SecondNorm(args, a);
  mlp_.Forward(whole.Gather(args, a.norm_2), args.weights, a.fc, a.act);
  if (args.output.defined()) AddBranch(mlp_.out(), a.act, mid, kAfterMlp, args, whole, args.output);
}

// y = residual + dropout(product of x), own rows
void DecoderBlock::AddBranch(const Linear& product, const Tensor& x, const Tensor& residual, DropoutSite site,
                             const UnitArgs& args, const WholeRows& whole, const Tensor& y) const {
  const bool drops = args.dropout.probability > 0, fuses = !drops && !args.sequence_parallel;
  product.Forward(x, args.weights, fuses ? residual : Tensor(), whole.PartialOf(y), AddsOnce(args));
  whole.StartSum(args, y);
  FinishSum(args);
  if (drops) {
    kernels::Dropout(y, residual, DropoutKeyOf(args, layer_ + 1, site), y);
  } else if (!fuses) {
    kernels::AddInto(ViewOf(residual, 0, compute_, {y.numel()}), ViewOf(y, 0, compute_, {y.numel()}));
  }
}

void DecoderBlock::Backward(UnitArgs& args) {
  TRIREME_CHECK(args.saved != nullptr, "Backward of a block reads what Forward saved");
  const int64_t tokens = Tokens(args);
  Activations a = ActivationsIn(args.saved->arena, tokens);
  Workspace workspace(args.workspace);
  PlaceCheap(args, workspace, a);
  ProductGradients g;
  g.fc = workspace.Take(compute_, {tokens, mlp_.fc_width()});
  g.qkv = workspace.Take(compute_, {tokens, attention_.ShapeOf(args).width()});
  if (args.dropout.probability > 0 || args.sequence_parallel) {
    g.mlp_out = workspace.Take(compute_, {tokens, hidden_});
    g.attention_out = workspace.Take(compute_, {tokens, hidden_});
  }
  Pass(args, a, g, workspace, Weights::kNow);
}

void DecoderBlock::BackwardInput(UnitArgs& args) {
  TRIREME_CHECK(args.saved != nullptr, "Backward of a block reads what Forward saved");
  Activations a = ActivationsIn(args.saved->arena, Tokens(args));
  ProductGradients g = DeferredIn(args.deferred, Tokens(args));
  Workspace workspace(args.workspace);
  if (cheap_) {
    a.norm_1 = deferred_.In(args.deferred, deferred_at_.norm_1, Tokens(args));
    a.norm_2 = deferred_.In(args.deferred, deferred_at_.norm_2, Tokens(args));
    FirstNorm(args, a);
    SecondNorm(args, a);
  }
  Pass(args, a, g, workspace, Weights::kLater);
}

void DecoderBlock::BackwardWeight(UnitArgs& args) {
  TRIREME_CHECK(args.saved != nullptr, "Backward of a block reads what Forward saved");
  Activations a = ActivationsIn(args.saved->arena, Tokens(args));
  const ProductGradients g = DeferredIn(args.deferred, Tokens(args));
  Workspace workspace(args.workspace);
  if (cheap_) {
    a.norm_1 = deferred_.In(args.deferred, deferred_at_.norm_1, Tokens(args));
    a.norm_2 = deferred_.In(args.deferred, deferred_at_.norm_2, Tokens(args));
  }
  PlaceCheap(args, workspace, a);
  const WholeRows whole(args, workspace, compute_, hidden_);
  const Tensor scratch = workspace.Rest();
  MlpWeights(args, a, g, whole.Gather(args, a.norm_2), scratch);
  AttentionWeights(args, g, whole.Gather(args, a.norm_1), scratch);
}

// dx, the norms' gradients, and those of the products' outputs.
void DecoderBlock::Pass(const UnitArgs& args, const Activations& a, ProductGradients& g, Workspace& workspace,
                        Weights weights) const {
  const int64_t own_rows = OwnRows(args);
  const Tensor dnorm = workspace.Take(compute_, {own_rows, hidden_}),
               dmid = workspace.Take(compute_, {own_rows, hidden_});
  const Tensor dattended = workspace.Take(compute_, {Tokens(args), attention_.ShapeOf(args).query_width()});
  const Tensor dact = mlp_.gated() ? workspace.Take(compute_, {Tokens(args), mlp_.intermediate()}) : g.fc;
  const WholeRows whole(args, workspace, compute_, hidden_);
  const Tensor scratch = workspace.Rest();
  const Tensor& dy = args.output_gradient;
  const bool now = weights == Weights::kNow;
  Tensor norm;

  g.mlp_out = GradientOfProduct(dy, kAfterMlp, args, g.mlp_out);
  if (now && cheap_) SecondNorm(args, a);
  if (now) whole.StartGather(args, a.norm_2);
  mlp_.BackwardToFc(g.mlp_out, a.fc, args.weights, dact, g.fc);
  mlp_.fc().BackwardInput(g.fc, args.weights, whole.PartialOf(dnorm));
  if (now) norm = whole.FinishGather(args, a.norm_2);
  whole.StartSum(args, dnorm);
  if (now) MlpWeights(args, a, g, norm, scratch);
  FinishSum(args);
  norm_2_.Backward(dnorm, SecondNormReads(args, a), a.mean_2, a.rstd_2, dy, dmid, args);

  g.attention_out = GradientOfProduct(parallel_ ? dy : dmid, kAfterAttention, args, g.attention_out);
  if (now && cheap_) FirstNorm(args, a);
  if (now) whole.StartGather(args, a.norm_1);
  attention_.out().BackwardInput(g.attention_out, args.weights, dattended);
  attention_.BackwardToQkv(dattended, a.qkv, args, args.saved->pool, g.qkv);
  attention_.qkv().BackwardInput(g.qkv, args.weights, whole.PartialOf(dnorm));
  if (now) norm = whole.FinishGather(args, a.norm_1);
  whole.StartSum(args, dnorm);
  if (now) AttentionWeights(args, g, norm, scratch);
  FinishSum(args);
  norm_1_.Backward(dnorm, args.input, a.mean_1, a.rstd_1, dmid, args.input_gradient, args);
}

void DecoderBlock::MlpWeights(const UnitArgs& args, const Activations& a, const ProductGradients& g, const Tensor& norm,
                              const Tensor& scratch) const {
  mlp_.fc().BackwardWeight(g.fc, g.fc, norm, args, scratch);
  if (cheap_) mlp_.Activate(a.fc, a.act);  // may take the place of the norm's output
  mlp_.out().BackwardWeight(g.mlp_out, OwnPart(args, g.mlp_out), a.act, args, scratch);
}

void DecoderBlock::AttentionWeights(const UnitArgs& args, const ProductGradients& g, const Tensor& norm,
                                    const Tensor& scratch) const {
  attention_.out().BackwardWeight(g.attention_out, OwnPart(args, g.attention_out),
                                  kernels::AttentionOutput(args.saved->pool), args, scratch);
  attention_.qkv().BackwardWeight(g.qkv, g.qkv, norm, args, scratch);
}

// What reaches the product before a dropout, whole rows. Without dropout it is dy: itself, or copied into `buffer`
// where there is one, for then it must outlive dy.
Tensor DecoderBlock::GradientOfProduct(const Tensor& dy, DropoutSite site, const UnitArgs& args,
                                       const Tensor& buffer) const {
  const bool drops = args.dropout.probability > 0;
  if (!buffer.defined()) return dy;
  const Tensor own = OwnPart(args, buffer);
  if (drops) {
    kernels::Dropout(dy, {}, DropoutKeyOf(args, layer_ + 1, site), own);
  } else {
    kernels::CastCopy(ViewOf(dy, 0, compute_, {dy.numel()}), ViewOf(own, 0, compute_, {own.numel()}));
  }
  if (args.sequence_parallel) {
    args.tp->AllGather(own, buffer);
    args.tp->Wait();
  }
  return buffer;
}

}  // namespace

std::unique_ptr<Unit> MakeDecoderBlock(const Plan& plan, const UnitLayout& layout,
                                       std::shared_ptr<RotaryTable> rotary) {
  return std::make_unique<DecoderBlock>(plan, layout, ParameterFinder(layout), std::move(rotary));
}

}  // namespace trireme
