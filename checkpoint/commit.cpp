// The atomic commit: everything is written under a temporary name, proven, then renamed; `latest` last.
#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <system_error>

#include "checkpoint/hdf5/index.h"
#include "checkpoint/hdf5/layout.h"
#include "checkpoint/hdf5/manifest.h"
#include "checkpoint/writer.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/version.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void Disagree(const std::string& what, const fs::path& where) {
  throw Error(ErrorCode::kCheckpoint, "CKP022", what, where.string(),
              "all ranks must save the same tag, step and tensors; the save was given up");
}

void Rename(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (!error) return;
  throw Error(ErrorCode::kCheckpoint, "CKP014", fmt::format("renaming to {} failed: {}", to.string(), error.message()),
              from.string(), "check the permissions of the folder");
}

std::string Timestamp(int64_t created_ns) {
  const std::time_t seconds = created_ns / 1'000'000'000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:09d}Z", text, created_ns % 1'000'000'000);
}

// Every rank once, each file of this save, there, and of the size that its rank wrote.
void ProveFiles(const fs::path& folder, const Uuid& uuid, std::span<const RankFileSummary> summaries,
                const CheckpointMetadata& metadata, bool reread_hashes) {
  if (static_cast<int>(summaries.size()) != metadata.topology.world) {
    Disagree(fmt::format("{} ranks reported, the world has {}", summaries.size(), metadata.topology.world), folder);
  }
  std::vector<bool> seen(summaries.size());
  for (const RankFileSummary& summary : summaries) {
    if (!summary.failure.empty()) {
      throw Error(ErrorCode::kCheckpoint, "CKP012",
                  fmt::format("rank {} could not write its file: {}", summary.rank, summary.failure), folder.string(),
                  "cure what that rank reports; earlier checkpoints are untouched");
    }
    if (summary.rank < 0 || summary.rank >= metadata.topology.world || seen[summary.rank]) {
      Disagree(
          fmt::format("rank {} reported twice or is outside the world of {}", summary.rank, metadata.topology.world),
          folder);
    }
    seen[summary.rank] = true;
    if (summary.uuid != uuid || summary.step != summaries[0].step) {
      Disagree(fmt::format("rank {} saved step {} of {}, rank {} step {} of {}", summary.rank, summary.step,
                           Hex(summary.uuid), summaries[0].rank, summaries[0].step, Hex(uuid)),
               folder);
    }
    const File file(folder / summary.path, File::Mode::kRead);
    if (file.Size() != summary.bytes) {
      throw Error(ErrorCode::kCheckpoint, "CKP004",
                  fmt::format("the file has {} bytes, rank {} wrote {}", file.Size(), summary.rank, summary.bytes),
                  file.path().string(), "check that all ranks write to the same file system; the save was given up");
    }
    if (reread_hashes && HashFile(file) != summary.hash) {
      throw Error(ErrorCode::kCheckpoint, "CKP005",
                  fmt::format("the file does not have the hash {} that rank {} wrote", Hex(summary.hash), summary.rank),
                  file.path().string(), "check the disk; the save was given up");
    }
  }
}

hdf5::Index MakeIndex(const Uuid& uuid, std::span<const RankFileSummary> summaries, const CheckpointMetadata& metadata,
                      const fs::path& folder) {
  hdf5::Index index;
  index.uuid = uuid;
  index.step = summaries[0].step;
  index.created_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  index.writer = "trireme " + std::string(Version());
  index.metadata = metadata;
  std::map<std::string, size_t> ids;
  std::map<std::pair<std::string, std::string>, DType> dtypes;
  const auto parameter = [&](const std::string& name) -> hdf5::IndexParameter& {
    const auto [entry, added] = ids.try_emplace(name, index.parameters.size());
    if (added) {
      index.parameters.emplace_back().name = name;
      const auto known = metadata.parameters.find(name);
      if (known != metadata.parameters.end()) index.parameters.back().attributes = known->second;
    }
    return index.parameters[entry->second];
  };
  for (const std::string& name : metadata.parameter_order) parameter(name);
  for (const RankFileSummary& summary : summaries) {
    const int file = static_cast<int>(index.files.size());
    index.files.push_back(
        {summary.path, summary.bytes, summary.hash, summary.rank, summary.identity_offset, summary.datasets});
    for (const SlabRecord& slab : summary.slabs) {
      hdf5::IndexParameter& target = parameter(slab.spec.tensor);
      if (target.slabs.empty()) target.shape = slab.spec.shape;
      if (target.shape != slab.spec.shape) {
        Disagree(fmt::format("tensor {} has the shape {} on rank {} and {} on an earlier one", slab.spec.tensor,
                             ShapeText(slab.spec.shape), summary.rank, ShapeText(target.shape)),
                 folder);
      }
      const auto [known, added] = dtypes.try_emplace({slab.spec.tensor, slab.spec.state}, slab.spec.dtype);
      if (!added && known->second != slab.spec.dtype) {
        Disagree(fmt::format("tensor {}, state {} is {} on rank {} and {} on an earlier one", slab.spec.tensor,
                             slab.spec.state, Name(slab.spec.dtype), summary.rank, Name(known->second)),
                 folder);
      }
      target.slabs.push_back({file, slab.dataset, slab.spec.state, slab.spec.region, slab.elem_offset, slab.xxh3});
    }
  }
  for (const auto& [name, attributes] : metadata.parameters) {
    if (!attributes.alias_of.empty()) parameter(name);
  }
  for (hdf5::IndexParameter& entry : index.parameters) {
    if (!entry.attributes.alias_of.empty()) {
      const auto target = ids.find(entry.attributes.alias_of);
      if (target == ids.end())
        Disagree(fmt::format("{} is an alias of {}, which no rank saved", entry.name, entry.attributes.alias_of),
                 folder);
      entry.shape = index.parameters[target->second].shape;
    } else if (entry.slabs.empty()) {
      Disagree(fmt::format("no rank saved the tensor {}", entry.name), folder);
    } else {
      for (const std::string& state : metadata.required_states) {
        if (!dtypes.contains({entry.name, state}))
          Disagree(fmt::format("no rank saved the state {} of {}", state, entry.name), folder);
      }
    }
  }
  return index;
}

hdf5::ManifestFile WriteIndex(const fs::path& folder, const hdf5::Index& index) {
  const std::vector<std::byte> image = hdf5::BuildIndex(index);
  File file(folder / hdf5::kIndexName, File::Mode::kCreate);
  file.Reserve(static_cast<int64_t>(image.size()));
  file.WriteAt(0, image);
  file.SyncAndClose();
  return {.path = hdf5::kIndexName, .bytes = static_cast<int64_t>(image.size()), .hash = Xxh3Of128(image), .rank = -1};
}

hdf5::Manifest MakeManifest(const hdf5::Index& index, const std::string& tag, hdf5::ManifestFile index_file) {
  hdf5::Manifest manifest;
  manifest.uuid = index.uuid;
  manifest.tag = tag;
  manifest.created = Timestamp(index.created_ns);
  manifest.software = index.writer;
  manifest.step = index.step;
  manifest.world = index.metadata.topology.world;
  manifest.topology = index.metadata.topology;
  manifest.index = index_file.path;
  for (const hdf5::IndexFile& file : index.files)
    manifest.files.push_back({file.path, file.bytes, file.hash, file.rank});
  manifest.files.push_back(std::move(index_file));
  return manifest;
}

bool IsPlainTag(const std::string& tag) {
  return !tag.empty() && tag.size() <= 200 && tag != "." && tag != ".." && tag != hdf5::kLatestName &&
         tag.find('/') == tag.npos && tag.find(".tmp.") == tag.npos && tag.find(".old.") == tag.npos &&
         tag.find('\n') == tag.npos;
}

// What earlier saves left when they were killed. A folder that was swapped out goes only where its successor is
// complete.
void RemoveLeftovers(const fs::path& root) {
  std::error_code ignored;
  const auto an_hour_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  std::vector<fs::path> doomed;
  for (const auto& entry : fs::directory_iterator(root, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_directory(ignored)) continue;
    if (name.find(".tmp.") != name.npos && entry.last_write_time(ignored) < an_hour_ago) doomed.push_back(entry.path());
    const size_t old = name.find(".old.");
    if (old != name.npos && fs::exists(root / name.substr(0, old) / hdf5::kManifestName, ignored))
      doomed.push_back(entry.path());
  }
  for (const fs::path& path : doomed) fs::remove_all(path, ignored);
}

}  // namespace

fs::path TemporaryFolder(const fs::path& root, const std::string& tag, const Uuid& uuid) {
  return root / (tag + ".tmp." + Hex(uuid).substr(0, 8));
}

void BeginCheckpoint(const fs::path& root, const std::string& tag, const Uuid& uuid) {
  if (!IsPlainTag(tag)) {
    throw Error(ErrorCode::kCheckpoint, "CKP016", fmt::format("the tag \"{}\" cannot be the name of a folder", tag),
                root.string(), "choose a tag without slashes, such as global_step1000");
  }
  std::error_code error;
  fs::create_directories(root, error);
  if (!error) RemoveLeftovers(root);
  const fs::path folder = TemporaryFolder(root, tag, uuid);
  if (!error && !fs::create_directory(folder, error) && !error) {
    throw Error(ErrorCode::kCheckpoint, "CKP016", "the temporary folder exists already", folder.string(),
                "save again, with a new uuid");
  }
  if (!error) fs::create_directory(folder / "data", error);
  if (!error) return;
  throw Error(ErrorCode::kCheckpoint, error == std::errc::no_space_on_device ? "CKP013" : "CKP014",
              fmt::format("making the folder failed: {}", error.message()), folder.string(),
              "check the path, its permissions and the free space; earlier checkpoints are untouched");
}

fs::path CommitCheckpoint(const fs::path& root, const std::string& tag, const Uuid& uuid,
                          std::span<const RankFileSummary> summaries, const CheckpointMetadata& metadata,
                          const CommitOptions& options) {
  const auto observe = [&](std::string_view step) {
    if (options.observer) options.observer(step);
  };
  const fs::path folder = TemporaryFolder(root, tag, uuid), final_folder = root / tag;
  const fs::path old_folder = root / (tag + ".old." + Hex(uuid).substr(0, 8));
  bool swapped = false;
  try {
    ProveFiles(folder, uuid, summaries, metadata, options.reread_hashes);
    const hdf5::Index index = MakeIndex(uuid, summaries, metadata, folder);
    hdf5::CheckIndexCoverage(index, folder.string());
    observe("index");
    hdf5::ManifestFile index_file = WriteIndex(folder, index);
    SyncPath(folder / "data", ErrorCode::kCheckpoint);
    observe("manifest");
    WriteFileDurably(folder / hdf5::kManifestName, MakeManifest(index, tag, std::move(index_file)).ToText(),
                     ErrorCode::kCheckpoint);
    if (fs::exists(final_folder)) {
      observe("swap");
      Rename(final_folder, old_folder);
      swapped = true;
    }
    observe("rename");
    Rename(folder, final_folder);
  } catch (...) {
    std::error_code ignored;
    if (swapped && !fs::exists(final_folder, ignored)) fs::rename(old_folder, final_folder, ignored);
    AbortCheckpoint(root, tag, uuid);
    throw;
  }
  SyncPath(root, ErrorCode::kCheckpoint);
  if (options.move_latest) {
    observe("latest");
    WriteFileDurably(root / hdf5::kLatestName, tag + "\n", ErrorCode::kCheckpoint);
  }
  observe("remove");
  std::error_code ignored;
  if (swapped) fs::remove_all(old_folder, ignored);
  return final_folder;
}

void AbortCheckpoint(const fs::path& root, const std::string& tag, const Uuid& uuid) noexcept {
  try {
    std::error_code ignored;
    fs::remove_all(TemporaryFolder(root, tag, uuid), ignored);
  } catch (...) {  // NOLINT: out of memory while a save is given up: the folder is removed by a later save
  }
}

}  // namespace trireme::checkpoint
