// Which checkpoint to resume from.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::checkpoint {

struct FoundCheckpoint {
  std::filesystem::path directory;  // folder of the tag, for CheckpointReader::Open
  std::string tag;
  int64_t step = 0;
};

struct FindResult {
  std::optional<FoundCheckpoint> found;  // nullopt: nothing was ever completed here
  std::vector<std::string> warnings;     // why it is not the one that `latest` names, what was ignored
};

// The checkpoint that `latest` names if it verifies (VerifyLevel::kQuick), else the newest complete one, with a warning
// that says why. Temporary and incomplete folders are ignored and named. Throws CKP002, listing each with its problem,
// where there are checkpoints but none is usable: to start over in silence would lose a run.
FindResult FindLatestComplete(const std::filesystem::path& root);

// For an explicit resume: `tag`, or what FindLatestComplete finds if it is "". Throws CKP002 listing the tags that are
// there.
FindResult RequireCheckpoint(const std::filesystem::path& root, const std::string& tag = "");

}  // namespace trireme::checkpoint
