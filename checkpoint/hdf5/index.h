// index.h5 as plain data: built on rank 0 from the summaries, read back by the native reader.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/writer.h"

namespace trireme::hdf5 {

struct IndexFile {  // a rank's file
  std::string path;
  int64_t bytes = 0;
  checkpoint::Hash128 hash;
  int rank = 0;
  int64_t identity_offset = 0;
  std::vector<checkpoint::DatasetRecord> datasets;
};

struct IndexSlab {
  int file = 0, dataset = 0;
  std::string state;
  checkpoint::Region region;
  int64_t elem_offset = 0;
  uint64_t xxh3 = 0;
};

struct IndexParameter {
  std::string name;
  std::vector<int64_t> shape;
  checkpoint::ParameterAttributes attributes;
  std::vector<IndexSlab> slabs;
};

struct Index {
  checkpoint::Uuid uuid{};
  int64_t version_major = 1, version_minor = 0, step = 0, created_ns = 0;
  std::string writer;
  checkpoint::CheckpointMetadata metadata;
  std::vector<IndexFile> files;
  std::vector<IndexParameter> parameters;  // in the optimizer's order
};

// Throws CKP015 where the library fails.
std::vector<std::byte> BuildIndex(const Index& index);

// Every number is checked, but not yet that slabs cover their tensors (CheckIndexCoverage). `where` names the file in
// errors. Throws CKP007 (greater major version), CKP008 (tables that contradict each other), CKP015.
Index ParseIndex(std::span<const std::byte> image, const std::string& where);

// Throws CKP011 naming tensor, state and elements unless the slabs of each tensor and state are disjoint and cover it.
void CheckIndexCoverage(const Index& index, const std::string& where);

// "transformer.wte.weight" is a legal link name; `/` and `%` are escaped.
std::string EscapeName(std::string_view name);

}  // namespace trireme::hdf5
