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

int64_t Bytes(const TensorToWrite& tensor) { return checkpoint::Numel(tensor.shape) * SizeOf(tensor.dtype); }

// The reference's order: widest elements first, then by name.
std::vector<const TensorToWrite*> Sorted(std::span<const TensorToWrite> tensors) {
  std::vector<const TensorToWrite*> sorted;
  for (const TensorToWrite& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const TensorToWrite* a, const TensorToWrite* b) {
    const int64_t a_size = SizeOf(a->dtype), b_size = SizeOf(b->dtype);
    return a_size != b_size ? a_size > b_size : a->name < b->name;
  });
  return sorted;
}

std::string HeaderText(const std::vector<const TensorToWrite*>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const TensorToWrite* tensor : tensors) {
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
  constexpr int64_t kPiece = 16 << 20;
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kPiece);
  for (const TensorToWrite* tensor : sorted) {
    const int64_t bytes = Bytes(*tensor);
    for (int64_t begin = 0; begin < bytes; begin += kPiece) {
      const std::span<std::byte> piece(buffer.get(), static_cast<size_t>(std::min(kPiece, bytes - begin)));
      tensor->fill(begin, piece);
      file.WriteAt(offset, piece);
      offset += static_cast<int64_t>(piece.size());
    }
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

void WriteFolder(const fs::path& folder, std::span<const TensorToWrite> tensors, int64_t max_shard_bytes) {
  std::vector<std::span<const TensorToWrite>> shards;
  size_t first = 0;
  int64_t sum = 0, total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = Bytes(tensors[i]);
    if (i > first && sum + bytes > max_shard_bytes) {
      shards.push_back(tensors.subspan(first, i - first));
      first = i;
      sum = 0;
    }
    sum += bytes;
    total += bytes;
  }
  shards.push_back(tensors.subspan(first));
  if (shards.size() == 1) return WriteFile(folder / "model.safetensors", tensors);
  json weight_map = json::object();
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string name = fmt::format("model-{:05d}-of-{:05d}.safetensors", s + 1, shards.size());
    WriteFile(folder / name, shards[s]);
    for (const TensorToWrite& tensor : shards[s]) weight_map[tensor.name] = name;
  }
  const json index{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  WriteFileDurably(folder / "model.safetensors.index.json", index.dump(2) + "\n", ErrorCode::kCheckpoint);
}

}  // namespace trireme::safetensors
