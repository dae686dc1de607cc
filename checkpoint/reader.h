// The one interface that every checkpoint format is read through: logical tensors and regions, so that any saved layout
// feeds any plan. No torch: bytes in, bytes out.
//   auto reader = CheckpointReader::Open("checkpoints");                 // newest complete tag; or a tag folder, or
//   safetensors std::vector<float> shard(count); reader->ReadFlat("transformer.wte.weight", "master", begin, count,
//   std::as_writable_bytes(std::span(shard)));
// Every function is safe to call from many threads. Errors are Error{kCheckpoint, CKP...} (docs/errors/checkpoint.md)
// and name tensor, file, what was expected and what was found.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/tensor.h"

namespace trireme::checkpoint {

// How the job that saved was laid out. ranks: for each rank its place on the axes pp, dp, tp, ep, cp (may be empty).
struct Topology {
  int world = 1, dp = 1, tp = 1, pp = 1, ep = 1, cp = 1, zero_stage = 0;
  std::vector<std::array<int, 5>> ranks = {};
};

// What is known beside the tensors. Texts are JSON as saved, "" where the format has none.
struct CheckpointInfo {
  std::string format;               // "trireme", "safetensors"
  std::filesystem::path directory;  // folder (or single file) that was opened
  std::string tag, uuid, writer;    // "" where the format has none
  int64_t step = 0;
  int64_t created_ns = 0;    // since 1970
  int64_t stored_bytes = 0;  // sum over all states of all tensors
  Topology topology;
  std::string model_config, optimizer, trainer_state, data_position, run_config;
  std::map<std::string, std::string> aliases;     // tied tensors: name -> the tensor that is stored
  std::map<std::string, std::string> attributes;  // format's own notes (safetensors __metadata__)
  std::vector<std::string> warnings;              // what the user should be told, once
};

class CheckpointReader {
 public:
  virtual ~CheckpointReader() = default;

  // Recognises the format by its files: a native tag folder (manifest.json), a folder of tags (`latest`), a safetensors
  // file, or a folder with model.safetensors or model.safetensors.index.json. Throws CKP001 naming the formats tried
  // and what each missed.
  static std::unique_ptr<CheckpointReader> Open(const std::filesystem::path& path);

  virtual const CheckpointInfo& info() const = 0;
  virtual std::span<const TensorInfo> tensors() const = 0;  // sorted by name

  // Fills `out` with the region's elements, one after another in its order; opens as many files as it touches. `out`
  // must have exactly flat_count elements of the state's dtype. Aliases are followed.
  virtual void ReadRegion(std::string_view tensor, std::string_view state, const Region& region,
                          std::span<std::byte> out) const = 0;

  // Small opaque data that one rank saved beside its tensors ("rng/dropout"); empty if there is none of that name.
  virtual std::vector<std::byte> ReadBlob(int rank, std::string_view name) const;

  // A box in logical coordinates; with kTransposed `out` is the box with its last two dims exchanged.
  void Read(std::string_view tensor, std::string_view state, const Box& box, std::span<std::byte> out,
            Order order = Order::kRowMajor) const;
  // A range of the flattened tensor; with kTransposed, of the flattened transpose (as a flat buffer holds GPT-2's
  // matrices).
  void ReadFlat(std::string_view tensor, std::string_view state, int64_t flat_begin, int64_t flat_count,
                std::span<std::byte> out, Order order = Order::kRowMajor) const;

  const TensorInfo* Find(std::string_view tensor) const;     // aliases followed; nullptr if there is none
  const TensorInfo& Require(std::string_view tensor) const;  // throws CKP009 with the nearest name

 protected:
  // The checks that all formats share: tensor, state, region and the size of `out`. Throws CKP009, CKP010.
  std::pair<const TensorInfo*, const StateInfo*> CheckRead(std::string_view tensor, std::string_view state,
                                                           const Region& region, size_t out_bytes) const;
};

// Names and shapes that a model needs, against what is there: every missing, misshapen and unexpected tensor (or
// missing state) in one Error{kCheckpoint, CKP019}. Names in `allowed_extra` may be present.
struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
};
void RequireTensors(const CheckpointReader& reader, std::span<const ExpectedTensor> expected,
                    std::span<const std::string> states, std::span<const std::string> allowed_extra = {});

}  // namespace trireme::checkpoint
