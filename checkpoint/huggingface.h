// Hugging Face folders: config.json, safetensors in one file or in shards, a tokenizer. A model's logical tensors have
// Hugging Face's names and shapes (engine/plan/unit_spec.h); here files meet them as files are.
//   auto reader = OpenHuggingFace("gpt2", model);               // every name and shape fits, or one error says what
//   not HuggingFaceWriter writer("out", model, DType::kBFloat16);   writer.Write(name, 0, bytes); writer.Commit(config,
//   {});
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/safetensors/safetensors.h"
#include "engine/base/dtype.h"
#include "engine/plan/unit_spec.h"

namespace trireme::checkpoint {

// The model's logical tensors, in the order of its units. A tied head is none.
std::vector<ExpectedTensor> TensorsOf(const ModelSpec& model);

// `inner` with the model's names. A file may lack the model's first word ("transformer.", "model.", "gpt_neox."), which
// files of a model without its head do; may name the head lm_head or embed_out; and may hold what is no weight: causal
// masks (attn.bias, attention.bias, masked_bias) and rotary frequencies (rotary_emb.inv_freq). A head that the model
// ties must equal the embedding bit for bit where the file has it, and becomes an alias. Throws CKP019 naming every
// tensor that is missing, unexpected or of another shape, or two for one name, and CKP020 for a head that differs.
std::unique_ptr<CheckpointReader> WithModelNames(std::unique_ptr<CheckpointReader> inner, const ModelSpec& model);
std::unique_ptr<CheckpointReader> OpenHuggingFace(const std::filesystem::path& path, const ModelSpec& model);

// The folder that a model will be written into must not be there, or be empty, and its parent must take files. Throws
// CKP024, CKP014.
void RequireNewFolder(const std::filesystem::path& folder);
// A file beside the weights.
struct Companion {
  std::string name, content;
};
// Files of a tokenizer in a Hugging Face folder.
std::vector<Companion> TokenizerFiles(const std::filesystem::path& folder);

// Writes a folder that transformers loads. Everything goes to a temporary folder beside it, which Commit renames: the
// folder is there whole or not at all. Throws CKP013, CKP014, CKP024.
class HuggingFaceWriter {
 public:
  HuggingFaceWriter(const std::filesystem::path& folder, const ModelSpec& model, DType dtype,
                    int64_t max_shard_bytes = safetensors::kMaxShardBytes);
  ~HuggingFaceWriter();  // removes what was not committed
  HuggingFaceWriter(const HuggingFaceWriter&) = delete;
  HuggingFaceWriter& operator=(const HuggingFaceWriter&) = delete;

  // `bytes` of a logical tensor in its logical order, from byte_begin on; each tensor once.
  void Write(std::string_view tensor, int64_t byte_begin, std::span<const std::byte> bytes);
  // config: text of config.json.
  void Commit(std::string_view config, std::span<const Companion> companions);

 private:
  const std::filesystem::path folder_, temporary_;
  std::unique_ptr<safetensors::FolderWriter> writer_;
};

// Every tensor of `reader` (its masters where it has them, else its weights) through the writer.
void CopyTensors(const CheckpointReader& reader, const ModelSpec& model, DType dtype, HuggingFaceWriter& writer);

}  // namespace trireme::checkpoint
