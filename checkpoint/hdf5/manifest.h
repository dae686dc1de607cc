// manifest.json: the commit record of a checkpoint. Its presence under the final folder name means that the save was
// complete.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file_io.h"
#include "checkpoint/reader.h"

namespace trireme::hdf5 {

struct ManifestFile {
  std::string path;  // relative to the tag's folder
  int64_t bytes = 0;
  checkpoint::Hash128 hash;
  int rank = -1;  // -1: the index
};

struct Manifest {
  int64_t version_major = 1, version_minor = 0;
  checkpoint::Uuid uuid{};
  std::string tag, created, software, source;
  int64_t step = 0;
  int world = 0;
  checkpoint::Topology topology;  // without `ranks`
  std::string index;
  std::vector<ManifestFile> files;

  std::string ToText() const;  // sorted keys, one trailing newline, with a checksum over itself
};

// Throws CKP003 (not our format, damaged, checksum differs) and CKP007 (greater major version).
Manifest ParseManifest(std::string_view text, const std::string& where);

}  // namespace trireme::hdf5
