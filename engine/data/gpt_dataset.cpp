#include "engine/data/gpt_dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <thread>
#include <utility>

#include "engine/base/bytes.h"
#include "engine/data/numpy_random.h"
#include "engine/data/parallel.h"

namespace trireme::data {
namespace {

constexpr int64_t kMaxSamples = (int64_t{1} << 32) - 3;  // above this Megatron-LM changes the type of its shuffle index
constexpr int64_t kMaxSequenceLength = int64_t{1} << 28;

void CheckOptions(const GptDatasetOptions& options) {
  const auto fail = [](const std::string& what, const char* fix) {
    throw Error(ErrorCode::kUsage, "DAT020", what, "samples", fix);
  };
  if (options.seq_length < 1 || options.seq_length > kMaxSequenceLength) {
    fail(fmt::format("sequence length {} is not between 1 and {}", options.seq_length, kMaxSequenceLength),
         "set --seq-length");
  }
  if (options.seed < 0 || options.seed > std::numeric_limits<uint32_t>::max()) {
    fail(fmt::format("seed {} is not between 0 and 4294967295", options.seed), "set --seed");
  }
  if (options.num_samples < 0 || options.num_samples > kMaxSamples) {
    fail(fmt::format("{} samples are wanted; up to {} are possible", options.num_samples, kMaxSamples),
         "set fewer --train-iters");
  }
}

}  // namespace

EpochPlan PlanEpochs(int64_t tokens_per_epoch, int64_t seq_length, int64_t num_samples) {
  EpochPlan plan{.tokens_per_epoch = tokens_per_epoch};
  plan.num_epochs = std::max<int64_t>(1, CeilDiv(num_samples * seq_length + 1, tokens_per_epoch));
  plan.num_samples = (plan.num_epochs * tokens_per_epoch - 1) / seq_length;
  if (plan.num_epochs == 1) return plan;
  const int64_t before_last = ((plan.num_epochs - 1) * tokens_per_epoch - 1) / seq_length;
  const int64_t samples_per_epoch = (tokens_per_epoch - 1) / seq_length;
  const int64_t from_last = num_samples - before_last;
  plan.separate_last_epoch = from_last < static_cast<int64_t>(0.80 * static_cast<double>(samples_per_epoch));
  if (plan.separate_last_epoch) plan.samples_before_last = before_last;
  return plan;
}

GptDataset::GptDataset(std::shared_ptr<const IndexedDataset> data, SplitRange range, const GptDatasetOptions& options)
    : data_(std::move(data)), range_(range), seq_length_(options.seq_length), order_(options.order) {
  CheckOptions(options);
  TRIREME_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= data_->num_sequences(),
                fmt::format("sequences [{}, {}) of {}", range.begin, range.end, data_->num_sequences()));
  const std::string file = BinPath(data_->prefix()).string();
  const int64_t tokens = data_->FirstToken(range.end) - data_->FirstToken(range.begin);
  const bool several_epochs = order_ == SampleOrder::kMegatron && options.num_samples > 0;
  if (tokens == 0 || (!several_epochs && tokens < seq_length_ + 1)) {
    throw Error(ErrorCode::kData, "DAT008",
                fmt::format("sequences [{}, {}) of {} hold {} tokens; one sample of length {} needs {}", range.begin,
                            range.end, data_->num_sequences(), tokens, seq_length_, seq_length_ + 1),
                file, "give this part of --split more weight, shorten --seq-length, or use more text");
  }
  plan_ = PlanEpochs(tokens, seq_length_, several_epochs ? options.num_samples : 0);
  if (options.num_samples > plan_.num_samples) {
    throw Error(ErrorCode::kData, "DAT009",
                fmt::format("{} samples of length {} are wanted; in file order there are {}", options.num_samples,
                            seq_length_, plan_.num_samples),
                file, "set fewer --train-iters, or leave out --no-shuffle, which allows several epochs");
  }
  if (plan_.num_samples > kMaxSamples || data_->num_sequences() > std::numeric_limits<int32_t>::max()) {
    throw Error(ErrorCode::kData, "DAT009",
                fmt::format("{} samples of {} sequences; up to {} samples and 2147483647 sequences are possible",
                            plan_.num_samples, data_->num_sequences(), kMaxSamples),
                file, "lengthen --seq-length or divide the dataset");
  }
  if (order_ == SampleOrder::kMegatron) BuildIndex(options.seed, ResolveThreads(options.threads));
}

// One generator draws for the document index first and the shuffle index then; the sample index draws nothing, so it is
// built beside the shuffle.
void GptDataset::BuildIndex(int64_t seed, int threads) {
  NumpyRandom random(static_cast<uint32_t>(seed));
  document_index_.resize(static_cast<size_t>(plan_.num_epochs * range_.size()));
  for (int64_t epoch = 0; epoch < plan_.num_epochs; ++epoch) {
    const auto begin = document_index_.begin() + epoch * range_.size();
    std::iota(begin, begin + range_.size(), static_cast<int32_t>(range_.begin));
  }
  const std::span<int32_t> documents(document_index_);
  const size_t last_epoch = plan_.separate_last_epoch ? static_cast<size_t>(range_.size()) : 0;
  random.Shuffle(documents.first(documents.size() - last_epoch));
  random.Shuffle(documents.last(last_epoch));

  shuffle_index_.resize(static_cast<size_t>(plan_.num_samples));
  const auto shuffle_samples = [&] {
    std::iota(shuffle_index_.begin(), shuffle_index_.end(), 0u);
    const std::span<uint32_t> samples(shuffle_index_);
    const size_t first = static_cast<size_t>(plan_.separate_last_epoch ? plan_.samples_before_last : plan_.num_samples);
    random.Shuffle(samples.first(first));
    random.Shuffle(samples.subspan(first));
  };
  constexpr size_t kThreadFrom = 1 << 16;  // below, a thread costs more than it saves
  if (threads == 1 || document_index_.size() + shuffle_index_.size() < kThreadFrom) {
    shuffle_samples();
    BuildSampleIndex(1);
    return;
  }
  std::thread shuffling(shuffle_samples);
  try {
    BuildSampleIndex(threads);
  } catch (...) {
    shuffling.join();
    throw;
  }
  shuffling.join();
}

// Boundary j > 0 lies at token j * seq_length of the concatenated documents (samples share that token): the document
// that holds it and the place there. So each thread finds where its documents begin in the stream and walks them alone.
void GptDataset::BuildSampleIndex(int threads) {
  const int64_t count = static_cast<int64_t>(document_index_.size());
  const int64_t chunks = std::min<int64_t>(threads, count);
  const auto chunk_begin = [&](int64_t chunk) { return count * chunk / chunks; };
  std::vector<int64_t> first_token(static_cast<size_t>(chunks) + 1, 0);
  boundary_documents_.resize(shuffle_index_.size() + 1);
  boundary_offsets_.resize(shuffle_index_.size() + 1);
  ParallelFor(chunks, threads, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      int64_t sum = 0;
      for (int64_t k = chunk_begin(chunk); k < chunk_begin(chunk + 1); ++k)
        sum += data_->Length(document_index_[static_cast<size_t>(k)]);
      first_token[static_cast<size_t>(chunk) + 1] = sum;
    }
  });
  std::partial_sum(first_token.begin(), first_token.end(), first_token.begin());
  boundary_documents_[0] = 0;
  boundary_offsets_[0] = 0;
  ParallelFor(chunks, threads, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      int64_t token = first_token[static_cast<size_t>(chunk)];  // of the start of document k
      int64_t boundary = std::max<int64_t>(1, CeilDiv(token, seq_length_));
      for (int64_t k = chunk_begin(chunk); k < chunk_begin(chunk + 1); ++k) {
        const int64_t next = token + data_->Length(document_index_[static_cast<size_t>(k)]);
        for (; boundary * seq_length_ < next && boundary <= plan_.num_samples; ++boundary) {
          boundary_documents_[static_cast<size_t>(boundary)] = k;
          boundary_offsets_[static_cast<size_t>(boundary)] = static_cast<int32_t>(boundary * seq_length_ - token);
        }
        token = next;
      }
    }
  });
}

template <typename F>
void GptDataset::ForEachPiece(int64_t sample, F&& f) const {
  TRIREME_CHECK(sample >= 0 && sample < num_samples(), fmt::format("sample {} of {}", sample, num_samples()));
  int64_t left = seq_length_ + 1;
  if (order_ == SampleOrder::kFile) {
    f(data_->FirstToken(range_.begin) + sample * seq_length_, left);
    return;
  }
  const size_t boundary = shuffle_index_[static_cast<size_t>(sample)];
  int64_t document = boundary_documents_[boundary], offset = boundary_offsets_[boundary];
  while (left > 0) {
    const int32_t sequence = document_index_[static_cast<size_t>(document)];
    const int64_t count = std::min(left, data_->Length(sequence) - offset);
    if (count > 0) f(data_->FirstToken(sequence) + offset, count);
    left -= count;
    ++document;
    offset = 0;
  }
}

void GptDataset::Read(int64_t sample, std::span<int32_t> out) const {
  TRIREME_CHECK(static_cast<int64_t>(out.size()) == seq_length_ + 1,
                fmt::format("room for {} tokens of {}", out.size(), seq_length_ + 1));
  ForEachPiece(sample, [&](int64_t first_token, int64_t count) {
    data_->Read(first_token, out.first(static_cast<size_t>(count)));
    out = out.subspan(static_cast<size_t>(count));
  });
}

int64_t GptDataset::TokenOf(int64_t sample, int64_t position) const {
  TRIREME_CHECK(position >= 0 && position <= seq_length_, fmt::format("position {} of {}", position, seq_length_ + 1));
  int64_t token = -1;
  ForEachPiece(sample, [&](int64_t first_token, int64_t count) {
    if (position >= 0 && position < count) token = first_token + position;
    position -= count;
  });
  return token;
}

}  // namespace trireme::data
