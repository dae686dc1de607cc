// The last unit: norm, head (tied to the token table or its own), loss. Its Forward makes its gradients too, a piece of
// the logits at a time. Over tp ranks each has the logits of its part of the vocabulary (arXiv:1909.08053).
#include <fmt/core.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "engine/model/flat_view.h"
#include "engine/model/norm.h"
#include "engine/model/rows.h"
#include "engine/model/tensor_parallel.h"
#include "engine/model/units.h"
#include "engine/plan/families/family.h"

namespace trireme {
namespace {

using at::Tensor;

class Head final : public Unit {
 public:
  Head(const Plan& plan, ParameterFinder parameters)
      : compute_(ScalarTypeOf(plan.dtypes.compute)),
        hidden_(plan.model.hidden_size),
        vocab_(plan.model.vocab_size),
        held_vocab_(PaddedVocab(plan.model) / plan.topology.tp_size),
        tied_(plan.units.back().spec.reads_tied_embedding),
        norm_(parameters, std::string(TraitsOf(plan.model.family).final_norm), plan.model),
        weight_(FindWeight(plan, parameters)) {
    parameters.CheckAllFound();
    TRIREME_CHECK(tied_ == plan.model.tie_word_embeddings, "spec and model disagree on tied weights");
    TRIREME_CHECK(plan.units.back().spec.saved.empty(), "the head saves nothing");
    for (const Segment& segment : plan.units.front().segments) {
      if (tied_ && segment.begin != weight_.begin) others_of_owner_.push_back({segment.begin, {segment.count}});
    }
  }

  // With input_gradient: loss, its gradients, the weights' gradients. Without (evaluation): the loss alone.
  void Forward(UnitArgs& args) override {
    const int64_t tokens = Tokens(args), own_rows = OwnRows(args);
    const bool train = args.input_gradient.defined();
    Workspace workspace(args.workspace);
    const WholeRows whole(args, workspace, compute_, hidden_);
    const Tensor normed = workspace.Take(compute_, {own_rows, hidden_});
    const Tensor dnormed = train ? workspace.Take(compute_, {own_rows, hidden_}) : Tensor();
    const at::ScalarType statistics = StatisticsType(compute_);
    const Tensor mean = workspace.Take(statistics, {own_rows}), rstd = workspace.Take(statistics, {own_rows});
    const Tensor losses = workspace.Take(statistics, {args.tp == nullptr ? tokens : 4 * tokens});
    const int64_t chunk_rows = ChunkRows(tokens, workspace.Rest().numel());
    const Tensor logits = workspace.Take(compute_, {chunk_rows, held_vocab_});
    const Tensor scratch = workspace.Rest();

    norm_.Forward(args.input, args.weights, normed, mean, rstd);
    const Tensor all = whole.Gather(args, normed), dall = train ? whole.PartialOf(dnormed) : Tensor();
    for (int64_t row = 0; row < tokens; row += chunk_rows) {
      const int64_t rows = std::min(chunk_rows, tokens - row);
      RunChunk(args, row, Rows(all, row, rows), train ? Rows(dall, row, rows) : Tensor(), Rows(logits, 0, rows), losses,
               scratch);
    }
    if (!train) return;
    whole.StartSum(args, dnormed);
    FinishSum(args);
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
  ParameterPlace FindWeight(const Plan& plan, ParameterFinder& parameters) const {
    const FamilyTraits& traits = TraitsOf(plan.model.family);
    ParameterFinder owner(plan.units.front());
    const std::vector<int64_t> shape{held_vocab_, hidden_};
    return tied_ ? owner.Find(std::string(traits.token_table) + ".weight", shape)
                 : parameters.Find(std::string(traits.head) + ".weight", shape);
  }

  // As the plan counts it; fewer where the workspace is smaller. One row of a 16-bit weight product must fit beside the
  // logits.
  int64_t ChunkRows(int64_t tokens, int64_t free_bytes) const {
    const auto size = static_cast<int64_t>(c10::elementSize(compute_));
    const int64_t reserved = size == 2 ? hidden_ * size + 256 : 0;
    const int64_t rows = std::min(HeadChunkTokens(tokens, held_vocab_), (free_bytes - reserved) / (held_vocab_ * size));
    TRIREME_CHECK(rows > 0,
                  fmt::format("{} bytes of workspace do not hold one row of {} logits", free_bytes, held_vocab_));
    return rows;
  }
  static Tensor Rows(const Tensor& matrix, int64_t first, int64_t count) {
    const int64_t row_bytes = matrix.size(1) * static_cast<int64_t>(matrix.element_size());
    return ViewOf(matrix, first * row_bytes, matrix.scalar_type(), {count, matrix.size(1)});
  }

  // dnormed undefined: evaluation.
  void RunChunk(const UnitArgs& args, int64_t row, const Tensor& normed, const Tensor& dnormed, const Tensor& logits,
                const Tensor& losses, const Tensor& scratch) const {
    const Tensor weight = weight_.In(tied_ ? args.tied_weights : args.weights);
    const bool train = dnormed.defined();
    kernels::LinearForward(normed, weight, {}, {}, logits);
    if (args.tp != nullptr) {
      LossOverRanks(args, row, logits, losses, train);
    } else if (train) {
      kernels::CrossEntropyForwardBackward(logits, args.tokens, row, vocab_, args.gradient_scale,
                                           Vectors(losses, 1, logits.size(0)).view({-1}), args.step_state);
    } else {
      kernels::CrossEntropyForward(logits, args.tokens, row, vocab_, Vectors(losses, 1, logits.size(0)).view({-1}),
                                   args.step_state);
    }
    if (!train) return;
    kernels::LinearBackwardInput(logits, weight, dnormed);
    const bool add = row > 0 || (tied_ ? args.add_tied_gradients : args.add_gradients);
    kernels::LinearBackwardWeight(logits, normed, weight_.In(tied_ ? args.tied_gradients : args.gradients), add,
                                  scratch);
  }

  // The first `count` vectors of `rows` statistics in `buffer`.
  Tensor Vectors(const Tensor& buffer, int64_t count, int64_t rows) const {
    return ViewOf(buffer, 0, buffer.scalar_type(), {count, rows});
  }

  // Each rank's sum of exponentials is made with its own maximum and scaled to that of all ranks.
  void LossOverRanks(const UnitArgs& args, int64_t row, const Tensor& logits, const Tensor& buffer, bool train) const {
    const kernels::VocabularyPart part{args.tp->rank() * held_vocab_, vocab_, AddsOnce(args)};
    const Tensor vectors = Vectors(buffer, 4, logits.size(0));
    const Tensor own_maxima = vectors.select(0, 0), maxima = vectors.select(0, 1), sums = vectors.narrow(0, 2, 2);
    kernels::VocabularyStatistics(logits, args.tokens, row, part, own_maxima, sums);
    maxima.copy_(own_maxima);
    args.tp->AllReduce(maxima, ReduceOp::kMax);
    args.tp->Wait();
    own_maxima.sub_(maxima).exp_();
    sums.select(0, 0).mul_(own_maxima);
    args.tp->AllReduce(sums);
    args.tp->Wait();
    kernels::VocabularyLoss(logits, args.tokens, row, part, maxima, sums, args.gradient_scale, args.step_state, train);
  }

  const at::ScalarType compute_;
  const int64_t hidden_, vocab_, held_vocab_;
  const bool tied_;
  const Norm norm_;
  const ParameterPlace weight_;
  std::vector<ParameterPlace> others_of_owner_;  // segments of unit 0 beside the tied weight
};

}  // namespace

std::unique_ptr<Unit> MakeHead(const Plan& plan) {
  return std::make_unique<Head>(plan, ParameterFinder(plan.units.back()));
}

}  // namespace trireme
