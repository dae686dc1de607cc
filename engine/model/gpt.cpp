// GPT-2 (Radford et al., 2019) out of explicit units: learned positions, LayerNorm before attention and MLP, tanh GELU,
// biases everywhere, head tied or own. Names and formulas as Hugging Face's GPT2LMHeadModel.
#include <fmt/core.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "engine/model/flat_view.h"
#include "engine/model/units.h"

namespace trireme {
namespace {

using at::Tensor;

at::ScalarType StatisticsType(at::ScalarType compute) { return compute == at::kDouble ? at::kDouble : at::kFloat; }

// A matrix and a bias of one unit.
struct LinearPlace {
  ParameterPlace weight, bias;

  void Forward(const Tensor& x, const Tensor& flat, const Tensor& residual, const Tensor& y) const {
    kernels::LinearForward(x, weight.In(flat), bias.In(flat), residual, y);
  }
  // dx = dy W; gradients of weight and bias are written or added.
  void Backward(const Tensor& dy, const Tensor& x, const Tensor& dx, const UnitArgs& args,
                const Tensor& scratch) const {
    kernels::LinearBackwardInput(dy, weight.In(args.weights), dx);
    kernels::LinearBackwardWeight(dy, x, weight.In(args.gradients), args.add_gradients, scratch);
    kernels::LinearBackwardBias(dy, bias.In(args.gradients), args.add_gradients);
  }
};

struct NormPlace {
  ParameterPlace weight, bias;
  double epsilon = 0;

  void Forward(const Tensor& x, const Tensor& flat, const Tensor& y, const Tensor& mean, const Tensor& rstd) const {
    kernels::LayerNormForward(x, weight.In(flat), bias.In(flat), epsilon, y, mean, rstd);
  }
  void Backward(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                const Tensor& residual_gradient, const Tensor& dx, const UnitArgs& args) const {
    kernels::LayerNormBackward(dy, x, mean, rstd, weight.In(args.weights), residual_gradient, dx,
                               weight.In(args.gradients), bias.In(args.gradients), args.add_gradients);
  }
};

LinearPlace FindLinear(const UnitLayout& layout, const std::string& name, int64_t in, int64_t out) {
  return {FindParameter(layout, name + ".weight", {out, in}), FindParameter(layout, name + ".bias", {out})};
}

NormPlace FindNorm(const UnitLayout& layout, const std::string& name, const ModelSpec& model) {
  return {FindParameter(layout, name + ".weight", {model.hidden_size}),
          FindParameter(layout, name + ".bias", {model.hidden_size}), model.layer_norm_epsilon};
}

int64_t PaddedVocab(const ModelSpec& model) { return std::max(model.vocab_size, model.padded_vocab_size); }
int64_t Tokens(const UnitArgs& args) { return args.micro_batch_size * args.sequence_length; }

// ---------------------------------------------------------------- embedding

class EmbeddingUnit final : public Unit {
 public:
  explicit EmbeddingUnit(const Plan& plan)
      : token_table_(
            FindParameter(plan.units.front(), "wte.weight", {PaddedVocab(plan.model), plan.model.hidden_size})),
        position_table_(FindParameter(plan.units.front(), "wpe.weight",
                                      {plan.model.max_position_embeddings, plan.model.hidden_size})) {
    TRIREME_CHECK(plan.units.front().spec.saved.empty(), "the embedding saves nothing");
  }

  void Forward(UnitArgs& args) override {
    kernels::EmbeddingForward(args.tokens, token_table_.In(args.weights), position_table_.In(args.weights),
                              args.output);
  }
  void Backward(UnitArgs& args) override {
    kernels::EmbeddingBackward(args.output_gradient, args.tokens, token_table_.In(args.gradients),
                               position_table_.In(args.gradients), args.add_gradients);
  }

 private:
  ParameterPlace token_table_, position_table_;
};

// ---------------------------------------------------------------- block

class BlockUnit final : public Unit {
 public:
  BlockUnit(const Plan& plan, const UnitLayout& layout)
      : spec_(layout.spec),
        dtypes_(plan.dtypes),
        compute_(ScalarTypeOf(plan.dtypes.compute)),
        hidden_(plan.model.hidden_size),
        intermediate_(plan.model.intermediate_size),
        heads_(plan.model.num_attention_heads),
        ln_1_(FindNorm(layout, "ln_1", plan.model)),
        ln_2_(FindNorm(layout, "ln_2", plan.model)),
        qkv_(FindLinear(layout, "attn.c_attn", hidden_, 3 * hidden_)),
        attention_out_(FindLinear(layout, "attn.c_proj", hidden_, hidden_)),
        fc_(FindLinear(layout, "mlp.c_fc", hidden_, intermediate_)),
        mlp_out_(FindLinear(layout, "mlp.c_proj", intermediate_, hidden_)),
        saved_at_{.mean_1 = FindSaved(spec_, "norm_1.mean", 1),
                  .rstd_1 = FindSaved(spec_, "norm_1.rstd", 1),
                  .norm_1 = FindSaved(spec_, "norm_1.out", hidden_),
                  .qkv = FindSaved(spec_, "attn.qkv", 3 * hidden_),
                  .mid = FindSaved(spec_, "mid", hidden_),
                  .mean_2 = FindSaved(spec_, "norm_2.mean", 1),
                  .rstd_2 = FindSaved(spec_, "norm_2.rstd", 1),
                  .norm_2 = FindSaved(spec_, "norm_2.out", hidden_),
                  .fc = FindSaved(spec_, "mlp.fc", intermediate_),
                  .act = FindSaved(spec_, "mlp.act", intermediate_)} {
    FindSaved(spec_, "attn.out", hidden_);
    FindSaved(spec_, "attn.lse", heads_);
    TRIREME_CHECK(spec_.saved.size() == 12 && layout.segments.size() == 12,
                  fmt::format("{} has {} saved tensors and {} parameters", spec_.name, spec_.saved.size(),
                              layout.segments.size()));
  }

  // Without `output` (recomputation) the last product is left out: Backward does not need it.
  void Forward(UnitArgs& args) override {
    std::vector<Tensor> own_pool;
    std::vector<Tensor>& pool = args.saved != nullptr ? args.saved->pool : own_pool;
    const Activations a = ActivationsIn(args.saved != nullptr ? args.saved->arena : args.workspace, Tokens(args));
    ln_1_.Forward(args.input, args.weights, a.norm_1, a.mean_1, a.rstd_1);
    qkv_.Forward(a.norm_1, args.weights, {}, a.qkv);
    kernels::AttentionForward(a.qkv, ShapeOf(args), pool);
    attention_out_.Forward(kernels::AttentionOutput(pool), args.weights, args.input, a.mid);
    ln_2_.Forward(a.mid, args.weights, a.norm_2, a.mean_2, a.rstd_2);
    fc_.Forward(a.norm_2, args.weights, {}, a.fc);
    kernels::GeluTanhForward(a.fc, a.act);
    if (args.output.defined()) mlp_out_.Forward(a.act, args.weights, a.mid, args.output);
  }

  void Backward(UnitArgs& args) override {
    TRIREME_CHECK(args.saved != nullptr, "Backward of a block reads what Forward saved");
    const int64_t tokens = Tokens(args);
    const Activations a = ActivationsIn(args.saved->arena, tokens);
    Workspace workspace(args.workspace);
    const Tensor dfc = workspace.Take(compute_, {tokens, intermediate_});
    const Tensor dnorm = workspace.Take(compute_, {tokens, hidden_}),
                 dmid = workspace.Take(compute_, {tokens, hidden_});
    const Tensor dattention = workspace.Take(compute_, {tokens, hidden_}),
                 dqkv = workspace.Take(compute_, {tokens, 3 * hidden_});
    const Tensor scratch = workspace.Rest();

    mlp_out_.Backward(args.output_gradient, a.act, dfc, args, scratch);
    kernels::GeluTanhBackward(a.fc, dfc, dfc);
    fc_.Backward(dfc, a.norm_2, dnorm, args, scratch);
    ln_2_.Backward(dnorm, a.mid, a.mean_2, a.rstd_2, args.output_gradient, dmid, args);
    attention_out_.Backward(dmid, kernels::AttentionOutput(args.saved->pool), dattention, args, scratch);
    kernels::AttentionBackward(dattention, a.qkv, ShapeOf(args), args.saved->pool, dqkv);
    qkv_.Backward(dqkv, a.norm_1, dnorm, args, scratch);
    ln_1_.Backward(dnorm, args.input, a.mean_1, a.rstd_1, dmid, args.input_gradient, args);
  }

 private:
  struct Activations {
    Tensor mean_1, rstd_1, norm_1, qkv, mid, mean_2, rstd_2, norm_2, fc, act;
  };
  struct SavedIndices {
    size_t mean_1, rstd_1, norm_1, qkv, mid, mean_2, rstd_2, norm_2, fc, act;
  };

  kernels::AttentionShape ShapeOf(const UnitArgs& args) const {
    return {args.micro_batch_size, args.sequence_length, heads_, heads_, hidden_ / heads_};
  }

  Activations ActivationsIn(const Tensor& arena, int64_t tokens) {
    if (tokens != laid_out_tokens_) {
      saved_layout_ = LayOutSaved(spec_, dtypes_, tokens);
      laid_out_tokens_ = tokens;
    }
    auto matrix = [&](size_t index, int64_t width) {
      return ViewOf(arena, saved_layout_.offsets[index], compute_, {tokens, width});
    };
    auto statistic = [&](size_t index) {
      return ViewOf(arena, saved_layout_.offsets[index], StatisticsType(compute_), {tokens});
    };
    return {statistic(saved_at_.mean_1),         statistic(saved_at_.rstd_1),       matrix(saved_at_.norm_1, hidden_),
            matrix(saved_at_.qkv, 3 * hidden_),  matrix(saved_at_.mid, hidden_),    statistic(saved_at_.mean_2),
            statistic(saved_at_.rstd_2),         matrix(saved_at_.norm_2, hidden_), matrix(saved_at_.fc, intermediate_),
            matrix(saved_at_.act, intermediate_)};
  }

  const UnitSpec spec_;
  const PlanDTypes dtypes_;
  const at::ScalarType compute_;
  const int64_t hidden_, intermediate_, heads_;
  const NormPlace ln_1_, ln_2_;
  const LinearPlace qkv_, attention_out_, fc_, mlp_out_;
  const SavedIndices saved_at_;
  SavedLayout saved_layout_;  // of the last size
  int64_t laid_out_tokens_ = -1;
};

// ---------------------------------------------------------------- head

class HeadUnit final : public Unit {
 public:
  explicit HeadUnit(const Plan& plan)
      : compute_(ScalarTypeOf(plan.dtypes.compute)),
        hidden_(plan.model.hidden_size),
        vocab_(plan.model.vocab_size),
        padded_vocab_(PaddedVocab(plan.model)),
        tied_(plan.units.back().spec.reads_tied_embedding),
        norm_(FindNorm(plan.units.back(), "ln_f", plan.model)),
        weight_(FindParameter(tied_ ? plan.units.front() : plan.units.back(), tied_ ? "wte.weight" : "lm_head.weight",
                              {padded_vocab_, hidden_})) {
    TRIREME_CHECK(tied_ == plan.model.tie_word_embeddings, "spec and model disagree on tied weights");
    TRIREME_CHECK(plan.units.back().spec.saved.empty(), "the head saves nothing");
    for (const Segment& segment : plan.units.front().segments) {
      if (tied_ && segment.begin != weight_.begin) others_of_owner_.push_back({segment.begin, {segment.count}});
    }
  }

  // With input_gradient: loss, its gradients, the weights' gradients. Without (evaluation): the loss alone.
  void Forward(UnitArgs& args) override {
    const int64_t tokens = Tokens(args);
    const bool train = args.input_gradient.defined();
    Workspace workspace(args.workspace);
    const Tensor normed = workspace.Take(compute_, {tokens, hidden_});
    const Tensor dnormed = train ? workspace.Take(compute_, {tokens, hidden_}) : Tensor();
    const at::ScalarType statistics = StatisticsType(compute_);
    const Tensor mean = workspace.Take(statistics, {tokens}), rstd = workspace.Take(statistics, {tokens});
    const Tensor losses = workspace.Take(statistics, {tokens});
    const int64_t chunk_rows = ChunkRows(tokens, workspace.Rest().numel());
    const Tensor logits = workspace.Take(compute_, {chunk_rows, padded_vocab_});
    const Tensor scratch = workspace.Rest();

    norm_.Forward(args.input, args.weights, normed, mean, rstd);
    for (int64_t row = 0; row < tokens; row += chunk_rows) {
      const int64_t rows = std::min(chunk_rows, tokens - row);
      RunChunk(args, row, Rows(normed, row, rows), train ? Rows(dnormed, row, rows) : Tensor(), Rows(logits, 0, rows),
               ViewOf(losses, 0, statistics, {rows}), scratch);
    }
    if (!train) return;
    norm_.Backward(dnormed, args.input, mean, rstd, {}, args.input_gradient, args);
    if (tied_ && !args.add_tied_gradients) {
      for (const ParameterPlace& other : others_of_owner_) other.In(args.tied_gradients).zero_();
    }
  }

  void Backward(UnitArgs&) override { TRIREME_CHECK(false, "the head's Forward makes its gradients"); }

  void Logits(UnitArgs& args, int64_t first_row, const Tensor& logits) override {
    const int64_t rows = logits.size(0);
    Workspace workspace(args.workspace);
    const Tensor normed = workspace.Take(compute_, {rows, hidden_});
    const at::ScalarType statistics = StatisticsType(compute_);
    const Tensor mean = workspace.Take(statistics, {rows}), rstd = workspace.Take(statistics, {rows});
    norm_.Forward(Rows(args.input, first_row, rows), args.weights, normed, mean, rstd);
    kernels::LinearForward(normed, weight_.In(tied_ ? args.tied_weights : args.weights), {}, {}, logits);
  }

 private:
  // As the plan counts it; fewer where the workspace is smaller. One row of a 16-bit weight product must fit beside the
  // logits.
  int64_t ChunkRows(int64_t tokens, int64_t free_bytes) const {
    const auto size = static_cast<int64_t>(c10::elementSize(compute_));
    const int64_t reserved = size == 2 ? hidden_ * size + 256 : 0;
    const int64_t rows =
        std::min(HeadChunkTokens(tokens, padded_vocab_), (free_bytes - reserved) / (padded_vocab_ * size));
    TRIREME_CHECK(rows > 0,
                  fmt::format("{} bytes of workspace do not hold one row of {} logits", free_bytes, padded_vocab_));
    return rows;
  }
  static Tensor Rows(const Tensor& matrix, int64_t first, int64_t count) {
    const int64_t row_bytes = matrix.size(1) * static_cast<int64_t>(matrix.element_size());
    return ViewOf(matrix, first * row_bytes, matrix.scalar_type(), {count, matrix.size(1)});
  }

  void RunChunk(const UnitArgs& args, int64_t row, const Tensor& normed, const Tensor& dnormed, const Tensor& logits,
                const Tensor& losses, const Tensor& scratch) const {
    const Tensor weight = weight_.In(tied_ ? args.tied_weights : args.weights);
    kernels::LinearForward(normed, weight, {}, {}, logits);
    if (!dnormed.defined()) {
      kernels::CrossEntropyForward(logits, args.tokens, row, vocab_, losses, args.step_state);
      return;
    }
    kernels::CrossEntropyForwardBackward(logits, args.tokens, row, vocab_, args.gradient_scale, losses,
                                         args.step_state);
    kernels::LinearBackwardInput(logits, weight, dnormed);
    const bool add = row > 0 || (tied_ ? args.add_tied_gradients : args.add_gradients);
    kernels::LinearBackwardWeight(logits, normed, weight_.In(tied_ ? args.tied_gradients : args.gradients), add,
                                  scratch);
  }

  const at::ScalarType compute_;
  const int64_t hidden_, vocab_, padded_vocab_;
  const bool tied_;
  const NormPlace norm_;
  const ParameterPlace weight_;
  std::vector<ParameterPlace> others_of_owner_;  // segments of unit 0 beside the tied weight
};

}  // namespace

std::vector<std::unique_ptr<Unit>> MakeGpt2Units(const Plan& plan) {
  TRIREME_CHECK(plan.units.size() >= 2,
                fmt::format("{} units, a GPT has at least embedding and head", plan.units.size()));
  std::vector<std::unique_ptr<Unit>> units;
  units.push_back(std::make_unique<EmbeddingUnit>(plan));
  for (size_t u = 1; u + 1 < plan.units.size(); ++u) units.push_back(std::make_unique<BlockUnit>(plan, plan.units[u]));
  units.push_back(std::make_unique<HeadUnit>(plan));
  return units;
}

}  // namespace trireme
