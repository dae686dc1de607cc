#include "engine/data/loader.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

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
    uint32_t largest = 0;  // a negative id is larger than any vocabulary
    for (const int32_t id : tokens) largest = std::max(largest, static_cast<uint32_t>(id));
    if (largest < static_cast<uint64_t>(vocab_size_)) return;
    const auto bad =
        std::find_if(tokens.begin(), tokens.end(), [&](int32_t id) { return id < 0 || id >= vocab_size_; });
    const IndexedDataset& data = samples_->data();
    const int64_t token = samples_->TokenOf(sample, bad - tokens.begin());
    const TokenPlace place = data.Locate(token);
    throw Error(
        ErrorCode::kData, "DAT006",
        fmt::format("document {}, position {}: token id {} is outside the vocabulary of {} (ids 0 to {}; token {} of "
                    "the file, sample {})",
                    place.document, place.position, data.TokenAt(token), vocab_size_, vocab_size_ - 1, token, sample),
        BinPath(data.prefix()).string(),
        "set the model's vocab_size to that of the tokeniser which made this file, or tokenise the text for this "
        "model");
  }

  std::shared_ptr<const GptDataset> samples_;
  int64_t vocab_size_;
};

void CheckTokenizer(const DataRequest& request) {
  const auto tokenizer = LoadTokenizer(request.data_path);
  if (tokenizer == nullptr || tokenizer->vocab_size() <= request.vocab_size) return;
  throw Error(ErrorCode::kData, "DAT021",
              fmt::format("the {} tokeniser that made this dataset has {} ids; the model's vocabulary is {}",
                          tokenizer->name(), tokenizer->vocab_size(), request.vocab_size),
              TokenizerPath(request.data_path).string(),
              fmt::format("set the model's vocab_size to {} or more", tokenizer->vocab_size()));
}

}  // namespace

std::unique_ptr<BatchSource> MakeBatchSource(std::shared_ptr<const GptDataset> samples, int64_t vocab_size) {
  return std::make_unique<GptBatchSource>(std::move(samples), vocab_size);
}

TrainingData OpenTrainingData(const DataRequest& request) {
  CheckTokenizer(request);
  TrainingData out;
  out.tokens = std::make_shared<const IndexedDataset>(request.data_path);
  const auto order = request.no_shuffle ? SampleOrder::kFile : SampleOrder::kMegatron;
  std::array<SplitRange, 3> ranges{SplitRange{0, out.tokens->num_sequences()}};
  if (!request.no_shuffle) ranges = SplitOf(ParseSplit(request.split), out.tokens->num_sequences());

  GptDatasetOptions options{
      .seq_length = request.seq_length, .num_samples = request.train_samples, .seed = request.seed, .order = order};
  const auto open_train = [&] { return std::make_shared<const GptDataset>(out.tokens, ranges[0], options); };
  std::shared_ptr<const GptDataset> train;
  if (request.saved_num_samples > 0 && request.saved_num_samples != request.train_samples) {
    const int64_t tokens = out.tokens->FirstToken(ranges[0].end) - out.tokens->FirstToken(ranges[0].begin);
    const bool enough =
        tokens > 0 && request.seq_length > 0 && order == SampleOrder::kMegatron &&
        PlanEpochs(tokens, request.seq_length, request.saved_num_samples).num_samples >= request.train_samples;
    if (enough) options.num_samples = request.saved_num_samples;
  }
  train = open_train();
  out.train = MakeBatchSource(train, request.vocab_size);
  out.position = MakePosition(*train, ranges[0], options);

  const auto full_pass = [&](SplitRange range) -> std::unique_ptr<BatchSource> {
    const int64_t tokens = out.tokens->FirstToken(range.end) - out.tokens->FirstToken(range.begin);
    if (tokens < request.seq_length + 1) return nullptr;
    const GptDatasetOptions in_file_order{
        .seq_length = request.seq_length, .seed = request.seed, .order = SampleOrder::kFile};
    return MakeBatchSource(std::make_shared<const GptDataset>(out.tokens, range, in_file_order), request.vocab_size);
  };
  out.validation = full_pass(ranges[1]);
  out.test = full_pass(ranges[2]);
  return out;
}

}  // namespace trireme::data
