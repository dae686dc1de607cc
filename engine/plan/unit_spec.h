// What a unit is, as plain data: the grain of gather, release, reduce, update, offload and recomputation
// (ARCHITECTURE.md, "Units"). Families (engine/plan/families/) write UnitSpecs from a ModelSpec; engine/model builds
// layers from the same specs, and a test compares what a spec says with what the layer does. No LibTorch here.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/dtype.h"
#include "parsers/model_spec.h"

namespace trireme {

enum class UnitKind : uint8_t { kEmbedding, kBlock, kHead };  // kHead: final norm + head + loss

enum class Init : uint8_t { kNormal, kZeros, kOnes, kGiven };  // kGiven: what the user's module holds at the start

// One logical tensor, named and shaped as Hugging Face has it.
struct ParameterSpec {
  std::string name;            // "transformer.h.0.attn.c_attn.weight"
  std::vector<int64_t> shape;  // logical; GPT-2's Conv1D weights are [in, out]
  bool transposed = false;     // the flat buffer holds the matrix as [out, in] although `shape` is [in, out]
  int64_t padded_rows = 0;  // rows that the flat buffer holds (vocabulary padding included); 0: shape[0] (held order)
  Init init = Init::kNormal;
  double init_std = 0.02;  // kNormal only
  bool decay = true;       // weight decay (matrices only, unless --decay-all)
  int tp_dim = -1;         // dimension of the held tensor that tensor parallelism splits; -1: replicated
  bool joined = false;     // begins where the parameter before it ends: one fused product reads both
  int tp_size = 1;         // ranks that split tp_dim
  int tp_blocks = 1;       // equal parts of tp_dim that are split one by one: 3 in a matrix of q | k | v

  bool split() const { return tp_size > 1 && tp_dim >= 0; }
  std::vector<int64_t> WholeHeldShape() const;  // transposed and padded, over all tp ranks
  std::vector<int64_t> HeldShape() const;       // what one rank's flat buffer holds
  int64_t HeldElements() const;
  // Which indices of tp_dim (of a vector, or a matrix as held) a rank holds, one range a block, in the order in which
  // they lie in its flat buffer; vocabulary padding is left out. Of a tensor that is not split: all, over dimension 0.
  struct Range {
    int64_t begin = 0, extent = 0;
    bool operator==(const Range&) const = default;
  };
  std::vector<Range> HeldRanges(int tp_rank) const;
};

// A run of consecutive elements of a rank's held tensor: where they are in the whole one, both row-major as held.
struct HeldRun {
  int64_t held_begin = 0, count = 0, whole_begin = 0;
};
std::vector<HeldRun> HeldRuns(const ParameterSpec& parameter, int tp_rank);

// Something that Forward leaves for Backward. All sizes are per token of the micro-batch.
struct SavedSpec {
  enum class Place : uint8_t {
    kArena,   // at an offset of the program's arena
    kPool,    // a tensor that LibTorch returns (attention output and log-sum-exp): kept in LibTorch's own pool
    kRemade,  // not kept (Recompute::kCheap): Forward and Backward make it in their workspace
  };
  std::string name;           // "norm_1.mean", "attn.qkv", ...
  bool compute_dtype = true;  // else fp32 (fp64 in fp64 runs)
  int64_t elements_per_token = 0;
  Place place = Place::kArena;
  int token_share = 1;  // of how many ranks each keeps its share of the tokens (sequence parallel)
  // Cheap: the unit's input or the saved tensor out of which Backward can make it once more without a product of
  // matrices and without attention; "": there is none.
  std::string remade_from = {};
  bool remade_with_weights = false;  // and out of the unit's weights, which BackwardWeight has not
};

struct WorkspaceSpec {
  int64_t bytes_per_token = 0;  // live only inside one instruction
  int64_t fixed_bytes = 0;
};

// A collective over the tp ranks that a unit issues itself, on `bytes_per_token` of every token of the micro-batch (of
// the whole tensor: what all ranks together have of a gathered or scattered one).
struct CollectiveSpec {
  enum class Kind : uint8_t { kAllReduce, kAllGather, kReduceScatter };
  Kind kind = Kind::kAllReduce;
  int64_t bytes_per_token = 0;
  bool hidden = false;  // products of the same instruction run beside it
  bool operator==(const CollectiveSpec&) const = default;
};

// By the instruction that issues them, in order. Backward issues those of both its halves.
struct UnitCollectives {
  std::vector<CollectiveSpec> forward, recompute, backward_input, backward_weight;
};

// A product of every token's row of `in` elements with a matrix [out, in], as one rank makes it. Backward makes two
// more of the same size: the gradients of the row and of the matrix.
struct ProductSpec {
  int64_t out = 0, in = 0;
  bool operator==(const ProductSpec&) const = default;
};

// Bytes a token that kernels other than products and attention read and write in device memory.
struct ElementwiseSpec {
  double forward = 0, backward_input = 0, backward_weight = 0;
  double remade = 0;  // Recompute::kCheap, in Backward: what is made once more
};

struct UnitSpec {
  UnitKind kind = UnitKind::kBlock;
  std::string name;                       // "transformer.h.3", "embedding", "head"
  int64_t layer = -1;                     // decoder layer, -1 elsewhere
  std::vector<ParameterSpec> parameters;  // in the order of the flat buffer
  std::vector<SavedSpec> saved;           // in the order of the saved buffer
  std::vector<SavedSpec> deferred;        // what BackwardInput leaves for BackwardWeight
  bool splits_weights = false;            // whether the unit has that pair
  WorkspaceSpec forward_workspace, backward_workspace;
  UnitCollectives collectives;  // empty at tp_size 1
  // A module of the user's: LibTorch's autograd keeps in Saved::pool what Backward needs (more than `saved` can say),
  // and Backward reads the weights, of the embedding too.
  bool autograd = false;
  bool reads_tied_embedding = false;  // head: its weight is owned by unit 0 (tied weights)
  // Of one rank of tp_size: products and attention, counted causal once at the run's sequence length (backward: twice
  // as much). The head makes all three of its products in Forward.
  double forward_flops_per_token = 0;
  std::vector<ProductSpec> products;     // their 2 * out * in, with the attention, are forward_flops_per_token
  double attention_flops_per_token = 0;  // of them
  ElementwiseSpec elementwise;
};

// How many rows of logits the head makes at a time: all tokens of a small problem, else the largest multiple of 128
// with rows * padded_vocab_size <= kHeadChunkElements (256 MiB of fp32), at least 128.
constexpr int64_t kHeadChunkElements = int64_t{64} << 20;
int64_t HeadChunkTokens(int64_t tokens, int64_t padded_vocab_size);

// Recompute::kCheap: what can be made once more is kept no longer. Both workspaces grow by one place for the widest of
// it (each is used up before the next is made); what only Backward's first half can make is part of UnitSpec::deferred.
void DropCheap(UnitSpec& unit, DType compute_dtype);

struct FamilyOptions {
  DType compute_dtype = DType::kFloat32;
  int64_t sequence_length = 0;
  int64_t tokens = 0;      // of one micro-batch; 0: sequence_length
  bool decay_all = false;  // --decay-all
  double hidden_dropout = 0;
  int tp_size = 1;
  bool sequence_parallel = false;  // norms and the residual stream are split over the tp ranks along the tokens
};

// Units in execution order: embedding, blocks, head. engine/plan/families/decoder.cpp
//
// Workspaces, with c = bytes of the compute type, r = 4 (8 in fp64), h = hidden size, q = width of the queries, w of
// queries, keys and values, f = intermediate size, per token:
//   block forward 2 h c; block backward (2 h + q + w + f) c + 8 r: d(mid), d(norm out), d(attention out), d(qkv),
//   d(fc), which takes d(act) in; f more each for d(gate | up) where the MLP is gated and for d(act), which then is
//   apart; 2 h more with dropout: what reaches the two products before it; embedding backward 64: sorted token ids and
//   their order; head 2 h c + 4 r: the norm's output and its gradient, mean, rstd, row losses;
// and fixed: head HeadChunkTokens * padded_vocab_size * c for the logits; where c is 2, the scratch of a weight product
// in the compute type: min(largest matrix, kWeightScratchBytes / c elements) * c, never less than one row. Each tensor
// of a workspace may begin at a multiple of 256 bytes: kWorkspaceSlack more holds the gaps.
constexpr int64_t kWeightScratchBytes = int64_t{64} << 20;
constexpr int64_t kWorkspaceSlack = 32 * 256;
std::vector<UnitSpec> MakeUnitSpecs(const ModelSpec& model, const FamilyOptions& options);

}  // namespace trireme
