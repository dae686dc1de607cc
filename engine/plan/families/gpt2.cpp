// GPT-2 (Radford et al., 2019) with Hugging Face's names and shapes: learned positions, LayerNorm before attention and
// MLP, tanh GELU, biases everywhere, head tied to the token embedding unless the model says otherwise.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "engine/plan/unit_spec.h"

namespace trireme {
namespace {

class Gpt2 {
 public:
  Gpt2(const ModelSpec& model, const FamilyOptions& options)
      : model_(model),
        options_(options),
        hidden_(model.hidden_size),
        intermediate_(model.intermediate_size),
        padded_vocab_(std::max(model.vocab_size, model.padded_vocab_size)),
        compute_size_(SizeOf(options.compute_dtype)),
        statistics_size_(options.compute_dtype == DType::kFloat64 ? 8 : 4) {}

  UnitSpec Embedding() const;
  UnitSpec Block(int64_t layer) const;
  UnitSpec Head() const;

 private:
  ParameterSpec Vector(std::string name, int64_t size, Init init, int tp_dim) const {
    return {std::move(name), {size}, false, 0, init, 0, options_.decay_all, tp_dim, false};
  }
  // A Conv1D of Hugging Face: `shape` is [in, out], held as [out, in].
  ParameterSpec Matrix(std::string name, int64_t in, int64_t out, double std, int tp_dim) const {
    return {std::move(name), {in, out}, true, 0, Init::kNormal, std, true, tp_dim, false};
  }
  ParameterSpec Table(std::string name, int64_t rows, int64_t padded_rows, int tp_dim) const {
    return {std::move(name),
            {rows, hidden_},
            false,
            padded_rows,
            Init::kNormal,
            model_.initializer_range,
            true,
            tp_dim,
            false};
  }
  // A product of a 16-bit weight gradient is made here before it is added to a wider sum (CPU).
  int64_t WeightScratch(int64_t matrix_elements) const {
    if (compute_size_ > 2) return 0;
    const int64_t row = std::max(hidden_, intermediate_) * compute_size_;
    return std::max(row, std::min(matrix_elements * compute_size_, kWeightScratchBytes));
  }

  const ModelSpec& model_;
  const FamilyOptions& options_;
  const int64_t hidden_, intermediate_, padded_vocab_, compute_size_, statistics_size_;
};

UnitSpec Gpt2::Embedding() const {
  UnitSpec unit;
  unit.kind = UnitKind::kEmbedding;
  unit.name = "embedding";
  unit.parameters = {Table("transformer.wte.weight", model_.vocab_size, padded_vocab_, 0),
                     Table("transformer.wpe.weight", model_.max_position_embeddings, 0, -1)};
  unit.backward_workspace = {64, kWorkspaceSlack};
  return unit;
}

UnitSpec Gpt2::Block(int64_t layer) const {
  const int64_t h = hidden_, f = intermediate_;
  const double std = model_.initializer_range;
  const double residual_std = std / std::sqrt(2.0 * static_cast<double>(model_.num_layers));
  UnitSpec unit;
  unit.kind = UnitKind::kBlock;
  unit.name = fmt::format("transformer.h.{}", layer);
  unit.layer = layer;
  unit.splits_weights = true;
  const std::string prefix = unit.name + ".";
  unit.parameters = {Vector(prefix + "ln_1.weight", h, Init::kOnes, -1),
                     Vector(prefix + "ln_1.bias", h, Init::kZeros, -1),
                     Matrix(prefix + "attn.c_attn.weight", h, 3 * h, std, 0),
                     Vector(prefix + "attn.c_attn.bias", 3 * h, Init::kZeros, 0),
                     Matrix(prefix + "attn.c_proj.weight", h, h, residual_std, 1),
                     Vector(prefix + "attn.c_proj.bias", h, Init::kZeros, -1),
                     Vector(prefix + "ln_2.weight", h, Init::kOnes, -1),
                     Vector(prefix + "ln_2.bias", h, Init::kZeros, -1),
                     Matrix(prefix + "mlp.c_fc.weight", h, f, std, 0),
                     Vector(prefix + "mlp.c_fc.bias", f, Init::kZeros, 0),
                     Matrix(prefix + "mlp.c_proj.weight", f, h, residual_std, 1),
                     Vector(prefix + "mlp.c_proj.bias", h, Init::kZeros, -1)};
  using Place = SavedSpec::Place;
  unit.saved = {{"ln_1.mean", false, 1, Place::kArena}, {"ln_1.rstd", false, 1, Place::kArena},
                {"ln_1.out", true, h, Place::kArena},   {"attn.qkv", true, 3 * h, Place::kArena},
                {"attn.out", true, h, Place::kPool},    {"attn.lse", false, model_.num_attention_heads, Place::kPool},
                {"mid", true, h, Place::kArena},        {"ln_2.mean", false, 1, Place::kArena},
                {"ln_2.rstd", false, 1, Place::kArena}, {"ln_2.out", true, h, Place::kArena},
                {"mlp.fc", true, f, Place::kArena},     {"mlp.act", true, f, Place::kArena}};
  const int64_t scratch = WeightScratch(std::max(3 * h * h, h * f));
  unit.forward_workspace = {2 * h * compute_size_, kWorkspaceSlack};
  unit.backward_workspace = {(6 * h + f) * compute_size_ + 8 * statistics_size_, kWorkspaceSlack + scratch};
  const double products = 2.0 * static_cast<double>(4 * h * h + 2 * h * f);
  const double attention = 2.0 * static_cast<double>(h) * static_cast<double>(options_.sequence_length);
  unit.forward_flops_per_token = products + attention;
  return unit;
}

UnitSpec Gpt2::Head() const {
  UnitSpec unit;
  unit.kind = UnitKind::kHead;
  unit.name = "head";
  unit.parameters = {Vector("transformer.ln_f.weight", hidden_, Init::kOnes, -1),
                     Vector("transformer.ln_f.bias", hidden_, Init::kZeros, -1)};
  if (!model_.tie_word_embeddings) {
    unit.parameters.push_back(Table("lm_head.weight", model_.vocab_size, padded_vocab_, 0));
  }
  unit.reads_tied_embedding = model_.tie_word_embeddings;
  const int64_t tokens = options_.tokens > 0 ? options_.tokens : options_.sequence_length;
  const int64_t logits = HeadChunkTokens(tokens, padded_vocab_) * padded_vocab_ * compute_size_;
  unit.forward_workspace = {2 * hidden_ * compute_size_ + 4 * statistics_size_,
                            kWorkspaceSlack + logits + WeightScratch(padded_vocab_ * hidden_)};
  unit.forward_flops_per_token = 2.0 * static_cast<double>(padded_vocab_) * static_cast<double>(hidden_);
  return unit;
}

}  // namespace

std::vector<UnitSpec> MakeUnitSpecs(const ModelSpec& model, const FamilyOptions& options) {
  const Gpt2 family(model, options);
  std::vector<UnitSpec> units;
  units.push_back(family.Embedding());
  for (int64_t layer = 0; layer < model.num_layers; ++layer) units.push_back(family.Block(layer));
  units.push_back(family.Head());
  return units;
}

}  // namespace trireme
