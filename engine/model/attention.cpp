#include "engine/model/attention.h"

#include <utility>

#include "engine/plan/families/family.h"

namespace trireme {

Attention::Attention(ParameterFinder& parameters, const std::string& prefix, const ModelSpec& model, int tp_size,
                     std::shared_ptr<RotaryTable> rotary)
    : heads_{.num_heads = model.num_attention_heads / tp_size,
             .num_kv_heads = model.KeyValueHeads() / tp_size,
             .head_size = model.HeadSize(),
             .interleaved = TraitsOf(model.family).interleaved},
      rotary_(std::move(rotary)),
      qkv_(parameters, prefix, TraitsOf(model.family).qkv, QkvRows(TraitsOf(model.family), BlockWidths(model, tp_size)),
           model.hidden_size, model.qkv_bias),
      out_(parameters, prefix, {TraitsOf(model.family).attention_out}, {model.hidden_size}, heads_.query_width(),
           model.attention_out_bias) {}

kernels::AttentionShape Attention::ShapeOf(const UnitArgs& args) const {
  kernels::AttentionShape shape = heads_;
  shape.micro_batch_size = args.micro_batch_size;
  shape.sequence_length = args.sequence_length;
  return shape;
}

void Attention::Project(const at::Tensor& x, const UnitArgs& args, int64_t first_position,
                        const at::Tensor& qkv) const {
  qkv_.Forward(x, args.weights, {}, qkv);
  Turn(qkv, args, first_position, /*inverse=*/false);
}

void Attention::BackwardToQkv(const at::Tensor& dattended, const at::Tensor& qkv, const UnitArgs& args,
                              const std::vector<at::Tensor>& pool, const at::Tensor& dqkv) const {
  kernels::AttentionBackward(dattended, qkv, ShapeOf(args), pool, dqkv);
  Turn(dqkv, args, 0, /*inverse=*/true);
}

void Attention::Turn(const at::Tensor& qkv, const UnitArgs& args, int64_t first_position, bool inverse) const {
  if (!rotary_) return;
  const RotaryTable::Values& table = rotary_->For(first_position + args.sequence_length, qkv.device());
  kernels::Rotate(qkv, ShapeOf(args), table.cosines, table.sines, first_position, inverse);
}

}  // namespace trireme
