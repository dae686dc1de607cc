// RankWriter: one rank's file, written in one pass in the order of its bytes, so that every hash comes from memory.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "checkpoint/hdf5/h5.h"
#include "checkpoint/hdf5/layout.h"
#include "checkpoint/writer.h"
#include "engine/base/error.h"
#include "engine/base/version.h"

namespace trireme::checkpoint {
namespace {

constexpr int64_t kLargeFile =
    256 << 20;  // from this size on datasets begin at whole MiB, where stripes and huge pages begin

constexpr size_t kHashBytes = 128 << 10;  // the three hashes take turns on what a cache holds

struct Part {
  int64_t bytes = 0;
  std::span<const std::byte> held;  // or
  RankWriter::Fill fill;
};

struct Dataset {
  std::string state;
  DType dtype = DType::kFloat32;
  int64_t elements = 0;
  std::vector<Part> parts;
  int64_t bytes() const { return elements * SizeOf(dtype); }
};

// Hashes slabs while the bytes of their dataset pass by in order.
class SlabHasher {
 public:
  SlabHasher(std::vector<SlabRecord>& slabs, int dataset, int64_t element_bytes) {
    for (SlabRecord& slab : slabs) {
      if (slab.dataset != dataset) continue;
      const int64_t begin = slab.elem_offset * element_bytes;
      slabs_.push_back({begin, begin + slab.spec.region.flat_count * element_bytes, &slab});
    }
    std::sort(slabs_.begin(), slabs_.end(), [](const Entry& a, const Entry& b) { return a.begin < b.begin; });
    for (size_t i = 0; i < slabs_.size(); ++i) {
      TRIREME_CHECK(i == 0 || slabs_[i - 1].end <= slabs_[i].begin,
                    fmt::format("two slabs of {} share bytes of a part", slabs_[i].slab->spec.tensor));
    }
  }

  void Update(int64_t begin, std::span<const std::byte> bytes) {
    const int64_t end = begin + static_cast<int64_t>(bytes.size());
    while (next_ < slabs_.size() && slabs_[next_].begin < end) {
      const Entry& entry = slabs_[next_];
      const int64_t low = std::max(begin, entry.begin), high = std::min(end, entry.end);
      stream_.Update64(bytes.subspan(static_cast<size_t>(low - begin), static_cast<size_t>(high - low)));
      if (entry.end > end) return;
      entry.slab->xxh3 = stream_.Digest64();
      stream_.Reset64();
      ++next_;
    }
  }

  void Finish() {  // slabs without bytes behind the last byte
    for (; next_ < slabs_.size(); ++next_) slabs_[next_].slab->xxh3 = Xxh3({});
  }

 private:
  struct Entry {
    int64_t begin, end;
    SlabRecord* slab;
  };
  std::vector<Entry> slabs_;
  size_t next_ = 0;
  Xxh3Stream stream_;
};

}  // namespace

struct RankWriter::Impl {
  std::filesystem::path folder;
  RankFileSummary summary;
  Observer observer;
  std::vector<Dataset> datasets;
  std::vector<std::vector<std::byte>> blobs;  // parallel to the tail of summary.datasets once Finish has begun
  std::vector<std::string> blob_names;

  // State of Finish.
  std::optional<File> file;
  Xxh3Stream whole;
  int64_t cursor = 0;
  std::unique_ptr<std::byte[]> staging;

  void Observe(std::string_view step) const {
    if (observer) observer(step);
  }
  Dataset& DatasetOf(std::string_view state, DType dtype, int& index);
  void Append(std::string_view state, DType dtype, Part part, std::vector<PartSlab> slabs);
  void LayOut(hdf5::SparseImage& memory, int64_t bytes);
  void Put(std::span<const std::byte> bytes);
  void CopyStructure(const hdf5::SparseImage& memory, int64_t end);
  std::vector<uint64_t> StreamDataset(size_t index);
  void StreamParts(Dataset& dataset, const std::function<void(std::span<const std::byte>)>& take);
  void Write(const hdf5::SparseImage& memory);
};

Dataset& RankWriter::Impl::DatasetOf(std::string_view state, DType dtype, int& index) {
  for (index = 0; index < static_cast<int>(datasets.size()); ++index) {
    if (datasets[index].state == state && datasets[index].dtype == dtype) return datasets[index];
  }
  return datasets.emplace_back(Dataset{.state = std::string(state), .dtype = dtype, .elements = 0, .parts = {}});
}

void RankWriter::Impl::Append(std::string_view state, DType dtype, Part part, std::vector<PartSlab> slabs) {
  TRIREME_CHECK(!state.empty() && state.find('/') == state.npos, fmt::format("the state \"{}\"", state));
  const int64_t elements = part.bytes / SizeOf(dtype);
  TRIREME_CHECK(elements * SizeOf(dtype) == part.bytes,
                fmt::format("a part of {} bytes of {}", part.bytes, Name(dtype)));
  int index = 0;
  Dataset& dataset = DatasetOf(state, dtype, index);
  for (PartSlab& slab : slabs) {
    const Region& region = slab.region;
    TRIREME_CHECK(CheckedVolume(slab.shape, region).has_value(),
                  fmt::format("the slab [{}, +{}) of {} with shape {}", region.flat_begin, region.flat_count,
                              slab.tensor, ShapeText(slab.shape)));
    TRIREME_CHECK(slab.elem_offset >= 0 && slab.elem_offset + region.flat_count <= elements,
                  fmt::format("{} lies outside its part of {} elements", slab.tensor, elements));
    if (region.flat_count == 0 && Numel(slab.shape) > 0) continue;
    summary.slabs.push_back(
        {.spec = {std::move(slab.tensor), std::string(state), dtype, std::move(slab.shape), std::move(slab.region)},
         .dataset = index,
         .elem_offset = dataset.elements + slab.elem_offset,
         .xxh3 = 0});
  }
  dataset.elements += elements;
  if (part.bytes > 0) dataset.parts.push_back(std::move(part));
}

// Creates every object of the file in memory; fills offsets in summary. Bulk first, hashes last: Write relies on that
// order.
void RankWriter::Impl::LayOut(hdf5::SparseImage& memory, int64_t bytes) {
  using namespace hdf5;  // NOLINT: every line below is of it
  Handle root = CreateInMemory(memory, bytes >= kLargeFile ? 1 << 20 : 4 << 10);
  WriteAttribute(root, "format", std::string("trireme"));
  WriteAttribute(root, "version", std::span<const int64_t>(std::array{kVersionMajor, kVersionMinor}));
  WriteAttribute(root, "uuid", summary.uuid);
  WriteAttribute(root, "rank", int64_t{summary.rank});
  WriteAttribute(root, "step", summary.step);
  WriteAttribute(root, "writer", "trireme " + std::string(Version()));
  summary.identity_offset = CreateBulk(root, "identity", FileType(DType::kUInt8), sizeof(Identity), "");
  for (const Dataset& dataset : datasets) {
    const auto same_state =
        std::count_if(datasets.begin(), datasets.end(), [&](const Dataset& d) { return d.state == dataset.state; });
    const std::string dtype(Name(dataset.dtype));
    const std::string name = "data/" + (same_state == 1 ? dataset.state : dataset.state + "." + dtype);
    const Handle type = FileType(dataset.dtype);
    summary.datasets.push_back({.name = name, .dtype = dataset.dtype, .elements = dataset.elements});
    summary.datasets.back().offset = CreateBulk(root, name, type, dataset.elements, dtype);
  }
  for (size_t i = 0; i < blobs.size(); ++i) {
    const auto count = static_cast<int64_t>(blobs[i].size());
    summary.datasets.push_back({.name = "rank/" + blob_names[i], .dtype = DType::kUInt8, .elements = count});
    summary.datasets.back().offset =
        CreateBulk(root, summary.datasets.back().name, FileType(DType::kUInt8), count, "uint8");
  }
  for (DatasetRecord& record : summary.datasets) {
    const int64_t blocks = NumBlocks(record.elements * SizeOf(record.dtype));
    record.hash_offset = CreateBulk(root, record.name + ".xxh3", H5T_STD_U64LE, blocks, "");
  }
  CloseInMemory(std::move(root));
}

void RankWriter::Impl::Put(std::span<const std::byte> bytes) {
  whole.Update128(bytes);
  file->WriteAt(cursor, bytes);
  cursor += static_cast<int64_t>(bytes.size());
}

// What lies between datasets is HDF5's own; zeros are there already.
void RankWriter::Impl::CopyStructure(const hdf5::SparseImage& memory, int64_t end) {
  TRIREME_CHECK(cursor <= end, fmt::format("datasets out of order: {} after {}", end, cursor));
  while (cursor < end) {
    const std::span<std::byte> piece(staging.get(), static_cast<size_t>(std::min(hdf5::kBlockBytes, end - cursor)));
    memory.ReadAt(cursor, piece);
    if (std::all_of(piece.begin(), piece.end(), [](std::byte b) { return b == std::byte{0}; })) {
      whole.Update128(piece);
      cursor += static_cast<int64_t>(piece.size());
    } else {
      Put(piece);
    }
  }
}

// Hands out the dataset's bytes in order, no piece across a block boundary.
void RankWriter::Impl::StreamParts(Dataset& dataset, const std::function<void(std::span<const std::byte>)>& take) {
  int64_t position = 0;
  for (Part& part : dataset.parts) {
    for (int64_t begin = 0; begin < part.bytes;) {
      const int64_t room = hdf5::kBlockBytes - position % hdf5::kBlockBytes;
      const auto count = static_cast<size_t>(std::min(room, part.bytes - begin));
      if (part.fill) {
        const std::span<std::byte> piece(staging.get(), count);
        part.fill(begin, piece);
        take(piece);
      } else {
        take(part.held.subspan(static_cast<size_t>(begin), count));
      }
      begin += static_cast<int64_t>(count);
      position += static_cast<int64_t>(count);
    }
  }
}

std::vector<uint64_t> RankWriter::Impl::StreamDataset(size_t index) {
  std::vector<uint64_t> hashes;
  if (index >= datasets.size()) {
    const std::vector<std::byte>& blob = blobs[index - datasets.size()];
    for (size_t begin = 0; begin < blob.size(); begin += hdf5::kBlockBytes) {
      const auto piece = std::span(blob).subspan(begin, std::min<size_t>(hdf5::kBlockBytes, blob.size() - begin));
      hashes.push_back(Xxh3(piece));
      Put(piece);
    }
    return hashes;
  }
  Dataset& dataset = datasets[index];
  SlabHasher slabs(summary.slabs, static_cast<int>(index), SizeOf(dataset.dtype));
  Xxh3Stream block;
  int64_t position = 0;
  StreamParts(dataset, [&](std::span<const std::byte> piece) {
    Observe("write");
    for (size_t begin = 0; begin < piece.size(); begin += kHashBytes) {
      const std::span<const std::byte> part = piece.subspan(begin, std::min(kHashBytes, piece.size() - begin));
      block.Update64(part);
      slabs.Update(position, part);
      whole.Update128(part);
      position += static_cast<int64_t>(part.size());
    }
    file->WriteAt(cursor, piece);
    file->StartWriteback(cursor, static_cast<int64_t>(piece.size()));
    cursor += static_cast<int64_t>(piece.size());
    if (position % hdf5::kBlockBytes == 0 || position == dataset.bytes()) {
      hashes.push_back(block.Digest64());
      block.Reset64();
    }
  });
  slabs.Finish();
  return hashes;
}

void RankWriter::Impl::Write(const hdf5::SparseImage& memory) {
  staging = std::make_unique_for_overwrite<std::byte[]>(hdf5::kBlockBytes);
  summary.bytes = memory.Size();
  file->Reserve(summary.bytes);
  Observe("reserved");
  const hdf5::Identity identity = hdf5::MakeIdentity(summary.uuid, summary.rank, summary.step);
  CopyStructure(memory, summary.identity_offset);
  Put(identity);
  std::vector<std::vector<uint64_t>> hashes(summary.datasets.size());
  for (size_t i = 0; i < summary.datasets.size(); ++i) {
    if (summary.datasets[i].elements > 0) CopyStructure(memory, summary.datasets[i].offset);
    hashes[i] = StreamDataset(i);
  }
  for (size_t i = 0; i < summary.datasets.size(); ++i) {
    if (hashes[i].empty()) continue;
    CopyStructure(memory, summary.datasets[i].hash_offset);
    Put(std::as_bytes(std::span(hashes[i])));
  }
  CopyStructure(memory, summary.bytes);
  summary.hash = whole.Digest128();
  Observe("fsync");
  file->SyncAndClose();
}

RankWriter::RankWriter(std::filesystem::path folder, int rank, const Uuid& uuid, int64_t step, Observer observer)
    : impl_(std::make_unique<Impl>()) {
  impl_->folder = std::move(folder);
  impl_->observer = std::move(observer);
  impl_->summary.rank = rank;
  impl_->summary.uuid = uuid;
  impl_->summary.step = step;
  impl_->summary.path = fmt::format("data/rank_{:05d}.h5", rank);
}

RankWriter::~RankWriter() = default;

void RankWriter::AddPart(std::string_view state, DType dtype, std::span<const std::byte> bytes,
                         std::vector<PartSlab> slabs) {
  impl_->Append(state, dtype, Part{.bytes = static_cast<int64_t>(bytes.size()), .held = bytes, .fill = {}},
                std::move(slabs));
}

void RankWriter::AddPart(std::string_view state, DType dtype, int64_t elements, Fill fill,
                         std::vector<PartSlab> slabs) {
  impl_->Append(state, dtype, Part{.bytes = elements * SizeOf(dtype), .held = {}, .fill = std::move(fill)},
                std::move(slabs));
}

void RankWriter::Add(const SlabSpec& slab, std::span<const std::byte> bytes) {
  AddPart(slab.state, slab.dtype, bytes,
          {{.tensor = slab.tensor, .shape = slab.shape, .region = slab.region, .elem_offset = 0}});
}

void RankWriter::AddBlob(std::string name, std::vector<std::byte> bytes) {
  impl_->blob_names.push_back(std::move(name));
  impl_->blobs.push_back(std::move(bytes));
}

int64_t RankWriter::bytes() const {
  int64_t bytes = 0;
  for (const Dataset& dataset : impl_->datasets) bytes += dataset.bytes();
  for (const std::vector<std::byte>& blob : impl_->blobs) bytes += static_cast<int64_t>(blob.size());
  return bytes;
}

RankFileSummary RankWriter::Finish() {
  hdf5::SparseImage structure;
  {
    const hdf5::Session session;
    impl_->LayOut(structure, bytes());
  }
  const std::filesystem::path path = impl_->folder / impl_->summary.path;
  impl_->Observe("create");
  impl_->file.emplace(path, File::Mode::kCreate);
  try {
    impl_->Write(structure);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    throw;
  }
  return std::move(impl_->summary);
}

}  // namespace trireme::checkpoint
