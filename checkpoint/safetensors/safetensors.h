// safetensors: single files and Hugging Face's sharded folders, as a CheckpointReader whose only state is "model"; and
// a writer. The format is described in FORMAT.md beside this file. Headers are bounds-checked before anything is
// allocated; nothing in a file is executed. Tensors of types that this program has no name for (U32, U64, F8_*) are
// left out with a warning in info().
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/reader.h"

namespace trireme::safetensors {

bool IsSafetensors(const std::filesystem::path& path);  // by names alone

// A *.safetensors file, or a folder with model.safetensors or model.safetensors.index.json. Throws CKP017 (header),
// CKP018 (index).
std::unique_ptr<checkpoint::CheckpointReader> OpenSafetensors(const std::filesystem::path& path);

// One tensor of a file's header. data_begin: bytes from the start of the file.
struct HeaderTensor {
  std::string name, dtype_name;
  std::vector<int64_t> shape;
  int64_t data_begin = 0, bytes = 0;
};
struct Header {
  std::vector<HeaderTensor> tensors;
  std::map<std::string, std::string> metadata;
};

// `start` is the beginning of the file: at least its header. Throws CKP017 naming `where`.
Header ParseHeader(std::span<const std::byte> start, int64_t file_bytes, const std::string& where);

struct TensorToWrite {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  // Fills the tensor's bytes from byte_begin on; called in order, in pieces of at most 16 MiB.
  std::function<void(int64_t byte_begin, std::span<std::byte> out)> fill;
};
TensorToWrite Held(std::string name, DType dtype, std::vector<int64_t> shape,
                   std::span<const std::byte> bytes);  // bytes must outlive it

// Names must be unique and tied tensors left out. The file appears under its name only when it is complete. Throws
// CKP013, CKP014.
void WriteFile(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
               const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

// Bytes of a shard of Hugging Face's own writer.
inline constexpr int64_t kMaxShardBytes = 5'000'000'000;

struct TensorShape {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
};

// A folder whose tensors are written in any order, piece by piece: model.safetensors, or where the sum exceeds
// max_shard_bytes model-00001-of-000NN.safetensors and model.safetensors.index.json. The files appear under their names
// in Finish, the index last. Throws CKP013, CKP014.
class FolderWriter {
 public:
  FolderWriter(std::filesystem::path folder, std::vector<TensorShape> tensors,
               int64_t max_shard_bytes = kMaxShardBytes);
  ~FolderWriter();  // removes what is unfinished
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  int64_t total_bytes() const;  // of all tensors
  // `bytes` become the tensor's from byte_begin on.
  void Write(std::string_view tensor, int64_t byte_begin, std::span<const std::byte> bytes);
  void Finish();  // every byte of every tensor must have been written

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The same out of tensors that fill themselves.
void WriteFolder(const std::filesystem::path& folder, std::span<const TensorToWrite> tensors,
                 int64_t max_shard_bytes = kMaxShardBytes);

}  // namespace trireme::safetensors
