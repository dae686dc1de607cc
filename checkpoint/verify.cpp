#include "checkpoint/verify.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include "checkpoint/hdf5/layout.h"
#include "checkpoint/hdf5/native_reader.h"
#include "checkpoint/reader.h"
#include "engine/base/error.h"

namespace trireme::checkpoint {
namespace {

// Runs a check; what it throws becomes a problem.
bool Collect(VerifyReport& report, const std::function<void()>& check) {
  try {
    check();
    return true;
  } catch (const Error& error) {
    report.problems.emplace_back(error.what());
  }
  return false;
}

// Names the slabs whose bytes are not those that were written, so that a flipped bit is traced to its tensor.
std::string DamagedTensors(const File& file, const hdf5::Index& index, int file_id) {
  std::string text;
  int count = 0;
  std::vector<std::byte> buffer;
  for (const hdf5::IndexParameter& parameter : index.parameters) {
    for (const hdf5::IndexSlab& slab : parameter.slabs) {
      if (slab.file != file_id || slab.region.flat_count == 0) continue;
      const DatasetRecord& dataset = index.files[file_id].datasets[slab.dataset];
      const int64_t size = SizeOf(dataset.dtype);
      buffer.resize(static_cast<size_t>(slab.region.flat_count * size));
      file.ReadAt(dataset.offset + slab.elem_offset * size, buffer);
      if (Xxh3(buffer) == slab.xxh3) continue;
      if (++count <= 8) text += fmt::format("{}{} ({})", count == 1 ? "" : ", ", parameter.name, slab.state);
    }
  }
  if (count == 0) return "no tensor's bytes are affected";
  return fmt::format("damaged: {}{}", text, count > 8 ? fmt::format(" and {} more", count - 8) : "");
}

void VerifyRankFile(const std::filesystem::path& folder, const hdf5::Index& index, int file_id, VerifyLevel level,
                    VerifyReport& report) {
  const hdf5::IndexFile& entry = index.files[file_id];
  const File file(folder / entry.path, File::Mode::kRead);
  hdf5::CheckIdentity(file, entry, index.uuid, index.step);
  if (level != VerifyLevel::kFull) return;
  const Hash128 found = HashFile(file);
  report.bytes_read += entry.bytes;
  if (found == entry.hash) return;
  throw Error(ErrorCode::kCheckpoint, "CKP005",
              fmt::format("the file has the hash {}, {} was written; {}", Hex(found), Hex(entry.hash),
                          DamagedTensors(file, index, file_id)),
              file.path().string(), "restore the file, or resume from an earlier checkpoint");
}

void NoteStrangers(const std::filesystem::path& folder, const hdf5::Manifest& manifest, VerifyReport& report) {
  std::set<std::string> known{hdf5::kManifestName};
  for (const hdf5::ManifestFile& file : manifest.files) known.insert(file.path);
  std::error_code error;
  for (auto it = std::filesystem::recursive_directory_iterator(folder, error);
       !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    const std::string path = std::filesystem::relative(it->path(), folder).string();
    if (!it->is_directory() && !known.contains(path))
      report.notes.push_back(path + " is not listed in the manifest and is ignored");
  }
  std::sort(report.notes.begin(), report.notes.end());
}

VerifyReport VerifyNative(const std::filesystem::path& folder, VerifyLevel level) {
  VerifyReport report;
  std::optional<hdf5::Manifest> manifest;
  if (!Collect(report, [&] { manifest = hdf5::LoadManifest(folder); })) return report;
  report.num_files = static_cast<int64_t>(manifest->files.size()) + 1;
  NoteStrangers(folder, *manifest, report);
  std::set<std::string> whole;  // files of the right size
  for (const hdf5::ManifestFile& file : manifest->files) {
    if (Collect(report, [&] { hdf5::CheckFileSize(folder, file); })) whole.insert(file.path);
  }
  if (level == VerifyLevel::kLayout || !whole.contains(manifest->index)) return report;
  std::optional<hdf5::Index> index;
  if (!Collect(report, [&] { index = hdf5::LoadIndex(folder, *manifest); })) return report;
  report.num_tensors = static_cast<int64_t>(index->parameters.size());
  Collect(report, [&] { hdf5::CheckIndexCoverage(*index, (folder / manifest->index).string()); });
  for (size_t f = 0; f < index->files.size(); ++f) {
    if (!whole.contains(index->files[f].path)) continue;
    Collect(report, [&] { VerifyRankFile(folder, *index, static_cast<int>(f), level, report); });
  }
  return report;
}

}  // namespace

VerifyReport VerifyCheckpoint(const std::filesystem::path& folder, VerifyLevel level) {
  if (std::filesystem::exists(folder / hdf5::kManifestName)) return VerifyNative(folder, level);
  VerifyReport report;
  std::unique_ptr<CheckpointReader> reader;
  try {
    reader = CheckpointReader::Open(folder);
  } catch (const Error& error) {
    if (error.id() == "CKP001") throw;
    report.problems.emplace_back(error.what());
    return report;
  }
  if (reader->info().format == "trireme") return VerifyNative(reader->info().directory, level);
  report.num_tensors = static_cast<int64_t>(reader->tensors().size());
  report.notes.push_back("the format " + reader->info().format +
                         " carries no checksums: only its structure was checked");
  return report;
}

}  // namespace trireme::checkpoint
