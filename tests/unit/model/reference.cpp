#include "tests/unit/model/reference.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "engine/plan/families/rope.h"

namespace trireme::testing {
namespace {

using at::Tensor;

class Reference {
 public:
  Reference(const ModelSpec& model, const Tensors& w, const DropoutArgs& dropout)
      : model_(model), w_(w), dropout_(dropout) {}

  Tensor Logits(const Tensor& ids) {
    micro_ = ids.size(0);
    sequence_ = ids.size(1);
    Tensor x = Embed(ids.to(at::kLong));
    for (int64_t layer = 0; layer < model_.num_layers; ++layer) x = Block(x, layer);
    const Tensor normed = Norm(x, IsGpt2()   ? "transformer.ln_f"
                                  : IsNeoX() ? "gpt_neox.final_layer_norm"
                                             : "model.norm");
    const char* head = IsNeoX() ? "embed_out.weight" : "lm_head.weight";
    return normed.matmul(w_.at(model_.tie_word_embeddings ? EmbeddingName() : head).t())
        .narrow(2, 0, model_.vocab_size);
  }

 private:
  bool IsGpt2() const { return model_.family == Family::kGpt2; }
  bool IsNeoX() const { return model_.family == Family::kGptNeoX; }
  const char* EmbeddingName() const {
    return IsGpt2() ? "transformer.wte.weight" : IsNeoX() ? "gpt_neox.embed_in.weight" : "model.embed_tokens.weight";
  }

  Tensor Embed(const Tensor& ids) {
    Tensor x = at::embedding(w_.at(EmbeddingName()), ids);
    if (IsGpt2()) x = x + w_.at("transformer.wpe.weight").narrow(0, 0, sequence_);
    return Dropped(x, 0, 0);
  }

  Tensor Norm(const Tensor& x, const std::string& name) const {
    if (IsGpt2() || IsNeoX()) {
      return at::layer_norm(x, {model_.hidden_size}, w_.at(name + ".weight"), w_.at(name + ".bias"),
                            model_.layer_norm_epsilon);
    }
    const Tensor mean = x.pow(2).mean({-1}, true);
    return x * at::rsqrt(mean + model_.layer_norm_epsilon) * w_.at(name + ".weight");
  }

  Tensor Linear(const Tensor& x, const std::string& name, bool bias) const {
    const Tensor weight = w_.at(name + ".weight");
    const Tensor y = x.matmul(IsGpt2() ? weight : weight.t());
    return bias ? y + w_.at(name + ".bias") : y;
  }

  // The mask of a site, taken from the kernel: what it makes of ones.
  Tensor Dropped(const Tensor& x, int64_t layer, int site) const {
    if (dropout_.probability == 0) return x;
    const Tensor mask = at::ones({micro_ * sequence_, model_.hidden_size}, at::kDouble);
    kernels::DropoutKey key{
        dropout_.probability, dropout_.seed, dropout_.step, dropout_.first_sample, layer, site, sequence_, 0, 0};
    kernels::Dropout(mask, {}, key, mask);
    return x * mask.view({micro_, sequence_, -1});
  }

  Tensor Rotated(const Tensor& x) const {  // [micro, heads, sequence, head]
    const RopeFrequencies rope = MakeRopeFrequencies(model_, sequence_);
    const Tensor inverse = at::tensor(rope.inverse, at::kDouble);
    const Tensor half = at::arange(sequence_, at::kDouble).unsqueeze(1) * inverse;
    const Tensor angles = at::cat({half, half}, -1);
    const int64_t channels = angles.size(1);
    const Tensor turning = x.narrow(3, 0, channels), rest = x.narrow(3, channels, x.size(3) - channels);
    const Tensor turned =
        at::cat({-turning.narrow(3, channels / 2, channels / 2), turning.narrow(3, 0, channels / 2)}, -1);
    return at::cat({(turning * angles.cos() + turned * angles.sin()) * rope.factor, rest}, -1);
  }

  // q, k, v [micro, heads, sequence, head], every head with a key of its own.
  std::vector<Tensor> QueriesKeysValues(const Tensor& x, const std::string& block) const {
    const int64_t heads = model_.num_attention_heads, size = model_.HeadSize(), groups = model_.KeyValueHeads();
    const auto split = [&](const Tensor& t, int64_t count) {
      return t.reshape({micro_, sequence_, count, size}).transpose(1, 2);
    };
    if (IsGpt2()) {
      const std::vector<Tensor> parts = Linear(x, block + "attn.c_attn", true).chunk(3, -1);
      return {split(parts[0], heads), split(parts[1], heads), split(parts[2], heads)};
    }
    if (IsNeoX()) {
      const Tensor all = Linear(x, block + "attention.query_key_value", model_.qkv_bias);
      const std::vector<Tensor> parts = all.view({micro_, sequence_, heads, 3 * size}).transpose(1, 2).chunk(3, -1);
      return {Rotated(parts[0]), Rotated(parts[1]), parts[2]};
    }
    const auto project = [&](const char* name, int64_t count) {
      return split(Linear(x, block + "self_attn." + name, model_.qkv_bias), count);
    };
    const auto repeat = [&](const Tensor& t) { return t.repeat_interleave(heads / groups, 1); };
    return {Rotated(project("q_proj", heads)), repeat(Rotated(project("k_proj", groups))),
            repeat(project("v_proj", groups))};
  }

  Tensor Attention(const Tensor& x, const std::string& block) const {
    const std::vector<Tensor> qkv = QueriesKeysValues(x, block);
    const Tensor mask = at::ones({sequence_, sequence_}, at::kBool).triu(1);
    const Tensor scores = qkv[0].matmul(qkv[1].transpose(-1, -2)) / std::sqrt(static_cast<double>(model_.HeadSize()));
    const Tensor mixed = scores.masked_fill(mask, -std::numeric_limits<double>::infinity()).softmax(-1).matmul(qkv[2]);
    const char* out = IsGpt2() ? "attn.c_proj" : IsNeoX() ? "attention.dense" : "self_attn.o_proj";
    return Linear(mixed.transpose(1, 2).reshape({micro_, sequence_, -1}), block + out, model_.attention_out_bias);
  }

  Tensor Mlp(const Tensor& x, const std::string& block) const {
    if (!IsGpt2() && !IsNeoX()) {
      const Tensor gate = Linear(x, block + "mlp.gate_proj", model_.mlp_bias),
                   up = Linear(x, block + "mlp.up_proj", model_.mlp_bias);
      return Linear(gate * at::sigmoid(gate) * up, block + "mlp.down_proj", model_.mlp_bias);
    }
    const Tensor fc = Linear(x, block + (IsGpt2() ? "mlp.c_fc" : "mlp.dense_h_to_4h"), true);
    const Tensor act = at::gelu(fc, model_.activation == Activation::kGelu ? "none" : "tanh");
    return Linear(act, block + (IsGpt2() ? "mlp.c_proj" : "mlp.dense_4h_to_h"), true);
  }

  Tensor Block(const Tensor& x, int64_t layer) const {
    const std::string block = (IsGpt2()   ? "transformer.h."
                               : IsNeoX() ? "gpt_neox.layers."
                                          : "model.layers.") +
                              std::to_string(layer) + ".";
    const std::string first = block + (IsGpt2() ? "ln_1" : "input_layernorm"),
                      second = block + (IsGpt2() ? "ln_2" : "post_attention_layernorm");
    const Tensor attended = Dropped(Attention(Norm(x, first), block), layer + 1, 0);
    if (model_.parallel_residual) return x + attended + Dropped(Mlp(Norm(x, second), block), layer + 1, 1);
    const Tensor mid = x + attended;
    return mid + Dropped(Mlp(Norm(mid, second), block), layer + 1, 1);
  }

  const ModelSpec& model_;
  const Tensors& w_;
  const DropoutArgs dropout_;
  int64_t micro_ = 0, sequence_ = 0;
};

}  // namespace

Tensor ReferenceLogits(const ModelSpec& model, const Tensors& w, const Tensor& ids, const DropoutArgs& dropout) {
  return Reference(model, w, dropout).Logits(ids);
}

Tensor ReferenceLoss(const ModelSpec& model, const Tensors& w, const Tensor& tokens, const DropoutArgs& dropout) {
  const int64_t sequence = tokens.size(1) - 1;
  const Tensor logits = ReferenceLogits(model, w, tokens.narrow(1, 0, sequence), dropout);
  const Tensor labels = tokens.narrow(1, 1, sequence).reshape({-1}).to(at::kLong);
  return at::cross_entropy_loss(logits.reshape({-1, model.vocab_size}), labels, {}, at::Reduction::Sum);
}

}  // namespace trireme::testing
