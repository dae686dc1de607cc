#include "checkpoint/hdf5/native_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "checkpoint/hdf5/layout.h"
#include "checkpoint/reshard.h"
#include "engine/base/error.h"
#include "engine/base/file.h"

namespace trireme::hdf5 {
namespace {

using checkpoint::ByteSource;
using checkpoint::CheckpointInfo;
using checkpoint::DatasetRecord;
using checkpoint::File;
using checkpoint::Hex;
using checkpoint::Region;
using checkpoint::StateInfo;
using checkpoint::TensorInfo;

constexpr const char* kDamageFix = "restore the file, or resume from an earlier checkpoint";

// One dataset of an open rank file, with the hashes of its blocks.
class BlockDataset {
 public:
  BlockDataset(const File& file, const DatasetRecord& record) : file_(file), record_(record) {}

  void Read(int64_t begin, std::span<std::byte> out, const std::string& what) {
    std::call_once(loaded_, [this] { LoadHashes(); });
    while (!out.empty()) {
      const int64_t block = begin / kBlockBytes, block_begin = block * kBlockBytes;
      const int64_t block_bytes = std::min(kBlockBytes, bytes() - block_begin);
      const auto room = static_cast<size_t>(block_begin + block_bytes - begin);
      std::span<std::byte> piece = out.first(std::min(out.size(), room));
      if (verified_[block].load(std::memory_order_relaxed)) {
        file_.ReadAt(record_.offset + begin, piece);
      } else if (piece.size() == static_cast<size_t>(block_bytes)) {
        file_.ReadAt(record_.offset + begin, piece);
        Compare(block, piece, what);
      } else {
        const auto whole = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(block_bytes));
        const std::span<std::byte> bytes(whole.get(), static_cast<size_t>(block_bytes));
        file_.ReadAt(record_.offset + block_begin, bytes);
        Compare(block, bytes, what);
        std::memcpy(piece.data(), whole.get() + (begin - block_begin), piece.size());
      }
      begin += static_cast<int64_t>(piece.size());
      out = out.subspan(piece.size());
    }
  }

 private:
  int64_t bytes() const { return record_.elements * SizeOf(record_.dtype); }

  void LoadHashes() {
    hashes_.resize(static_cast<size_t>(NumBlocks(bytes())));
    file_.ReadAt(record_.hash_offset, std::as_writable_bytes(std::span(hashes_)));
    verified_ = std::make_unique<std::atomic<bool>[]>(hashes_.size());
  }

  void Compare(int64_t block, std::span<const std::byte> data, const std::string& what) {
    const uint64_t found = checkpoint::Xxh3(data);
    if (found != hashes_[block]) {
      throw Error(ErrorCode::kCheckpoint, "CKP005",
                  fmt::format("{}: block {} of {} has the hash {}, {} was written", what, block, record_.name,
                              Hex(found), Hex(hashes_[block])),
                  file_.path().string(), kDamageFix);
    }
    verified_[block].store(true, std::memory_order_relaxed);
  }

  const File& file_;
  const DatasetRecord& record_;
  std::once_flag loaded_;
  std::vector<uint64_t> hashes_;
  std::unique_ptr<std::atomic<bool>[]> verified_;
};

class DatasetSource : public ByteSource {
 public:
  DatasetSource(BlockDataset& dataset, const std::string& what) : dataset_(dataset), what_(what) {}
  void ReadBytes(int64_t begin, std::span<std::byte> out) const override { dataset_.Read(begin, out, what_); }

 private:
  BlockDataset& dataset_;
  const std::string& what_;
};

// A rank's file, opened and tied to its save when it is first needed.
class LazyFile {
 public:
  LazyFile(std::filesystem::path path, const Index& index, const IndexFile& entry)
      : path_(std::move(path)), index_(index), entry_(entry) {}

  BlockDataset& Dataset(int dataset) {
    std::call_once(opened_, [this] {
      auto file = std::make_unique<File>(path_, File::Mode::kRead);
      CheckIdentity(*file, entry_, index_.uuid, index_.step);
      file_ = std::move(file);
      for (const DatasetRecord& record : entry_.datasets)
        datasets_.push_back(std::make_unique<BlockDataset>(*file_, record));
    });
    return *datasets_[dataset];
  }

 private:
  const std::filesystem::path path_;
  const Index& index_;
  const IndexFile& entry_;
  std::once_flag opened_;
  std::unique_ptr<File> file_;
  std::vector<std::unique_ptr<BlockDataset>> datasets_;
};

class NativeReader : public checkpoint::CheckpointReader {
 public:
  NativeReader(const std::filesystem::path& folder, std::vector<std::string> warnings) {
    info_.warnings = std::move(warnings);
    const Manifest manifest = LoadManifest(folder);
    for (const ManifestFile& file : manifest.files) CheckFileSize(folder, file);
    index_ = LoadIndex(folder, manifest);
    CheckIndexCoverage(index_, (folder / manifest.index).string());
    for (const IndexFile& file : index_.files)
      files_.push_back(std::make_unique<LazyFile>(folder / file.path, index_, file));
    FillInfo(folder, manifest);
    FillTensors();
  }

  const CheckpointInfo& info() const override { return info_; }
  std::span<const TensorInfo> tensors() const override { return tensors_; }

  void ReadRegion(std::string_view tensor, std::string_view state, const Region& region,
                  std::span<std::byte> out) const override {
    const auto [info, state_info] = CheckRead(tensor, state, region, out.size());
    const IndexParameter& parameter = *parameters_.at(info->name);
    const std::string what = fmt::format("tensor {}, state {}", info->name, state);
    int64_t count = 0;
    for (const IndexSlab& slab : parameter.slabs) {
      if (slab.state != state || slab.region.flat_count == 0) continue;
      const DatasetSource source(files_[slab.file]->Dataset(slab.dataset), what);
      count += checkpoint::ReadIntersection(info->shape, slab.region, slab.elem_offset, source, region, out,
                                            SizeOf(state_info->dtype));
    }
    TRIREME_CHECK(count == region.flat_count, fmt::format("{}: {} of {} elements", what, count, region.flat_count));
  }

  std::vector<std::byte> ReadBlob(int rank, std::string_view name) const override {
    for (size_t f = 0; f < index_.files.size(); ++f) {
      if (index_.files[f].rank != rank) continue;
      const std::vector<DatasetRecord>& datasets = index_.files[f].datasets;
      for (size_t d = 0; d < datasets.size(); ++d) {
        if (datasets[d].name != "rank/" + std::string(name)) continue;
        std::vector<std::byte> bytes(static_cast<size_t>(datasets[d].elements));
        if (!bytes.empty())
          files_[f]->Dataset(static_cast<int>(d)).Read(0, bytes, fmt::format("rank {}, {}", rank, name));
        return bytes;
      }
    }
    return {};
  }

 private:
  void FillInfo(const std::filesystem::path& folder, const Manifest& manifest) {
    const checkpoint::CheckpointMetadata& m = index_.metadata;
    info_.format = "trireme";
    info_.directory = folder;
    info_.tag = manifest.tag;
    info_.uuid = Hex(index_.uuid);
    info_.writer = index_.writer;
    info_.step = index_.step;
    info_.created_ns = index_.created_ns;
    info_.topology = m.topology;
    info_.model_config = m.model_config;
    info_.optimizer = m.optimizer;
    info_.trainer_state = m.trainer_state;
    info_.data_position = m.data_position;
    info_.run_config = m.run_config;
  }

  void FillTensors() {
    for (const IndexParameter& parameter : index_.parameters) {
      if (!parameter.attributes.alias_of.empty()) {
        info_.aliases[parameter.name] = parameter.attributes.alias_of;
        continue;
      }
      TensorInfo& tensor = tensors_.emplace_back();
      tensor.name = parameter.name;
      tensor.shape = parameter.shape;
      for (const IndexSlab& slab : parameter.slabs) {
        const DType dtype = index_.files[slab.file].datasets[slab.dataset].dtype;
        const StateInfo* known = tensor.FindState(slab.state);
        if (known == nullptr) tensor.states.push_back({slab.state, dtype});
        if (known != nullptr && known->dtype != dtype) {
          throw Error(ErrorCode::kCheckpoint, "CKP008",
                      fmt::format("tensor {}, state {} is {} in one slab and {} in another", tensor.name, slab.state,
                                  Name(known->dtype), Name(dtype)),
                      info_.directory.string(), "the index is damaged; resume from another checkpoint");
        }
        info_.stored_bytes += slab.region.flat_count * SizeOf(dtype);
      }
      std::sort(tensor.states.begin(), tensor.states.end(),
                [](const auto& a, const auto& b) { return a.name < b.name; });
      const StateInfo* model = tensor.FindState("model");
      if (!tensor.states.empty()) tensor.dtype = model != nullptr ? model->dtype : tensor.states.front().dtype;
      parameters_[parameter.name] = &parameter;
    }
    std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  }

  Index index_;
  CheckpointInfo info_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, const IndexParameter*> parameters_;
  std::vector<std::unique_ptr<LazyFile>> files_;
};

void CheckAgreement(const Manifest& manifest, const Index& index, const std::string& where) {
  if (index.uuid != manifest.uuid) {
    throw Error(ErrorCode::kCheckpoint, "CKP006",
                fmt::format("the index is from another save: its uuid is {}, the manifest's {}", Hex(index.uuid),
                            Hex(manifest.uuid)),
                where, kDamageFix);
  }
  std::map<std::string, const ManifestFile*> listed;
  for (const ManifestFile& file : manifest.files) listed[file.path] = &file;
  for (const IndexFile& file : index.files) {
    const auto entry = listed.find(file.path);
    if (entry == listed.end() || entry->second->bytes != file.bytes || entry->second->hash != file.hash) {
      throw Error(ErrorCode::kCheckpoint, "CKP008", fmt::format("index and manifest do not agree on {}", file.path),
                  where, kDamageFix);
    }
  }
  if (index.step != manifest.step || index.files.size() + 1 != manifest.files.size()) {
    throw Error(ErrorCode::kCheckpoint, "CKP008",
                fmt::format("the index has step {} and {} files, the manifest step {} and {}", index.step,
                            index.files.size(), manifest.step, manifest.files.size() - 1),
                where, kDamageFix);
  }
}

}  // namespace

std::unique_ptr<checkpoint::CheckpointReader> OpenNative(const std::filesystem::path& folder,
                                                         std::vector<std::string> warnings) {
  return std::make_unique<NativeReader>(folder, std::move(warnings));
}

Manifest LoadManifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kManifestName;
  return ParseManifest(ReadFile(path, ErrorCode::kCheckpoint), path.string());
}

void CheckFileSize(const std::filesystem::path& folder, const ManifestFile& file) {
  const std::filesystem::path path = folder / file.path;
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (!error && static_cast<int64_t>(size) == file.bytes) return;
  throw Error(
      ErrorCode::kCheckpoint, "CKP004",
      error ? fmt::format("the file is missing or unreadable ({}); {} bytes were written", error.message(), file.bytes)
            : fmt::format("the file has {} bytes, {} were written", size, file.bytes),
      path.string(), kDamageFix);
}

Index LoadIndex(const std::filesystem::path& folder, const Manifest& manifest) {
  const std::filesystem::path path = folder / manifest.index;
  const auto entry = std::find_if(manifest.files.begin(), manifest.files.end(),
                                  [&](const auto& f) { return f.path == manifest.index; });
  const File file(path, File::Mode::kRead);
  std::vector<std::byte> image(static_cast<size_t>(file.Size()));
  file.ReadAt(0, image);
  const checkpoint::Hash128 found = checkpoint::Xxh3Of128(image);
  if (found != entry->hash) {
    throw Error(ErrorCode::kCheckpoint, "CKP005",
                fmt::format("the file has the hash {}, {} was written", Hex(found), Hex(entry->hash)), path.string(),
                kDamageFix);
  }
  Index index = ParseIndex(image, path.string());
  CheckAgreement(manifest, index, path.string());
  return index;
}

void CheckIdentity(const File& file, const IndexFile& entry, const checkpoint::Uuid& uuid, int64_t step) {
  Identity found{};
  file.ReadAt(entry.identity_offset, found);
  if (found == MakeIdentity(uuid, entry.rank, step)) return;
  checkpoint::Uuid other{};
  int64_t rank = 0, other_step = 0;
  std::memcpy(other.data(), found.data() + 8, other.size());
  std::memcpy(&rank, found.data() + 24, sizeof rank);
  std::memcpy(&other_step, found.data() + 32, sizeof other_step);
  throw Error(
      ErrorCode::kCheckpoint, "CKP006",
      fmt::format("the file is from another save: uuid {}, rank {}, step {}; expected uuid {}, rank {}, step {}",
                  Hex(other), rank, other_step, Hex(uuid), entry.rank, step),
      file.path().string(), kDamageFix);
}

}  // namespace trireme::hdf5
