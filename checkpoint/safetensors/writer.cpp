#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "checkpoint/file_io.h"
#include "checkpoint/safetensors/safetensors.h"
#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/base/file.h"

namespace trireme::safetensors {
namespace {

namespace fs = std::filesystem;
using checkpoint::File;
using nlohmann::json;

constexpr std::string_view kSingleName = "model.safetensors";

const char* TypeName(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return "F64";
    case DType::kFloat32:
      return "F32";
    case DType::kBFloat16:
      return "BF16";
    case DType::kFloat16:
      return "F16";
    case DType::kInt64:
      return "I64";
    case DType::kInt32:
      return "I32";
    case DType::kInt16:
      return "I16";
    case DType::kInt8:
      return "I8";
    case DType::kUInt8:
      return "U8";
    case DType::kUInt16:
      return "U16";
  }
  return "";
}

template <class Tensor>
int64_t Bytes(const Tensor& tensor) {
  return checkpoint::Numel(tensor.shape) * SizeOf(tensor.dtype);
}

// The reference's order: widest elements first, then by name.
template <class Tensor>
std::vector<const Tensor*> Sorted(std::span<const Tensor> tensors) {
  std::vector<const Tensor*> sorted;
  for (const Tensor& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const Tensor* a, const Tensor* b) {
    const int64_t a_size = SizeOf(a->dtype), b_size = SizeOf(b->dtype);
    return a_size != b_size ? a_size > b_size : a->name < b->name;
  });
  return sorted;
}

template <class Tensor>
std::string HeaderText(const std::vector<const Tensor*>& tensors, const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const Tensor* tensor : tensors) {
    TRIREME_CHECK(!header.contains(tensor->name), "two tensors are named " + tensor->name);
    const int64_t end = offset + Bytes(*tensor);
    header[tensor->name] = {
        {"dtype", TypeName(tensor->dtype)}, {"shape", tensor->shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize(static_cast<size_t>(AlignUp(static_cast<int64_t>(text.size()), 8)), ' ');
  return text;
}

void Rename(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error)
    throw Error(ErrorCode::kCheckpoint, "CKP014", "renaming failed: " + error.message(), to.string(),
                "check the permissions of the folder");
}

// Calls write(byte_begin, bytes) until the tensor is done.
template <class Write>
void ForEachPiece(const TensorToWrite& tensor, const Write& write) {
  constexpr int64_t kPiece = 16 << 20;
  const int64_t bytes = Bytes(tensor);
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(std::min(kPiece, bytes)));
  for (int64_t begin = 0; begin < bytes; begin += kPiece) {
    const std::span<std::byte> piece(buffer.get(), static_cast<size_t>(std::min(kPiece, bytes - begin)));
    tensor.fill(begin, piece);
    write(begin, std::span<const std::byte>(piece));
  }
}

void WriteContents(const fs::path& path, std::span<const TensorToWrite> tensors,
                   const std::map<std::string, std::string>& metadata) {
  const std::vector<const TensorToWrite*> sorted = Sorted(tensors);
  const std::string header = HeaderText(sorted, metadata);
  const uint64_t length = header.size();
  int64_t offset = 8 + static_cast<int64_t>(length);
  int64_t total = offset;
  for (const TensorToWrite* tensor : sorted) total += Bytes(*tensor);
  File file(path, File::Mode::kCreate);
  file.Reserve(total);
  file.WriteAt(0, std::as_bytes(std::span(&length, 1)));
  file.WriteAt(8, std::as_bytes(std::span(header)));
  for (const TensorToWrite* tensor : sorted) {
    ForEachPiece(*tensor,
                 [&](int64_t begin, std::span<const std::byte> piece) { file.WriteAt(offset + begin, piece); });
    offset += Bytes(*tensor);
  }
  file.SyncAndClose();
}

}  // namespace

TensorToWrite Held(std::string name, DType dtype, std::vector<int64_t> shape, std::span<const std::byte> bytes) {
  return {.name = std::move(name),
          .dtype = dtype,
          .shape = std::move(shape),
          .fill = [bytes](int64_t begin, std::span<std::byte> out) {
            std::memcpy(out.data(), bytes.data() + begin, out.size());
          }};
}

void WriteFile(const fs::path& path, std::span<const TensorToWrite> tensors,
               const std::map<std::string, std::string>& metadata) {
  fs::path temporary = path;
  temporary += ".tmp";
  std::error_code ignored;
  fs::remove(temporary, ignored);
  try {
    WriteContents(temporary, tensors, metadata);
    Rename(temporary, path);
  } catch (...) {
    fs::remove(temporary, ignored);
    throw;
  }
  SyncPath(path.has_parent_path() ? path.parent_path() : ".", ErrorCode::kCheckpoint);
}

struct FolderWriter::State {
  struct Shard {
    fs::path path, temporary;
    std::unique_ptr<File> file;
  };
  struct Place {
    size_t shard = 0;
    int64_t offset = 0, bytes = 0, written = 0;
  };

  void AddShard(std::span<const TensorShape> tensors, const fs::path& path) {
    const std::vector<const TensorShape*> sorted = Sorted(tensors);
    const std::string header = HeaderText(sorted, {{"format", "pt"}});
    const uint64_t length = header.size();
    fs::path temporary = path;
    temporary += ".tmp";
    std::error_code ignored;
    fs::remove(temporary, ignored);
    shards.push_back({path, temporary, std::make_unique<File>(temporary, File::Mode::kCreate)});
    int64_t offset = 8 + static_cast<int64_t>(length);
    for (const TensorShape* tensor : sorted) {
      const bool added = places.emplace(tensor->name, Place{shards.size() - 1, offset, Bytes(*tensor), 0}).second;
      TRIREME_CHECK(added, "two tensors are named " + tensor->name);
      offset += Bytes(*tensor);
      total += Bytes(*tensor);
    }
    File& file = *shards.back().file;
    file.Reserve(offset);
    file.WriteAt(0, std::as_bytes(std::span(&length, 1)));
    file.WriteAt(8, std::as_bytes(std::span(header)));
  }

  fs::path folder;
  std::vector<Shard> shards;
  std::map<std::string, Place, std::less<>> places;
  int64_t total = 0;
};

FolderWriter::FolderWriter(fs::path folder, std::vector<TensorShape> tensors, int64_t max_shard_bytes)
    : state_(std::make_unique<State>()) {
  state_->folder = std::move(folder);
  std::vector<std::span<const TensorShape>> shards;
  const std::span<const TensorShape> all(tensors);
  size_t first = 0;
  int64_t sum = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t bytes = Bytes(all[i]);
    if (i > first && sum + bytes > max_shard_bytes) {
      shards.push_back(all.subspan(first, i - first));
      first = i;
      sum = 0;
    }
    sum += bytes;
  }
  shards.push_back(all.subspan(first));
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string name = shards.size() == 1
                                 ? std::string(kSingleName)
                                 : fmt::format("model-{:05d}-of-{:05d}.safetensors", s + 1, shards.size());
    state_->AddShard(shards[s], state_->folder / name);
  }
}

FolderWriter::~FolderWriter() {
  std::error_code ignored;
  for (const State::Shard& shard : state_->shards) fs::remove(shard.temporary, ignored);
}

int64_t FolderWriter::total_bytes() const { return state_->total; }

void FolderWriter::Write(std::string_view tensor, int64_t byte_begin, std::span<const std::byte> bytes) {
  const auto entry = state_->places.find(tensor);
  TRIREME_CHECK(entry != state_->places.end(), fmt::format("{} was not announced", tensor));
  State::Place& place = entry->second;
  TRIREME_CHECK(byte_begin >= 0 && byte_begin + static_cast<int64_t>(bytes.size()) <= place.bytes,
                fmt::format("{}: bytes [{}, +{}) of {}", tensor, byte_begin, bytes.size(), place.bytes));
  state_->shards[place.shard].file->WriteAt(place.offset + byte_begin, bytes);
  place.written += static_cast<int64_t>(bytes.size());
}

void FolderWriter::Finish() {
  for (const auto& [name, place] : state_->places) {
    TRIREME_CHECK(place.written == place.bytes, fmt::format("{}: {} of {} bytes", name, place.written, place.bytes));
  }
  for (State::Shard& shard : state_->shards) {
    shard.file->SyncAndClose();
    Rename(shard.temporary, shard.path);
  }
  if (state_->shards.size() > 1) {
    json weight_map = json::object();
    for (const auto& [name, place] : state_->places) {
      weight_map[name] = state_->shards[place.shard].path.filename().string();
    }
    const json index{{"metadata", {{"total_size", state_->total}}}, {"weight_map", weight_map}};
    WriteFileDurably(state_->folder / "model.safetensors.index.json", index.dump(2) + "\n", ErrorCode::kCheckpoint);
  }
  SyncPath(state_->folder, ErrorCode::kCheckpoint);
}

void WriteFolder(const fs::path& folder, std::span<const TensorToWrite> tensors, int64_t max_shard_bytes) {
  std::vector<TensorShape> shapes;
  for (const TensorToWrite& tensor : tensors) shapes.push_back({tensor.name, tensor.dtype, tensor.shape});
  FolderWriter writer(folder, std::move(shapes), max_shard_bytes);
  for (const TensorToWrite& tensor : tensors) {
    ForEachPiece(tensor,
                 [&](int64_t begin, std::span<const std::byte> piece) { writer.Write(tensor.name, begin, piece); });
  }
  writer.Finish();
}

}  // namespace trireme::safetensors
