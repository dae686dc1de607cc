#include "checkpoint/huggingface.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace trireme::checkpoint {
namespace {

constexpr std::string_view kPrefix = "transformer.";

class Gpt2Reader : public CheckpointReader {
 public:
  Gpt2Reader(std::unique_ptr<CheckpointReader> inner, bool tied_head)
      : inner_(std::move(inner)), info_(inner_->info()) {
    info_.aliases.clear();
    for (const TensorInfo& tensor : inner_->tensors()) {
      const std::optional<std::string> name = CanonicalGpt2Name(tensor.name);
      if (!name) continue;
      const auto [entry, added] = inner_names_.try_emplace(*name, tensor.name);
      if (!added) {
        throw Error(ErrorCode::kCheckpoint, "CKP019",
                    fmt::format("{} and {} both name {}", entry->second, tensor.name, *name), info_.directory.string(),
                    "export the model again");
      }
      tensors_.push_back(tensor);
      tensors_.back().name = *name;
    }
    std::sort(tensors_.begin(), tensors_.end(),
              [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
    for (const auto& [alias, target] : inner_->info().aliases) {
      const std::optional<std::string> from = CanonicalGpt2Name(alias), to = CanonicalGpt2Name(target);
      if (from && to) info_.aliases[*from] = *to;
    }
    if (tied_head) TieHead();
  }

  const CheckpointInfo& info() const override { return info_; }
  std::span<const TensorInfo> tensors() const override { return tensors_; }
  void ReadRegion(std::string_view tensor, std::string_view state, const Region& region,
                  std::span<std::byte> out) const override {
    const TensorInfo* info = CheckRead(tensor, state, region, out.size()).first;
    inner_->ReadRegion(inner_names_.at(info->name), state, region, out);
  }
  std::vector<std::byte> ReadBlob(int rank, std::string_view name) const override {
    return inner_->ReadBlob(rank, name);
  }

 private:
  void TieHead() {
    const auto at = [this](std::string_view name) {
      return std::find_if(tensors_.begin(), tensors_.end(), [&](const TensorInfo& t) { return t.name == name; });
    };
    const auto embedding = at(kGpt2Embedding), head = at(kGpt2Head);
    if (embedding == tensors_.end()) return;  // RequireTensors reports it
    if (head != tensors_.end()) {
      const std::string problem = head->shape != embedding->shape || head->dtype != embedding->dtype
                                      ? "shape or dtype"
                                      : FirstDifference(*head);
      if (!problem.empty()) {
        throw Error(ErrorCode::kCheckpoint, "CKP020",
                    fmt::format("config.json ties {} to {}, but in the file they differ: {}", kGpt2Head, kGpt2Embedding,
                                problem),
                    info_.directory.string(),
                    "set \"tie_word_embeddings\": false in config.json, or pass --untie, to keep the head of its own");
      }
      tensors_.erase(head);
    }
    info_.aliases[std::string(kGpt2Head)] = std::string(kGpt2Embedding);
  }

  // "" if head and embedding are equal in every state, bit for bit.
  std::string FirstDifference(const TensorInfo& head) const {
    const int64_t count = Numel(head.shape);
    constexpr int64_t kPiece = 1 << 20;
    for (const StateInfo& state : head.states) {
      const int64_t size = SizeOf(state.dtype);
      std::vector<std::byte> a(static_cast<size_t>(std::min(count, kPiece) * size)), b(a.size());
      for (int64_t begin = 0; begin < count; begin += kPiece) {
        const int64_t part = std::min(kPiece, count - begin);
        a.resize(static_cast<size_t>(part * size));
        b.resize(a.size());
        ReadFlat(kGpt2Head, state.name, begin, part, a);
        ReadFlat(kGpt2Embedding, state.name, begin, part, b);
        const auto place = std::mismatch(a.begin(), a.end(), b.begin()).first;
        if (place != a.end()) return fmt::format("element {}", begin + (place - a.begin()) / size);
      }
    }
    return "";
  }

  const std::unique_ptr<CheckpointReader> inner_;
  CheckpointInfo info_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> inner_names_;  // canonical -> inner
};

}  // namespace

std::optional<std::string> CanonicalGpt2Name(std::string_view name) {
  if (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")) return std::nullopt;
  if (name.starts_with(kPrefix) || name == kGpt2Head) return std::string(name);
  return std::string(kPrefix) + std::string(name);
}

bool IsGpt2Transposed(std::string_view canonical_name) {
  constexpr std::array<std::string_view, 4> kConv1d = {".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight",
                                                       ".mlp.c_proj.weight"};
  return canonical_name.starts_with("transformer.h.") &&
         std::any_of(kConv1d.begin(), kConv1d.end(),
                     [&](std::string_view end) { return canonical_name.ends_with(end); });
}

std::unique_ptr<CheckpointReader> WithGpt2Names(std::unique_ptr<CheckpointReader> inner, bool tied_head) {
  return std::make_unique<Gpt2Reader>(std::move(inner), tied_head);
}

}  // namespace trireme::checkpoint
