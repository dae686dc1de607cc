#include "engine/trainer/generator.h"

#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/plan/families/rope.h"

namespace trireme {

Generator::Generator(const ModelFolder& folder, const GeneratorOptions& options)
    : model_(folder, options.model), kv_cache_(options.kv_cache) {}

int64_t Generator::WindowBegin(int64_t count) const {
  const int64_t step = std::max<int64_t>(1, context() / 4);
  return count <= context() ? 0 : CeilDiv(count - context(), step) * step;
}

// How many tokens of `window` need not be run again.
int64_t Generator::Reusable(std::span<const int32_t> window) const {
  const bool goes_on = cached_.size() < window.size() && std::ranges::equal(cached_, window.first(cached_.size()));
  if (!kv_cache_ || !goes_on || cached_.empty()) return 0;
  const auto known = static_cast<int64_t>(cached_.size()), all = static_cast<int64_t>(window.size());
  if (model().rotary() && MakeRopeFrequencies(model(), known) != MakeRopeFrequencies(model(), all)) return 0;
  return known;
}

// Room for `tokens`; what is cached stays.
void Generator::ReserveCaches(int64_t tokens) {
  const int64_t room = caches_.empty() ? 0 : caches_.front().keys.size(2);
  if (tokens <= room) return;
  const int64_t capacity = std::min(context(), AlignUp(std::max(tokens, 2 * room), 64));
  const auto kept = static_cast<int64_t>(cached_.size());
  const auto options = at::TensorOptions().dtype(model_.compute_type()).device(model_.device());
  const auto grow = [&](at::Tensor& tensor) {
    at::Tensor larger = at::empty({1, model().KeyValueHeads(), capacity, model().HeadSize()}, options);
    if (kept > 0) larger.narrow(2, 0, kept).copy_(tensor.narrow(2, 0, kept));
    tensor = larger;
  };
  caches_.resize(static_cast<size_t>(model().num_layers));
  for (KeyValueCache& cache : caches_) {
    grow(cache.keys);
    grow(cache.values);
  }
}

std::vector<float> Generator::Logits(std::span<const int32_t> ids) {
  TRIREME_CHECK(!ids.empty(), "nothing to continue");
  const auto window = ids.subspan(static_cast<size_t>(WindowBegin(static_cast<int64_t>(ids.size()))));
  const int64_t known = Reusable(window), fresh = static_cast<int64_t>(window.size()) - known;
  cached_.resize(static_cast<size_t>(known));
  at::Tensor tokens = at::empty({1, fresh + 1}, at::kInt);
  std::ranges::copy(window.last(static_cast<size_t>(fresh)), tokens.mutable_data_ptr<int32_t>());
  tokens.mutable_data_ptr<int32_t>()[fresh] = -1;  // a label, never looked at
  tokens = tokens.to(model_.device());
  if (kv_cache_) ReserveCaches(static_cast<int64_t>(window.size()));
  const at::Tensor x = kv_cache_ ? model_.Run(tokens, caches_, known) : model_.Run(tokens);
  if (kv_cache_) cached_.assign(window.begin(), window.end());

  const at::Tensor row = model_.Logits(x, fresh - 1);
  const std::span<const float> logits(row.const_data_ptr<float>(), static_cast<size_t>(row.numel()));
  const auto wrong = std::ranges::count_if(logits, [](float value) { return !std::isfinite(value); });
  if (wrong > 0) {
    throw Error(ErrorCode::kCheckpoint, "GEN004",
                fmt::format("{} of {} logits after {} tokens are not finite in {}", wrong, logits.size(), window.size(),
                            Name(model_.plan().dtypes.compute)),
                model().name, "use fp32 or bf16; if they are not finite there either, take an earlier checkpoint");
  }
  return {logits.begin(), logits.end()};
}

}  // namespace trireme
