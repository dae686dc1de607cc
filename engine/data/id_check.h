// Every token id is looked at before it can reach a device.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "engine/data/indexed_dataset.h"

namespace trireme::data {

// The first id outside [0, vocab_size), or -1.
int64_t FirstBadId(std::span<const int32_t> ids, int64_t vocab_size);

// Throws Error{kData, DAT006} about token `token` of the file; `sample` names the sample that met it.
[[noreturn]] void FailBadId(const IndexedDataset& data, int64_t token, int64_t sample, int64_t vocab_size);

}  // namespace trireme::data
