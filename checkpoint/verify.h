// Whether a checkpoint is what was written.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::checkpoint {

enum class VerifyLevel {
  kLayout,  // manifest, names and sizes of all files
  kQuick,   // and the index: its hash, its tables, coverage; that every file is of this save
  kFull,    // and every byte of every file against its hash; damage is traced to tensors
};

struct VerifyReport {
  std::vector<std::string> problems;  // empty: nothing found; each with its error id, file, expected and found
  std::vector<std::string> notes;     // files that are not of this checkpoint
  int64_t num_files = 0, bytes_read = 0, num_tensors = 0;
  bool ok() const { return problems.empty(); }
};

// `folder` is a tag's folder or a safetensors folder or file. Reports everything that it can; throws only where nothing
// can be looked at (CKP001).
VerifyReport VerifyCheckpoint(const std::filesystem::path& folder, VerifyLevel level = VerifyLevel::kFull);

}  // namespace trireme::checkpoint
