#include "engine/trainer/evaluator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/kernels/kernels.h"

namespace trireme {
namespace {

class IdSamples final : public data::BatchSource {
 public:
  IdSamples(std::vector<int32_t> ids, int64_t seq_length) : ids_(std::move(ids)), seq_length_(seq_length) {}

  int64_t num_samples() const override {
    return ids_.size() < 2 ? 0 : CeilDiv(static_cast<int64_t>(ids_.size()) - 1, seq_length_);
  }
  int64_t seq_length() const override { return seq_length_; }

  void Fill(int64_t first_sample, int64_t count, std::span<int32_t> tokens) const override {
    const auto row = static_cast<size_t>(seq_length_) + 1;
    TRIREME_CHECK(tokens.size() == static_cast<size_t>(count) * row, "a row a sample");
    std::ranges::fill(tokens, -1);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      const size_t begin = (static_cast<size_t>(first_sample) + i) * (row - 1);
      if (begin >= ids_.size()) continue;
      std::copy_n(ids_.begin() + static_cast<std::ptrdiff_t>(begin), std::min(row, ids_.size() - begin),
                  tokens.begin() + static_cast<std::ptrdiff_t>(i * row));
    }
  }

 private:
  const std::vector<int32_t> ids_;
  const int64_t seq_length_;
};

int64_t BytesOfLabels(TokenBytes& bytes, std::span<const int32_t> tokens, size_t row) {
  int64_t sum = 0;
  for (size_t begin = 0; begin < tokens.size(); begin += row) {
    for (const int32_t label : tokens.subspan(begin + 1, row - 1)) sum += label >= 0 ? bytes.Of(label) : 0;
  }
  return sum;
}

}  // namespace

double LossSums::perplexity() const { return std::exp(loss()); }

double LossSums::bits_per_byte() const { return bytes > 0 ? nats / std::log(2.0) / static_cast<double>(bytes) : 0; }

int64_t TokenBytes::Of(int32_t id) {
  const auto index = static_cast<size_t>(id);
  if (index >= known_.size()) known_.resize(index + 1, -1);
  if (known_[index] < 0) {
    const bool text = id != tokenizer_.eod_id() && id < tokenizer_.vocab_size();
    known_[index] = text ? static_cast<int32_t>(tokenizer_.Decode({&id, 1}).size()) : 0;
  }
  return known_[index];
}

LossSums SumLosses(InferenceModel& model, const data::BatchSource& source, const SampleShare& share) {
  const at::NoGradGuard no_grad;
  const int64_t micro = model.plan().batch.micro_batch_size, row = source.seq_length() + 1;
  TRIREME_CHECK(source.seq_length() == model.plan().batch.sequence_length, "samples of the plan's length");
  const int64_t batches = CeilDiv(share.count, micro), mine = CeilDiv(batches - share.rank, share.world);
  kernels::InitStepState(model.step_state(), /*loss_scale=*/1);
  at::Tensor tokens = at::empty({micro, row}, at::kInt);
  const std::span<int32_t> ids(tokens.mutable_data_ptr<int32_t>(), static_cast<size_t>(micro * row));
  LossSums sums;
  for (int64_t done = 0; done < mine; ++done) {
    const int64_t first = (done * share.world + share.rank) * micro, count = std::min(micro, share.count - first);
    source.Fill(first, count, ids.first(static_cast<size_t>(count * row)));
    std::ranges::fill(ids.subspan(static_cast<size_t>(count * row)), -1);
    if (share.bytes != nullptr) sums.bytes += BytesOfLabels(*share.bytes, ids, static_cast<size_t>(row));
    const at::Tensor on_device = tokens.to(model.device());
    model.AddLosses(model.Run(on_device), on_device);
    if (share.progress) share.progress(done + 1, mine);
  }
  const at::Tensor state = model.step_state().cpu();
  sums.nats = state.const_data_ptr<double>()[kEvalLossSum];
  sums.tokens = static_cast<int64_t>(state.const_data_ptr<double>()[kEvalTokens]);
  return sums;
}

std::unique_ptr<data::BatchSource> SamplesOf(std::vector<int32_t> ids, int64_t seq_length) {
  return std::make_unique<IdSamples>(std::move(ids), seq_length);
}

}  // namespace trireme
