#include "engine/data/summary.h"

#include <fmt/core.h>

#include <algorithm>
#include <mutex>

#include "engine/data/parallel.h"

namespace trireme::data {

DatasetSummary Summarize(const IndexedDataset& data) {
  DatasetSummary summary{
      .documents = data.num_documents(), .sequences = data.num_sequences(), .tokens = data.num_tokens()};
  for (int64_t i = 0; i < summary.documents; ++i) {
    const int64_t length = data.FirstToken(data.FirstSequence(i + 1)) - data.FirstToken(data.FirstSequence(i));
    summary.longest_document = std::max(summary.longest_document, length);
    if (length == 0) ++summary.empty_documents;
  }
  if (summary.tokens == 0) return summary;
  summary.smallest_id = summary.largest_id = data.TokenAt(0);
  summary.largest_id_token = 0;
  std::mutex mutex;
  ParallelFor(summary.tokens, summary.tokens < (1 << 20) ? 1 : ResolveThreads(0), [&](int64_t begin, int64_t end) {
    int64_t smallest = data.TokenAt(begin), largest = smallest, place = begin;
    for (int64_t i = begin + 1; i < end; ++i) {
      const int64_t id = data.TokenAt(i);
      smallest = std::min(smallest, id);
      if (id > largest) {
        largest = id;
        place = i;
      }
    }
    const std::lock_guard lock(mutex);
    summary.smallest_id = std::min(summary.smallest_id, smallest);
    if (largest > summary.largest_id || (largest == summary.largest_id && place < summary.largest_id_token)) {
      summary.largest_id = largest;
      summary.largest_id_token = place;
    }
  });
  return summary;
}

void CheckIds(const IndexedDataset& data, int64_t vocab_size) {
  for (int64_t i = 0; i < data.num_tokens(); ++i) {
    const int64_t id = data.TokenAt(i);
    if (id >= 0 && id < vocab_size) continue;
    const TokenPlace place = data.Locate(i);
    throw Error(ErrorCode::kData, "DAT006",
                fmt::format("document {}, position {}: token id {} is outside the vocabulary of {}", place.document,
                            place.position, id, vocab_size),
                BinPath(data.prefix()).string(), "tokenise the text again, or name the right vocabulary");
  }
}

}  // namespace trireme::data
