// The native format behind CheckpointReader. Opening checks the manifest, the sizes of all files, the index against its
// hash, and that slabs cover their tensors. Reading hashes each 16 MiB block of a rank's file the first time that it is
// touched, so that damage never becomes a weight in silence; a range that was saved as one slab is one contiguous read.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/hdf5/index.h"
#include "checkpoint/hdf5/manifest.h"
#include "checkpoint/reader.h"

namespace trireme::hdf5 {

// `folder` holds manifest.json; `warnings` become those of info(). Throws CKP003 to CKP008, CKP011, CKP015.
std::unique_ptr<checkpoint::CheckpointReader> OpenNative(const std::filesystem::path& folder,
                                                         std::vector<std::string> warnings = {});

// The pieces, for verification.
Manifest LoadManifest(const std::filesystem::path& folder);
void CheckFileSize(const std::filesystem::path& folder, const ManifestFile& file);  // CKP004
Index LoadIndex(const std::filesystem::path& folder, const Manifest& manifest);     // CKP005 to CKP008, CKP015
void CheckIdentity(const checkpoint::File& file, const IndexFile& entry, const checkpoint::Uuid& uuid,
                   int64_t step);  // CKP006

}  // namespace trireme::hdf5
