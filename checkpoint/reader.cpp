#include "checkpoint/reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "checkpoint/find.h"
#include "checkpoint/hdf5/layout.h"
#include "checkpoint/hdf5/native_reader.h"
#include "checkpoint/safetensors/safetensors.h"
#include "engine/base/error.h"
#include "engine/base/strings.h"

namespace trireme::checkpoint {
namespace {

bool HoldsTags(const std::filesystem::path& folder) {
  if (std::filesystem::exists(folder / hdf5::kLatestName)) return true;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_directory() && std::filesystem::exists(entry.path() / hdf5::kManifestName)) return true;
  }
  return false;
}

}  // namespace

std::unique_ptr<CheckpointReader> CheckpointReader::Open(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  const bool folder = fs::is_directory(path);
  if (folder && fs::exists(path / hdf5::kManifestName)) return hdf5::OpenNative(path);
  if (safetensors::IsSafetensors(path)) return safetensors::OpenSafetensors(path);
  if (folder && HoldsTags(path)) {
    FindResult result = RequireCheckpoint(path);
    return hdf5::OpenNative(result.found->directory, std::move(result.warnings));
  }
  const std::string missed = folder             ? "native: no manifest.json here nor in a subfolder, no file `latest`; "
                                                  "safetensors: neither model.safetensors "
                                                  "nor model.safetensors.index.json"
                             : fs::exists(path) ? "it is a file whose name does not end in .safetensors"
                                                : "there is no such file or folder";
  throw Error(ErrorCode::kCheckpoint, "CKP001", "no known checkpoint format (" + missed + ")", path.string(),
              "give the folder of a tag, the folder that holds the tags, or a Hugging Face folder or file");
}

std::vector<std::byte> CheckpointReader::ReadBlob(int, std::string_view) const { return {}; }

void CheckpointReader::Read(std::string_view tensor, std::string_view state, const Box& box, std::span<std::byte> out,
                            Order order) const {
  const std::optional<int64_t> count = CheckedNumel(box.extent);
  ReadRegion(tensor, state, {.boxes = {box}, .flat_begin = 0, .flat_count = count.value_or(-1), .order = order}, out);
}

void CheckpointReader::ReadFlat(std::string_view tensor, std::string_view state, int64_t flat_begin, int64_t flat_count,
                                std::span<std::byte> out, Order order) const {
  ReadRegion(tensor, state, {.boxes = {}, .flat_begin = flat_begin, .flat_count = flat_count, .order = order}, out);
}

const TensorInfo* CheckpointReader::Find(std::string_view tensor) const {
  const auto alias = info().aliases.find(std::string(tensor));
  const std::string_view name = alias == info().aliases.end() ? tensor : alias->second;
  const std::span<const TensorInfo> all = tensors();
  const auto found = std::lower_bound(all.begin(), all.end(), name,
                                      [](const TensorInfo& t, std::string_view n) { return t.name < n; });
  return found != all.end() && found->name == name ? &*found : nullptr;
}

const TensorInfo& CheckpointReader::Require(std::string_view tensor) const {
  if (const TensorInfo* found = Find(tensor)) return *found;
  std::vector<std::string> names;
  for (const TensorInfo& info : tensors()) names.push_back(info.name);
  const std::optional<std::string> nearest = Suggest(tensor, names);
  throw Error(ErrorCode::kCheckpoint, "CKP009", fmt::format("there is no tensor {} among {}", tensor, names.size()),
              info().directory.string(),
              nearest ? fmt::format("did you mean {}?", *nearest) : "check that model and checkpoint are of one kind");
}

std::pair<const TensorInfo*, const StateInfo*> CheckpointReader::CheckRead(std::string_view tensor,
                                                                           std::string_view state, const Region& region,
                                                                           size_t out_bytes) const {
  const TensorInfo& found = Require(tensor);
  const StateInfo* state_info = found.FindState(state);
  if (state_info == nullptr) {
    std::string known;
    for (const StateInfo& s : found.states) known += (known.empty() ? "" : ", ") + s.name;
    throw Error(ErrorCode::kCheckpoint, "CKP009",
                fmt::format("tensor {} has no state {}; it has: {}", found.name, state, known),
                info().directory.string(), "load a state that was saved, or start the optimizer anew");
  }
  if (!CheckedVolume(found.shape, region)) {
    throw Error(ErrorCode::kCheckpoint, "CKP010",
                fmt::format("tensor {} of shape {}: the range [{}, +{}) of {} lies outside", found.name,
                            ShapeText(found.shape), region.flat_begin, region.flat_count,
                            region.boxes.empty() ? "the tensor" : fmt::format("{} boxes", region.boxes.size())),
                info().directory.string(), "the model's shape differs from the saved one");
  }
  const int64_t needed = region.flat_count * SizeOf(state_info->dtype);
  TRIREME_CHECK(static_cast<int64_t>(out_bytes) == needed,
                fmt::format("tensor {}, state {} ({}): {} bytes to fill, the region has {}", tensor, state,
                            Name(state_info->dtype), out_bytes, needed));
  return {&found, state_info};
}

void RequireTensors(const CheckpointReader& reader, std::span<const ExpectedTensor> expected,
                    std::span<const std::string> states, std::span<const std::string> allowed_extra) {
  std::string text;
  int count = 0;
  const auto add = [&](const std::string& line) {
    if (++count <= 20) text += "\n  " + line;
  };
  std::set<std::string> known(allowed_extra.begin(), allowed_extra.end());
  for (const ExpectedTensor& want : expected) {
    known.insert(want.name);
    const TensorInfo* found = reader.Find(want.name);
    if (found == nullptr) {
      add("missing: " + want.name + " " + ShapeText(want.shape));
      continue;
    }
    known.insert(found->name);
    if (found->shape != want.shape) {
      add(fmt::format("wrong shape: {} is {}, the model needs {}", want.name, ShapeText(found->shape),
                      ShapeText(want.shape)));
    }
    for (const std::string& state : states) {
      if (found->FindState(state) == nullptr) add(fmt::format("missing state: {} of {}", state, want.name));
    }
  }
  for (const TensorInfo& tensor : reader.tensors()) {
    if (!known.contains(tensor.name)) add("unexpected: " + tensor.name + " " + ShapeText(tensor.shape));
  }
  if (count == 0) return;
  if (count > 20) text += fmt::format("\n  and {} more", count - 20);
  throw Error(ErrorCode::kCheckpoint, "CKP019",
              fmt::format("the checkpoint does not fit the model, {} differences:{}", count, text),
              reader.info().directory.string(), "check the model's size and kind against the checkpoint's config");
}

}  // namespace trireme::checkpoint
