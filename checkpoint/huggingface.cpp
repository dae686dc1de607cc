#include "checkpoint/huggingface.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "checkpoint/convert.h"
#include "checkpoint/file_io.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/plan/families/family.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWeight = ".weight";
constexpr std::array<std::string_view, 2> kHeads = {"lm_head.weight", "embed_out.weight"};
// Buffers that older versions of transformers saved.
constexpr std::array<std::string_view, 5> kBuffers = {".attn.bias", ".attn.masked_bias", ".attention.bias",
                                                      ".attention.masked_bias", "rotary_emb.inv_freq"};

std::string EmbeddingOf(const ModelSpec& model) {
  return std::string(TraitsOf(model.family).token_table) + std::string(kWeight);
}
std::string HeadOf(const ModelSpec& model) { return std::string(TraitsOf(model.family).head) + std::string(kWeight); }

// Names in a file -> the model's.
class Names {
 public:
  explicit Names(const ModelSpec& model) : head_(HeadOf(model)) {
    const std::string embedding = EmbeddingOf(model);
    prefix_ = embedding.substr(0, embedding.find('.') + 1);
    for (const ExpectedTensor& tensor : TensorsOf(model)) known_.insert(tensor.name);
  }

  // nullopt: no weight. A name that the model lacks stays as it is.
  std::optional<std::string> Canonical(const std::string& name) const {
    if (known_.contains(name)) return name;
    if (std::ranges::find(kHeads, name) != kHeads.end()) return head_;
    if (known_.contains(prefix_ + name)) return prefix_ + name;
    const auto ends = [&](std::string_view buffer) { return name.ends_with(buffer); };
    if (std::ranges::any_of(kBuffers, ends)) return std::nullopt;
    return name;
  }

 private:
  std::string head_, prefix_;
  std::set<std::string> known_;
};

class NamedReader : public CheckpointReader {
 public:
  NamedReader(std::unique_ptr<CheckpointReader> inner, const ModelSpec& model)
      : inner_(std::move(inner)), info_(inner_->info()) {
    const Names names(model);
    for (const TensorInfo& tensor : inner_->tensors()) {
      const std::optional<std::string> name = names.Canonical(tensor.name);
      if (!name) continue;
      const auto [entry, added] = inner_names_.try_emplace(*name, tensor.name);
      if (!added) {
        throw Error(ErrorCode::kCheckpoint, "CKP019",
                    fmt::format("{} and {} both name {}", entry->second, tensor.name, *name), info_.directory.string(),
                    "export the model again");
      }
      tensors_.push_back(tensor);
      tensors_.back().name = *name;
    }
    std::ranges::sort(tensors_, {}, &TensorInfo::name);
    info_.aliases.clear();
    if (model.tie_word_embeddings) TieHead(HeadOf(model), EmbeddingOf(model));
    RequireTensors(*this, TensorsOf(model), std::array<std::string, 1>{"model"});
  }

  const CheckpointInfo& info() const override { return info_; }
  std::span<const TensorInfo> tensors() const override { return tensors_; }
  void ReadRegion(std::string_view tensor, std::string_view state, const Region& region,
                  std::span<std::byte> out) const override {
    const TensorInfo* info = CheckRead(tensor, state, region, out.size()).first;
    inner_->ReadRegion(inner_names_.at(info->name), state, region, out);
  }
  std::vector<std::byte> ReadBlob(int rank, std::string_view name) const override {
    return inner_->ReadBlob(rank, name);
  }

 private:
  void TieHead(const std::string& head_name, const std::string& embedding_name) {
    const auto head = std::ranges::find(tensors_, head_name, &TensorInfo::name),
               embedding = std::ranges::find(tensors_, embedding_name, &TensorInfo::name);
    if (embedding == tensors_.end()) return;  // RequireTensors reports it
    if (head != tensors_.end()) {
      const std::string problem = head->shape != embedding->shape || head->dtype != embedding->dtype
                                      ? "shape or dtype"
                                      : FirstDifference(*head, embedding_name);
      if (!problem.empty()) {
        throw Error(ErrorCode::kCheckpoint, "CKP020",
                    fmt::format("config.json ties {} to {}, but in the file they differ: {}", head_name, embedding_name,
                                problem),
                    info_.directory.string(),
                    "set \"tie_word_embeddings\": false in config.json, or pass --untie, to keep the head of its own");
      }
      tensors_.erase(head);
    }
    info_.aliases[head_name] = embedding_name;
  }

  // "" if head and embedding are equal in every state, bit for bit.
  std::string FirstDifference(const TensorInfo& head, const std::string& embedding) const {
    const int64_t count = Numel(head.shape);
    constexpr int64_t kPiece = 1 << 20;
    for (const StateInfo& state : head.states) {
      const int64_t size = SizeOf(state.dtype);
      std::vector<std::byte> a, b;
      for (int64_t begin = 0; begin < count; begin += kPiece) {
        const int64_t part = std::min(kPiece, count - begin);
        a.resize(static_cast<size_t>(part * size));
        b.resize(a.size());
        ReadFlat(head.name, state.name, begin, part, a);
        ReadFlat(embedding, state.name, begin, part, b);
        const auto place = std::mismatch(a.begin(), a.end(), b.begin()).first;
        if (place != a.end()) return fmt::format("element {}", begin + (place - a.begin()) / size);
      }
    }
    return "";
  }

  const std::unique_ptr<CheckpointReader> inner_;
  CheckpointInfo info_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> inner_names_;  // the model's -> the file's
};

fs::path WithoutSlash(const fs::path& folder) {
  const fs::path plain = folder.lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();
}

fs::path TemporaryBeside(const fs::path& folder) {
  fs::path plain = WithoutSlash(folder);
  plain += ".tmp." + Hex(NewUuid()).substr(0, 8);
  return plain;
}

void MakeFolders(const fs::path& folder) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) {
    throw Error(ErrorCode::kCheckpoint, "CKP014", "the folder cannot be made: " + failure.message(), folder.string(),
                "name a folder that can be written");
  }
}

}  // namespace

std::vector<ExpectedTensor> TensorsOf(const ModelSpec& model) {
  std::vector<ExpectedTensor> tensors;
  for (const UnitSpec& unit : MakeUnitSpecs(model, {.sequence_length = 1})) {
    for (const ParameterSpec& parameter : unit.parameters) tensors.push_back({parameter.name, parameter.shape});
  }
  return tensors;
}

std::unique_ptr<CheckpointReader> WithModelNames(std::unique_ptr<CheckpointReader> inner, const ModelSpec& model) {
  return std::make_unique<NamedReader>(std::move(inner), model);
}

std::unique_ptr<CheckpointReader> OpenHuggingFace(const fs::path& path, const ModelSpec& model) {
  return WithModelNames(safetensors::OpenSafetensors(path), model);
}

void RequireNewFolder(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder, ignored) && !(fs::is_directory(folder, ignored) && fs::is_empty(folder, ignored))) {
    throw Error(ErrorCode::kCheckpoint, "CKP024",
                fs::is_directory(folder, ignored) ? "the folder is there and not empty" : "is there and no folder",
                folder.string(), "name a new folder, or remove this one: no model is written over another");
  }
  const fs::path probe = TemporaryBeside(folder);
  MakeFolders(probe);
  fs::remove(probe, ignored);
}

std::vector<Companion> TokenizerFiles(const fs::path& folder) {
  std::vector<Companion> files;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                           "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja"}) {
    std::error_code ignored;
    if (fs::is_regular_file(folder / name, ignored)) {
      files.push_back({name, ReadFile(folder / name, ErrorCode::kCheckpoint)});
    }
  }
  return files;
}

HuggingFaceWriter::HuggingFaceWriter(const fs::path& folder, const ModelSpec& model, DType dtype,
                                     int64_t max_shard_bytes)
    : folder_(WithoutSlash(folder)), temporary_(TemporaryBeside(folder_)) {
  RequireNewFolder(folder_);
  std::vector<safetensors::TensorShape> shapes;
  int64_t bytes = 0;
  for (ExpectedTensor& tensor : TensorsOf(model)) {
    bytes += Numel(tensor.shape) * SizeOf(dtype);
    shapes.push_back({std::move(tensor.name), dtype, std::move(tensor.shape)});
  }
  MakeFolders(temporary_);
  try {
    RequireFreeSpace(temporary_, bytes);
    writer_ = std::make_unique<safetensors::FolderWriter>(temporary_, std::move(shapes), max_shard_bytes);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
    throw;
  }
}

HuggingFaceWriter::~HuggingFaceWriter() {
  writer_.reset();
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void HuggingFaceWriter::Write(std::string_view tensor, int64_t byte_begin, std::span<const std::byte> bytes) {
  writer_->Write(tensor, byte_begin, bytes);
}

void HuggingFaceWriter::Commit(std::string_view config, std::span<const Companion> companions) {
  writer_->Finish();
  WriteFileDurably(temporary_ / "config.json", config, ErrorCode::kCheckpoint);
  for (const Companion& companion : companions) {
    WriteFileDurably(temporary_ / companion.name, companion.content, ErrorCode::kCheckpoint);
  }
  RequireNewFolder(folder_);  // nobody made it meanwhile
  std::error_code failure;
  fs::rename(temporary_, folder_, failure);
  if (failure) {
    throw Error(ErrorCode::kCheckpoint, "CKP014", "renaming failed: " + failure.message(), folder_.string(),
                "check the permissions of the folder that holds it");
  }
  SyncPath(fs::absolute(folder_).parent_path(), ErrorCode::kCheckpoint);
}

void CopyTensors(const CheckpointReader& reader, const ModelSpec& model, DType dtype, HuggingFaceWriter& writer) {
  constexpr int64_t kPiece = 4 << 20;  // elements
  std::vector<std::byte> raw, converted;
  for (const ExpectedTensor& tensor : TensorsOf(model)) {
    const TensorInfo& info = reader.Require(tensor.name);
    const StateInfo* state = info.FindState("master");
    if (state == nullptr) state = info.FindState("model");
    if (state == nullptr || info.shape != tensor.shape) {
      RequireTensors(reader, TensorsOf(model), std::array<std::string, 1>{"master"});
    }
    const int64_t count = Numel(tensor.shape), from = SizeOf(state->dtype), to = SizeOf(dtype);
    for (int64_t begin = 0; begin < count; begin += kPiece) {
      const int64_t part = std::min(kPiece, count - begin);
      raw.resize(static_cast<size_t>(part * from));
      converted.resize(static_cast<size_t>(part * to));
      reader.ReadFlat(tensor.name, state->name, begin, part, raw);
      ConvertElements(state->dtype, dtype, raw, converted);
      writer.Write(tensor.name, begin * to, converted);
    }
  }
}

}  // namespace trireme::checkpoint
