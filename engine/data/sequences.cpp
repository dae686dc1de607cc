#include "engine/data/sequences.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/data/id_check.h"

namespace trireme::data {

DocumentSamples::DocumentSamples(std::shared_ptr<const IndexedDataset> data, SplitRange range, int64_t longest,
                                 int64_t vocab_size)
    : data_(std::move(data)), vocab_size_(vocab_size) {
  TRIREME_CHECK(longest > 0 && longest < INT32_MAX, "samples have a token or more");
  for (int64_t sequence = range.begin; sequence < range.end; ++sequence) {
    const int64_t first = data_->FirstToken(sequence), labels = data_->Length(sequence) - 1;
    cut_documents_ += labels > longest ? 1 : 0;
    for (int64_t done = 0; done < labels; done += longest) {
      first_tokens_.push_back(first + done);
      lengths_.push_back(static_cast<int32_t>(std::min(longest, labels - done)));
    }
  }
}

void DocumentSamples::Read(int64_t sample, std::span<int32_t> ids) const {
  TRIREME_CHECK(static_cast<int64_t>(ids.size()) == Length(sample) + 1, "a sample and its last label");
  const int64_t first = first_tokens_[static_cast<size_t>(sample)];
  data_->Read(first, ids);
  const int64_t bad = FirstBadId(ids, vocab_size_);
  if (bad >= 0) FailBadId(*data_, first + bad, sample, vocab_size_);
}

}  // namespace trireme::data
