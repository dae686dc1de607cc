#include "engine/data/id_check.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/base/error.h"

namespace trireme::data {

int64_t FirstBadId(std::span<const int32_t> ids, int64_t vocab_size) {
  const auto vocabulary = static_cast<uint64_t>(std::min<int64_t>(vocab_size, INT32_MAX));
  uint32_t largest = 0;  // a negative id is larger than any vocabulary
  for (const int32_t id : ids) largest = std::max(largest, static_cast<uint32_t>(id));
  if (largest < vocabulary) return -1;
  return std::ranges::find_if(ids, [&](int32_t id) { return static_cast<uint32_t>(id) >= vocabulary; }) - ids.begin();
}

void FailBadId(const IndexedDataset& data, int64_t token, int64_t sample, int64_t vocab_size) {
  const TokenPlace place = data.Locate(token);
  throw Error(
      ErrorCode::kData, "DAT006",
      fmt::format("document {}, position {}: token id {} is outside the vocabulary of {} (ids 0 to {}; token {} of "
                  "the file, sample {})",
                  place.document, place.position, data.TokenAt(token), vocab_size, vocab_size - 1, token, sample),
      BinPath(data.prefix()).string(),
      "set the model's vocab_size to that of the tokeniser which made this file, or tokenise the text for this "
      "model");
}

}  // namespace trireme::data
