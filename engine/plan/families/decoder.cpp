// Units of every family out of its traits: embedding, blocks, head.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "engine/plan/families/family.h"
#include "engine/plan/unit_spec.h"

namespace trireme {

const FamilyTraits& TraitsOf(Family family) {
  switch (family) {
    case Family::kGpt2:
      return Gpt2Traits();
    case Family::kGptNeoX:
      return GptNeoXTraits();
    case Family::kLlama:
    case Family::kQwen2:
      break;
  }
  return LlamaTraits();
}

std::string BlockName(const FamilyTraits& traits, int64_t layer) { return fmt::format("{}.{}", traits.blocks, layer); }

BlockWidths::BlockWidths(const ModelSpec& model, int tp_size)
    : hidden(model.hidden_size),
      query(model.num_attention_heads / tp_size * model.HeadSize()),
      key(model.KeyValueHeads() / tp_size * model.HeadSize()),
      intermediate(model.intermediate_size / tp_size) {}

std::vector<int64_t> QkvRows(const FamilyTraits& traits, const BlockWidths& widths) {
  if (traits.qkv.size() == 1) return {widths.qkv()};
  return {widths.query, widths.key, widths.key};
}

std::vector<int64_t> FcRows(const FamilyTraits& traits, const BlockWidths& widths) {
  return std::vector<int64_t>(traits.fc.size(), widths.intermediate);
}

namespace {

double ProductFlops(const UnitSpec& unit) {
  double flops = 0;
  for (const ProductSpec& product : unit.products) {
    flops += 2.0 * static_cast<double>(product.out) * static_cast<double>(product.in);
  }
  return flops;
}

class Decoder {
 public:
  Decoder(const ModelSpec& model, const FamilyOptions& options)
      : model_(model),
        options_(options),
        traits_(TraitsOf(model.family)),
        whole_(model),
        widths_(model, options.tp_size),
        padded_vocab_(std::max(model.vocab_size, model.padded_vocab_size)),
        held_vocab_(padded_vocab_ / options.tp_size),
        token_share_(options.sequence_parallel ? options.tp_size : 1),
        compute_size_(SizeOf(options.compute_dtype)),
        statistics_size_(options.compute_dtype == DType::kFloat64 ? 8 : 4) {}

  UnitSpec Embedding() const;
  UnitSpec Block(int64_t layer) const;
  UnitSpec Head() const;

 private:
  ParameterSpec Vector(const std::string& name, int64_t size, Init init, int tp_dim) const {
    return {name, {size}, false, 0, init, 0, options_.decay_all, tp_dim, false, options_.tp_size, 1};
  }
  ParameterSpec Table(std::string_view name, int64_t rows, int64_t padded_rows, int tp_dim) const {
    return {fmt::format("{}.weight", name),
            {rows, widths_.hidden},
            false,
            padded_rows,
            Init::kNormal,
            model_.initializer_range,
            true,
            tp_dim,
            false,
            options_.tp_size,
            1};
  }
  void AddNorm(UnitSpec& unit, const std::string& name) const;
  void AddLinear(UnitSpec& unit, const std::vector<std::string_view>& names, const std::vector<int64_t>& rows,
                 int64_t in, bool bias, bool row_parallel) const;
  void AddParameters(UnitSpec& unit) const;
  void AddActivations(UnitSpec& unit) const;
  // Over tp ranks a sum of partial products, and under sequence parallelism the whole rows that a product reads.
  CollectiveSpec Sum(bool hidden = false) const {
    const auto kind =
        options_.sequence_parallel ? CollectiveSpec::Kind::kReduceScatter : CollectiveSpec::Kind::kAllReduce;
    return {kind, widths_.hidden * compute_size_, hidden};
  }
  CollectiveSpec WholeRows(bool hidden = false) const {
    return {CollectiveSpec::Kind::kAllGather, widths_.hidden * compute_size_, hidden};
  }
  UnitCollectives BlockCollectives() const;
  ElementwiseSpec BlockBytes() const;
  ElementwiseSpec HeadBytes() const;
  int64_t WeightScratch(int64_t matrix_elements) const;
  int64_t FcWidth() const { return static_cast<int64_t>(traits_.fc.size()) * widths_.intermediate; }

  const ModelSpec& model_;
  const FamilyOptions& options_;
  const FamilyTraits& traits_;
  const BlockWidths whole_, widths_;  // of all tp ranks, and of one
  const int64_t padded_vocab_, held_vocab_;
  const int token_share_;
  const int64_t compute_size_, statistics_size_;
};

// A product of a 16-bit weight gradient is made here before it is added to a wider sum (CPU).
int64_t Decoder::WeightScratch(int64_t matrix_elements) const {
  if (compute_size_ > 2) return 0;
  const int64_t row = std::max({widths_.hidden, widths_.intermediate, widths_.query}) * compute_size_;
  return std::max(row, std::min(matrix_elements * compute_size_, kWeightScratchBytes));
}

void Decoder::AddNorm(UnitSpec& unit, const std::string& name) const {
  unit.parameters.push_back(Vector(name + ".weight", widths_.hidden, Init::kOnes, -1));
  if (!traits_.rms_norm) unit.parameters.push_back(Vector(name + ".bias", widths_.hidden, Init::kZeros, -1));
}

// Matrices that one product reads, then their biases. Column-parallel: rows of the held matrix over tp; row-parallel:
// its columns, the bias whole.
void Decoder::AddLinear(UnitSpec& unit, const std::vector<std::string_view>& names, const std::vector<int64_t>& rows,
                        int64_t in, bool bias, bool row_parallel) const {
  double std = model_.initializer_range;
  const bool fused = names == traits_.qkv && names.size() == 1 && !traits_.interleaved;
  const int blocks = fused ? 3 : 1;  // query, key and value are split one by one
  if (row_parallel && traits_.scaled_residual_init) std /= std::sqrt(2.0 * static_cast<double>(model_.num_layers));
  for (size_t i = 0; i < names.size(); ++i) {
    std::vector<int64_t> shape{rows[i], in};
    if (traits_.transposed) std::swap(shape[0], shape[1]);
    unit.parameters.push_back({fmt::format("{}.{}.weight", unit.name, names[i]), std::move(shape), traits_.transposed,
                               0, Init::kNormal, std, true, row_parallel ? 1 : 0, i > 0, options_.tp_size, blocks});
  }
  if (!bias) return;
  for (size_t i = 0; i < names.size(); ++i) {
    unit.parameters.push_back(
        Vector(fmt::format("{}.{}.bias", unit.name, names[i]), rows[i], Init::kZeros, row_parallel ? -1 : 0));
    unit.parameters.back().joined = i > 0;
    unit.parameters.back().tp_blocks = blocks;
  }
}

UnitSpec Decoder::Embedding() const {
  UnitSpec unit;
  unit.kind = UnitKind::kEmbedding;
  unit.name = "embedding";
  unit.parameters = {Table(traits_.token_table, model_.vocab_size, padded_vocab_, 0)};
  if (!traits_.position_table.empty()) {
    unit.parameters.push_back(Table(traits_.position_table, model_.max_position_embeddings, 0, -1));
  }
  const int64_t exchanged = options_.sequence_parallel ? 2 * widths_.hidden * compute_size_ : 0;
  const int64_t ids = options_.tp_size > 1 ? 8 : 0;  // of this rank's part of the table, one more a sequence
  if (options_.tp_size > 1) unit.forward_workspace = {ids + exchanged, kWorkspaceSlack};
  unit.backward_workspace = {64 + ids + exchanged, kWorkspaceSlack};
  if (options_.tp_size > 1) unit.collectives.forward = {Sum()};
  if (options_.sequence_parallel) unit.collectives.backward_input = {WholeRows()};
  const double h = static_cast<double>(widths_.hidden) * static_cast<double>(compute_size_);
  unit.elementwise = {.forward = 3 * h,
                      .backward_weight = h + 2 * static_cast<double>(widths_.hidden * statistics_size_)};
  return unit;
}

void Decoder::AddParameters(UnitSpec& unit) const {
  const int64_t h = whole_.hidden;
  AddNorm(unit, fmt::format("{}.{}", unit.name, traits_.norm_1));
  AddLinear(unit, traits_.qkv, QkvRows(traits_, whole_), h, model_.qkv_bias, false);
  AddLinear(unit, {traits_.attention_out}, {h}, whole_.query, model_.attention_out_bias, true);
  AddNorm(unit, fmt::format("{}.{}", unit.name, traits_.norm_2));
  AddLinear(unit, traits_.fc, FcRows(traits_, whole_), h, model_.mlp_bias, false);
  AddLinear(unit, {traits_.mlp_out}, {h}, whole_.intermediate, model_.mlp_bias, true);
}

void Decoder::AddActivations(UnitSpec& unit) const {
  using Place = SavedSpec::Place;
  const int64_t h = widths_.hidden;
  const auto norm = [&](const std::string& name, const std::string& input) {
    if (!traits_.rms_norm) unit.saved.push_back({name + ".mean", false, 1, Place::kArena, token_share_});
    unit.saved.push_back({name + ".rstd", false, 1, Place::kArena, token_share_});
    unit.saved.push_back({name + ".out", true, h, Place::kArena, token_share_, input, /*remade_with_weights=*/true});
  };
  norm("norm_1", "input");
  unit.saved.push_back({"attn.qkv", true, widths_.qkv(), Place::kArena});
  unit.saved.push_back({"attn.out", true, widths_.query, Place::kPool});
  unit.saved.push_back({"attn.lse", false, model_.num_attention_heads / options_.tp_size, Place::kPool});
  if (!model_.parallel_residual) unit.saved.push_back({"mid", true, h, Place::kArena, token_share_});
  norm("norm_2", model_.parallel_residual ? "input" : "mid");
  unit.saved.push_back({"mlp.fc", true, FcWidth(), Place::kArena});
  unit.saved.push_back({"mlp.act", true, widths_.intermediate, Place::kArena, 1, "mlp.fc"});
  unit.deferred = {{"mlp.dout", true, h, Place::kArena},
                   {"mlp.dfc", true, FcWidth(), Place::kArena},
                   {"attn.dout", true, h, Place::kArena},
                   {"attn.dqkv", true, widths_.qkv(), Place::kArena}};
}

UnitCollectives Decoder::BlockCollectives() const {
  if (options_.tp_size == 1) return {};
  UnitCollectives of;
  const bool gathers = options_.sequence_parallel;
  for (const bool attention : {true, false}) {
    if (gathers) of.forward.push_back(WholeRows());
    of.forward.push_back(Sum());
    // The sum after the MLP is the block's output, which a recomputation leaves out; that after the attention too where
    // the MLP does not read it.
    if (gathers) of.recompute.push_back(WholeRows());
    if (attention && !model_.parallel_residual) of.recompute.push_back(Sum());
    if (gathers) {
      of.backward_input.push_back(WholeRows());
      of.backward_weight.push_back(WholeRows(/*hidden=*/true));
    }
    of.backward_input.push_back(Sum(/*hidden=*/true));
  }
  return of;
}

// Elements that the fused kernels read and write: norms (with the residual sum before the second), rotary positions,
// the MLP's activation and the sum at the end; in backward their gradients, and the sums of the biases'.
ElementwiseSpec Decoder::BlockBytes() const {
  const double c = static_cast<double>(compute_size_), h = static_cast<double>(widths_.hidden) / token_share_,
               qkv = model_.rotary() ? static_cast<double>(widths_.qkv()) : 0,
               f = static_cast<double>(widths_.intermediate), fc = static_cast<double>(FcWidth());
  ElementwiseSpec bytes;
  bytes.forward = c * (2 * h + 2 * qkv + 4 * h + (fc + f) + 3 * h);
  bytes.backward_input = c * (2 * 4 * h + 2 * qkv + (fc + 2 * f + fc) + 3 * h);
  bytes.remade = c * (2 * 2 * h + fc + f);
  return bytes;
}

// Final norm and its gradient, and the logits of a chunk: read for the loss, then once more for their gradients.
ElementwiseSpec Decoder::HeadBytes() const {
  const double c = static_cast<double>(compute_size_), h = static_cast<double>(widths_.hidden) / token_share_;
  ElementwiseSpec bytes;
  bytes.forward = c * (3 * static_cast<double>(held_vocab_) + 6 * h);
  return bytes;
}

UnitSpec Decoder::Block(int64_t layer) const {
  const int64_t h = widths_.hidden, f = widths_.intermediate;
  UnitSpec unit;
  unit.kind = UnitKind::kBlock;
  unit.name = BlockName(traits_, layer);
  unit.layer = layer;
  AddParameters(unit);
  AddActivations(unit);
  unit.splits_weights = true;
  unit.collectives = BlockCollectives();
  const int64_t scratch = WeightScratch(std::max({widths_.qkv() * h, widths_.query * h, FcWidth() * h}));
  // Whole rows that come from the other ranks, and partial sums that go to them.
  const int64_t exchanged = options_.sequence_parallel ? 2 * h : 0, dact = traits_.gated() ? f : 0;
  const int64_t dropped = options_.hidden_dropout > 0 || options_.sequence_parallel ? 2 * h : 0;
  const int64_t backward = 2 * h + widths_.query + widths_.qkv() + FcWidth() + dact + dropped + exchanged;
  unit.forward_workspace = {(2 * h + exchanged) * compute_size_, kWorkspaceSlack};
  unit.backward_workspace = {backward * compute_size_ + 8 * statistics_size_, kWorkspaceSlack + scratch};
  unit.products = {{widths_.qkv(), h}, {h, widths_.query}, {FcWidth(), h}, {h, f}};
  unit.attention_flops_per_token =
      2.0 * static_cast<double>(widths_.query) * static_cast<double>(options_.sequence_length);
  unit.forward_flops_per_token = ProductFlops(unit) + unit.attention_flops_per_token;
  unit.elementwise = BlockBytes();
  return unit;
}

UnitSpec Decoder::Head() const {
  UnitSpec unit;
  unit.kind = UnitKind::kHead;
  unit.name = "head";
  AddNorm(unit, std::string(traits_.final_norm));
  if (!model_.tie_word_embeddings) {
    unit.parameters.push_back(Table(traits_.head, model_.vocab_size, padded_vocab_, 0));
  }
  unit.reads_tied_embedding = model_.tie_word_embeddings;
  const int64_t tokens = options_.tokens > 0 ? options_.tokens : options_.sequence_length;
  const int64_t logits = HeadChunkTokens(tokens, held_vocab_) * held_vocab_ * compute_size_;
  const int64_t exchanged = options_.sequence_parallel ? 2 : 0, statistics = options_.tp_size > 1 ? 8 : 4;
  unit.forward_workspace = {(2 + exchanged) * widths_.hidden * compute_size_ + statistics * statistics_size_,
                            kWorkspaceSlack + logits + WeightScratch(held_vocab_ * widths_.hidden)};
  if (options_.sequence_parallel) unit.collectives.forward.push_back(WholeRows());
  if (options_.tp_size > 1) {  // maxima; then sums of exponentials and the labels' logits; then the norm's gradient
    const auto kind = CollectiveSpec::Kind::kAllReduce;
    unit.collectives.forward.push_back({kind, statistics_size_});
    unit.collectives.forward.push_back({kind, 2 * statistics_size_});
    unit.collectives.forward.push_back(Sum());
  }
  unit.products = {{held_vocab_, widths_.hidden}};
  unit.forward_flops_per_token = ProductFlops(unit);
  unit.elementwise = HeadBytes();
  return unit;
}

}  // namespace

std::vector<UnitSpec> MakeUnitSpecs(const ModelSpec& model, const FamilyOptions& options) {
  const Decoder family(model, options);
  std::vector<UnitSpec> units;
  units.push_back(family.Embedding());
  for (int64_t layer = 0; layer < model.num_layers; ++layer) units.push_back(family.Block(layer));
  units.push_back(family.Head());
  return units;
}

}  // namespace trireme
