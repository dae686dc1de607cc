// Constants of the native format that writer and reader share; FORMAT.md beside this file describes it.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "checkpoint/file_io.h"

namespace trireme::hdf5 {

inline constexpr int64_t kVersionMajor = 1, kVersionMinor = 0;
inline constexpr int64_t kBlockBytes = 16 << 20;  // one XXH3-64 value for each
inline constexpr const char* kIndexName = "index.h5";
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kLatestName = "latest";

// The 64 bytes of a rank file's dataset `identity`: magic, uuid, rank, step. They tie the file to its save without the
// need to parse it.
using Identity = std::array<std::byte, 64>;
inline Identity MakeIdentity(const checkpoint::Uuid& uuid, int64_t rank, int64_t step) {
  Identity identity{};
  std::memcpy(identity.data(), "TRIREME1", 8);
  std::memcpy(identity.data() + 8, uuid.data(), uuid.size());
  std::memcpy(identity.data() + 24, &rank, sizeof rank);
  std::memcpy(identity.data() + 32, &step, sizeof step);
  return identity;
}

inline int64_t NumBlocks(int64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes; }

}  // namespace trireme::hdf5
