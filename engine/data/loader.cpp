#include "engine/data/loader.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

#include "engine/data/blend.h"
#include "engine/data/id_check.h"
#include "engine/data/tokenizer.h"

namespace trireme::data {
namespace {

class GptBatchSource : public BatchSource {
 public:
  GptBatchSource(std::shared_ptr<const GptDataset> samples, int64_t vocab_size)
      : samples_(std::move(samples)), vocab_size_(std::min<int64_t>(vocab_size, INT32_MAX)) {}

  int64_t num_samples() const override { return samples_->num_samples(); }
  int64_t seq_length() const override { return samples_->seq_length(); }

  void Fill(int64_t first_sample, int64_t count, std::span<int32_t> tokens) const override {
    const size_t row = static_cast<size_t>(seq_length()) + 1;
    TRIREME_CHECK(first_sample >= 0 && count >= 0 && tokens.size() == static_cast<size_t>(count) * row,
                  fmt::format("{} samples from {} into {} tokens", count, first_sample, tokens.size()));
    if (first_sample + count > num_samples()) {
      throw Error(
          ErrorCode::kData, "DAT009",
          fmt::format("samples [{}, {}) are wanted; there are {}", first_sample, first_sample + count, num_samples()),
          BinPath(samples_->data().prefix()).string(), "set fewer --train-iters, or use more text");
    }
    for (int64_t i = 0; i < count; ++i) {
      const auto sample = tokens.subspan(static_cast<size_t>(i) * row, row);
      samples_->Read(first_sample + i, sample);
      Check(first_sample + i, sample);
    }
  }

 private:
  void Check(int64_t sample, std::span<const int32_t> tokens) const {
    const int64_t bad = FirstBadId(tokens, vocab_size_);
    if (bad >= 0) FailBadId(samples_->data(), samples_->TokenOf(sample, bad), sample, vocab_size_);
  }

  std::shared_ptr<const GptDataset> samples_;
  int64_t vocab_size_;
};

// Rows from several sources, in the order of a blend.
class BlendedSource : public BatchSource {
 public:
  BlendedSource(std::vector<std::unique_ptr<BatchSource>> sources, BlendOrder order)
      : sources_(std::move(sources)), order_(std::move(order)) {}

  int64_t num_samples() const override { return std::ssize(order_.samples); }
  int64_t seq_length() const override { return sources_.front()->seq_length(); }

  void Fill(int64_t first_sample, int64_t count, std::span<int32_t> tokens) const override {
    const size_t row = static_cast<size_t>(seq_length()) + 1;
    TRIREME_CHECK(first_sample >= 0 && count >= 0 && tokens.size() == static_cast<size_t>(count) * row,
                  fmt::format("{} samples from {} into {} tokens", count, first_sample, tokens.size()));
    if (first_sample + count > num_samples()) {
      throw Error(ErrorCode::kData, "DAT009",
                  fmt::format("samples [{}, {}) are wanted; the blend has {}", first_sample, first_sample + count,
                              num_samples()),
                  "--data-path", "set fewer --train-iters, or use more text");
    }
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(first_sample + i);
      sources_[static_cast<size_t>(order_.datasets[at])]->Fill(order_.samples[at], 1,
                                                               tokens.subspan(static_cast<size_t>(i) * row, row));
    }
  }

 private:
  std::vector<std::unique_ptr<BatchSource>> sources_;
  BlendOrder order_;
};

void CheckTokenizer(const std::filesystem::path& prefix, int64_t vocab_size) {
  const auto tokenizer = LoadTokenizerInfo(prefix);
  if (!tokenizer || tokenizer->vocab_size <= vocab_size) return;
  throw Error(ErrorCode::kData, "DAT021",
              fmt::format("the {} tokeniser that made this dataset has {} ids; the model's vocabulary is {}",
                          tokenizer->name, tokenizer->vocab_size, vocab_size),
              TokenizerPath(prefix).string(),
              fmt::format("set the model's vocab_size to {} or more", tokenizer->vocab_size));
}

GptDatasetOptions OptionsOf(const DataRequest& request, int64_t num_samples) {
  return {.seq_length = request.seq_length,
          .num_samples = num_samples,
          .seed = request.seed,
          .order = request.no_shuffle ? SampleOrder::kFile : SampleOrder::kMegatron};
}

// In file order, one epoch; nullptr if the part `i` holds no whole sample.
std::unique_ptr<BatchSource> FullPass(const DataRequest& request, const DatasetPart& part, size_t i) {
  if (part.TokensIn(i) < request.seq_length + 1) return nullptr;
  const GptDatasetOptions in_file_order{
      .seq_length = request.seq_length, .seed = request.seed, .order = SampleOrder::kFile};
  return MakeBatchSource(std::make_shared<const GptDataset>(part.tokens, part.ranges[i], in_file_order),
                         request.vocab_size);
}

void CheckSameTokenizer(const std::vector<std::string>& prefixes) {
  std::optional<TokenizerInfo> first;
  std::string first_prefix;
  for (const std::string& prefix : prefixes) {
    const auto info = LoadTokenizerInfo(prefix);
    if (!info) continue;
    if (!first) {
      first = info;
      first_prefix = prefix;
    }
    if (info->name == first->name && info->vocab_size == first->vocab_size && info->eod_id == first->eod_id) continue;
    throw Error(ErrorCode::kData, "DAT027",
                fmt::format("made by a {} tokeniser of {} ids, {} by a {} tokeniser of {} ids", info->name,
                            info->vocab_size, first_prefix, first->name, first->vocab_size),
                TokenizerPath(prefix).string(), "tokenise all datasets of a blend with one tokeniser");
  }
}

// The training part of a blend for `size` samples.
void OpenBlendedTraining(const DataRequest& request, const Blend& blend, const std::vector<DatasetPart>& parts,
                         int64_t size, TrainingData& out) {
  std::vector<std::unique_ptr<BatchSource>> sources;
  std::vector<int64_t> sizes;
  std::vector<DataPosition> positions;
  int64_t length = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool weighted = !blend.weights.empty();
    const auto options = OptionsOf(request, weighted ? OrderedOf(blend.weights[i], size) : 0);
    const auto samples = std::make_shared<const GptDataset>(parts[i].tokens, parts[i].ranges[0], options);
    positions.push_back(MakePosition(*samples, parts[i].ranges[0], options));
    sizes.push_back(samples->num_samples());
    if (weighted) length += WantedOf(blend.weights[i], size);
    if (weighted) positions.back().weight = blend.weights[i];
    sources.push_back(MakeBatchSource(samples, request.vocab_size));
  }
  std::vector<double> weights = blend.weights;
  if (weights.empty()) {
    weights.assign(sizes.begin(), sizes.end());
    length = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    if (size > length) {
      throw Error(ErrorCode::kData, "DAT028",
                  fmt::format("{} samples of length {} are wanted; these {} datasets have {}", size, request.seq_length,
                              parts.size(), length),
                  "--data-path", "give each dataset a weight, which allows several epochs, or set fewer --train-iters");
    }
    length = size > 0 ? size : length;
  }
  BlendOrder order = OrderByWeights(NormalizeWeights(weights), length);
  std::vector<int64_t> used(parts.size(), 0);
  for (const int16_t dataset : order.datasets) ++used[static_cast<size_t>(dataset)];
  for (size_t i = 0; i < parts.size(); ++i) {
    if (used[i] <= sizes[i]) continue;
    throw Error(ErrorCode::kData, "DAT028", fmt::format("the blend takes {} samples, there are {}", used[i], sizes[i]),
                blend.prefixes[i], "give this dataset less weight, or use more of its text");
  }
  out.train = std::make_unique<BlendedSource>(std::move(sources), std::move(order));
  out.position = positions.front();
  out.position.weight = 0;
  out.position.num_samples = size;
  out.position.parts = std::move(positions);
}

std::unique_ptr<BatchSource> BlendedFullPass(const DataRequest& request, const std::vector<DatasetPart>& parts,
                                             size_t i) {
  std::vector<std::unique_ptr<BatchSource>> sources;
  std::vector<int64_t> sizes;
  for (const DatasetPart& part : parts) {
    if (auto source = FullPass(request, part, i)) sources.push_back(std::move(source));
  }
  if (sources.empty()) return nullptr;
  for (const auto& source : sources) sizes.push_back(source->num_samples());
  return std::make_unique<BlendedSource>(std::move(sources), OrderOfAll(sizes));
}

TrainingData OpenBlend(const DataRequest& request) {
  const Blend blend = ParseBlend(request.blend);
  CheckSameTokenizer(blend.prefixes);
  std::vector<DatasetPart> parts;
  for (const std::string& prefix : blend.prefixes) parts.push_back(OpenPart(request, prefix));
  TrainingData out;
  out.tokens = parts.front().tokens;
  // The order that a saved run was made for is kept as long as it is long enough.
  OpenBlendedTraining(request, blend, parts, std::max(request.train_samples, request.saved_num_samples), out);
  out.validation = BlendedFullPass(request, parts, 1);
  out.test = BlendedFullPass(request, parts, 2);
  return out;
}

}  // namespace

DatasetPart OpenPart(const DataRequest& request, const std::filesystem::path& prefix) {
  CheckTokenizer(prefix, request.vocab_size);
  DatasetPart part{std::make_shared<const IndexedDataset>(prefix)};
  part.ranges[0] = {0, part.tokens->num_sequences()};
  if (!request.no_shuffle) part.ranges = SplitOf(ParseSplit(request.split), part.tokens->num_sequences());
  return part;
}

std::unique_ptr<BatchSource> MakeBatchSource(std::shared_ptr<const GptDataset> samples, int64_t vocab_size) {
  return std::make_unique<GptBatchSource>(std::move(samples), vocab_size);
}

TrainingData OpenTrainingData(const DataRequest& request) {
  if (!request.blend.empty()) return OpenBlend(request);
  const DatasetPart part = OpenPart(request, request.data_path);
  GptDatasetOptions options = OptionsOf(request, request.train_samples);
  if (request.saved_num_samples > 0 && request.saved_num_samples != request.train_samples) {
    const bool enough = part.TokensIn(0) > 0 && request.seq_length > 0 && !request.no_shuffle &&
                        PlanEpochs(part.TokensIn(0), request.seq_length, request.saved_num_samples).num_samples >=
                            request.train_samples;
    if (enough) options.num_samples = request.saved_num_samples;
  }
  const auto train = std::make_shared<const GptDataset>(part.tokens, part.ranges[0], options);
  TrainingData out;
  out.tokens = part.tokens;
  out.train = MakeBatchSource(train, request.vocab_size);
  out.position = MakePosition(*train, part.ranges[0], options);
  out.validation = FullPass(request, part, 1);
  out.test = FullPass(request, part, 2);
  return out;
}

}  // namespace trireme::data
