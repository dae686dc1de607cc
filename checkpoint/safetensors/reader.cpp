#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "checkpoint/file_io.h"
#include "checkpoint/json/strict_json.h"
#include "checkpoint/reshard.h"
#include "checkpoint/safetensors/safetensors.h"
#include "engine/base/error.h"
#include "engine/base/file.h"

namespace trireme::safetensors {
namespace {

using checkpoint::File;
using checkpoint::Region;
using checkpoint::TensorInfo;
using nlohmann::json;
namespace fs = std::filesystem;

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

struct TypeName {
  const char* name;
  int64_t bytes;
  std::optional<DType> dtype;
};
const TypeName kTypes[] = {{"F64", 8, DType::kFloat64},   {"F32", 4, DType::kFloat32},  {"F16", 2, DType::kFloat16},
                           {"BF16", 2, DType::kBFloat16}, {"I64", 8, DType::kInt64},    {"I32", 4, DType::kInt32},
                           {"I16", 2, DType::kInt16},     {"I8", 1, DType::kInt8},      {"U8", 1, DType::kUInt8},
                           {"U16", 2, DType::kUInt16},    {"BOOL", 1, DType::kUInt8},   {"U32", 4, std::nullopt},
                           {"U64", 8, std::nullopt},      {"F8_E4M3", 1, std::nullopt}, {"F8_E5M2", 1, std::nullopt}};

const TypeName* FindType(const std::string& name) {
  const auto found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeName& t) { return name == t.name; });
  return found == std::end(kTypes) ? nullptr : found;
}

[[noreturn]] void BadHeader(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kCheckpoint, "CKP017", "the safetensors header is damaged: " + what, where,
              "download or export the file again");
}
[[noreturn]] void BadIndex(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kCheckpoint, "CKP018", what, where, "download or export the missing files again");
}

int64_t Unsigned(const json& value, const std::string& where, const std::string& what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{1} << 62)
    BadHeader(where, what + " is " + value.dump());
  return static_cast<int64_t>(value.get<uint64_t>());
}

HeaderTensor ParseTensor(const std::string& name, const json& entry, int64_t data_start, int64_t data_bytes,
                         const std::string& where) {
  HeaderTensor tensor;
  tensor.name = name;
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets") ||
      !entry["dtype"].is_string() || !entry["shape"].is_array() || !entry["data_offsets"].is_array() ||
      entry["data_offsets"].size() != 2) {
    BadHeader(where, "the entry of " + name + " lacks dtype, shape or data_offsets");
  }
  tensor.dtype_name = entry["dtype"].get<std::string>();
  const TypeName* type = FindType(tensor.dtype_name);
  if (type == nullptr) BadHeader(where, fmt::format("{} has the unknown dtype \"{}\"", name, tensor.dtype_name));
  for (const json& extent : entry["shape"]) tensor.shape.push_back(Unsigned(extent, where, "an extent of " + name));
  const std::optional<int64_t> count = checkpoint::CheckedNumel(tensor.shape);
  const int64_t begin = Unsigned(entry["data_offsets"][0], where, "an offset of " + name);
  const int64_t end = Unsigned(entry["data_offsets"][1], where, "an offset of " + name);
  if (begin > end || end > data_bytes) {
    BadHeader(where, fmt::format("{} lies at [{}, {}) of {} data bytes", name, begin, end, data_bytes));
  }
  tensor.data_begin = data_start + begin;
  tensor.bytes = end - begin;
  if (!count || *count > (int64_t{1} << 62) / type->bytes || *count * type->bytes != tensor.bytes) {
    BadHeader(where, fmt::format("{} of shape {} and dtype {} has {} bytes", name, checkpoint::ShapeText(tensor.shape),
                                 tensor.dtype_name, tensor.bytes));
  }
  return tensor;
}

uint64_t HeaderLength(std::span<const std::byte> start, int64_t file_bytes, const std::string& where) {
  if (start.size() < 8) BadHeader(where, fmt::format("the file has {} bytes", file_bytes));
  uint64_t length = 0;
  std::memcpy(&length, start.data(), sizeof length);
  if (length > kMaxHeader || static_cast<int64_t>(length) > file_bytes - 8) {
    BadHeader(where, fmt::format("it should have {} bytes, the file has {}", length, file_bytes));
  }
  return length;
}

Header LoadHeader(const File& file) {
  const int64_t size = file.Size();
  std::vector<std::byte> start(static_cast<size_t>(std::min<int64_t>(8, size)));
  file.ReadAt(0, start);
  start.resize(8 + HeaderLength(start, size, file.path().string()));
  file.ReadAt(0, start);
  return ParseHeader(start, size, file.path().string());
}

class FileSource : public checkpoint::ByteSource {
 public:
  FileSource(const File& file, int64_t base) : file_(file), base_(base) {}
  void ReadBytes(int64_t begin, std::span<std::byte> out) const override { file_.ReadAt(base_ + begin, out); }

 private:
  const File& file_;
  const int64_t base_;
};

class SafetensorsReader : public checkpoint::CheckpointReader {
 public:
  explicit SafetensorsReader(const fs::path& path) {
    info_.format = "safetensors";
    info_.directory = path;
    if (!fs::is_directory(path)) {
      AddFile(path);
    } else if (fs::exists(path / kIndex)) {
      AddShards(path);
    } else {
      AddFile(path / kSingle);
    }
    const fs::path config = (fs::is_directory(path) ? path : path.parent_path()) / "config.json";
    if (fs::exists(config)) info_.model_config = ReadFile(config, ErrorCode::kCheckpoint);
    for (const auto& [name, place] : places_) tensors_.push_back(place.info);
  }

  const checkpoint::CheckpointInfo& info() const override { return info_; }
  std::span<const TensorInfo> tensors() const override { return tensors_; }

  void ReadRegion(std::string_view tensor, std::string_view state, const Region& region,
                  std::span<std::byte> out) const override {
    const auto [info, state_info] = CheckRead(tensor, state, region, out.size());
    const Place& place = places_.at(info->name);
    const FileSource source(*files_[place.file], place.data_begin);
    const Region whole{.boxes = {},
                       .flat_begin = 0,
                       .flat_count = checkpoint::Numel(info->shape),
                       .order = checkpoint::Order::kRowMajor};
    const int64_t count =
        checkpoint::ReadIntersection(info->shape, whole, 0, source, region, out, SizeOf(state_info->dtype));
    TRIREME_CHECK(count == region.flat_count, fmt::format("{}: {} of {} elements", tensor, count, region.flat_count));
  }

 private:
  struct Place {
    TensorInfo info;
    size_t file = 0;
    int64_t data_begin = 0;
  };

  // Returns the names in the file.
  std::set<std::string> AddFile(const fs::path& path) {
    files_.push_back(std::make_unique<File>(path, File::Mode::kRead));
    Header header = LoadHeader(*files_.back());
    std::set<std::string> names;
    info_.attributes.insert(header.metadata.begin(), header.metadata.end());
    for (HeaderTensor& tensor : header.tensors) {
      names.insert(tensor.name);
      const std::optional<DType> dtype = FindType(tensor.dtype_name)->dtype;
      if (!dtype || tensor.shape.size() > checkpoint::kMaxDims) {
        info_.warnings.push_back(fmt::format("{}: {} of dtype {} is left out: this program has no such type",
                                             path.string(), tensor.name, tensor.dtype_name));
        continue;
      }
      info_.stored_bytes += tensor.bytes;
      Place place{.info = {.name = tensor.name,
                           .dtype = *dtype,
                           .shape = std::move(tensor.shape),
                           .states = {{"model", *dtype}}},
                  .file = files_.size() - 1,
                  .data_begin = tensor.data_begin};
      if (!places_.emplace(tensor.name, std::move(place)).second)
        BadIndex(path.string(), tensor.name + " is in two shards");
    }
    return names;
  }

  void AddShards(const fs::path& folder) {
    const std::string where = (folder / kIndex).string();
    json index;
    std::string problem;
    if (!checkpoint::ParseStrictJson(ReadFile(folder / kIndex, ErrorCode::kCheckpoint), index, problem))
      BadIndex(where, problem);
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
      BadIndex(where, "there is no weight_map");
    std::map<std::string, std::vector<std::string>> wanted;
    for (const auto& [name, file] : index["weight_map"].items()) {
      if (!file.is_string() || fs::path(file.get<std::string>()).filename() != file.get<std::string>() ||
          file.get<std::string>().empty()) {
        BadIndex(where, name + " is not in a file of this folder");
      }
      wanted[file.get<std::string>()].push_back(name);
    }
    CheckShardCount(wanted, where);
    for (const auto& [file, names] : wanted) {
      if (!fs::exists(folder / file))
        BadIndex(where, fmt::format("the shard {} is missing; {} tensors are in it", file, names.size()));
      const std::set<std::string> held = AddFile(folder / file);
      for (const std::string& name : names) {
        if (!held.contains(name)) BadIndex(where, fmt::format("{} should be in {} and is not", name, file));
      }
    }
  }

  // model-00001-of-00003.safetensors: every number up to 3 must occur.
  static void CheckShardCount(const std::map<std::string, std::vector<std::string>>& files, const std::string& where) {
    for (const auto& [file, names] : files) {
      const size_t of = file.find("-of-");
      const size_t dot = file.find('.', of == file.npos ? 0 : of);
      if (of == file.npos || dot == file.npos) continue;
      const std::string count = file.substr(of + 4, dot - of - 4);
      if (count.empty() || count.size() > 9 ||
          !std::all_of(count.begin(), count.end(), [](unsigned char c) { return std::isdigit(c); }))
        continue;
      if (std::stoul(count) != files.size()) {
        BadIndex(where, fmt::format("{} shards are named in weight_map, {} says that there are {}", files.size(), file,
                                    std::stoul(count)));
      }
    }
  }

  checkpoint::CheckpointInfo info_;
  std::vector<std::unique_ptr<File>> files_;
  std::map<std::string, Place> places_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace

Header ParseHeader(std::span<const std::byte> start, int64_t file_bytes, const std::string& where) {
  const uint64_t length = HeaderLength(start, file_bytes, where);
  if (length > start.size() - 8) BadHeader(where, fmt::format("{} bytes, {} are there", length, start.size() - 8));
  const std::string_view text(reinterpret_cast<const char*>(start.data()) + 8, length);
  if (text.empty() || text.front() != '{') BadHeader(where, "it does not begin with {");
  json in;
  std::string problem;
  if (!checkpoint::ParseStrictJson(text, in, problem)) BadHeader(where, problem);
  const int64_t data_start = 8 + static_cast<int64_t>(length), data_bytes = file_bytes - data_start;
  Header header;
  for (const auto& [name, entry] : in.items()) {
    if (name != "__metadata__") {
      header.tensors.push_back(ParseTensor(name, entry, data_start, data_bytes, where));
      continue;
    }
    if (!entry.is_object()) BadHeader(where, "__metadata__ is no object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) BadHeader(where, "__metadata__ holds more than texts");
      header.metadata[key] = value.get<std::string>();
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return a.data_begin != b.data_begin ? a.data_begin < b.data_begin : a.bytes < b.bytes;
  });
  int64_t end = data_start;
  for (const HeaderTensor& tensor : header.tensors) {
    if (tensor.data_begin != end)
      BadHeader(where,
                fmt::format("{} begins at {}, the tensor before it ends at {}", tensor.name, tensor.data_begin, end));
    end += tensor.bytes;
  }
  if (end != file_bytes) BadHeader(where, fmt::format("the tensors end at {}, the file has {} bytes", end, file_bytes));
  return header;
}

bool IsSafetensors(const fs::path& path) {
  if (fs::is_directory(path)) return fs::exists(path / kSingle) || fs::exists(path / kIndex);
  return path.extension() == ".safetensors" && fs::exists(path);
}

std::unique_ptr<checkpoint::CheckpointReader> OpenSafetensors(const fs::path& path) {
  return std::make_unique<SafetensorsReader>(path);
}

}  // namespace trireme::safetensors
