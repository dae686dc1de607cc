// Checkpoints for tests: a few tensors cut over any number of ranks the way that ZeRO cuts flat buffers, with values
// that follow from name, state and element, so that a test knows every byte without keeping any.
#pragma once
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "engine/base/bytes.h"
#include "tests/support/error_id.h"
#include "tests/support/temp_folder.h"

namespace trireme::checkpoint::testing {

using trireme::testing::IdOf;

class TemporaryRoot {
 public:
  ~TemporaryRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_ = trireme::testing::NewTempFolder("checkpoint");
};

struct SavedTensor {
  std::string name;
  std::vector<int64_t> shape;
  bool transposed = false;  // held as [out, in]
};

struct SavedState {
  std::string name;
  DType dtype;
};

inline std::vector<SavedState> DefaultStates() {
  return {{"model", DType::kBFloat16},
          {"master", DType::kFloat32},
          {"exp_avg", DType::kFloat32},
          {"exp_avg_sq", DType::kFloat64}};
}

inline std::vector<SavedTensor> DefaultTensors() {
  return {{"transformer.wte.weight", {13, 6}, false},
          {"transformer.h.0.ln_1.bias", {6}, false},
          {"transformer.h.0.attn.c_attn.weight", {6, 18}, true},
          {"transformer.h.0.mlp.c_proj.weight", {7, 5}, true},
          {"odd/name%x", {3}, false},
          {"empty", {0, 4}, false},
          {"scalar", {}, false}};
}

// Element `index` (row-major in the logical shape) of a tensor's state; `salt` tells saves apart.
inline uint64_t KeyOf(const std::string& tensor, const std::string& state, uint64_t salt) {
  return std::hash<std::string>{}(tensor + "|" + state) + salt * 0x9E3779B97F4A7C15u;
}
inline uint64_t ValueAt(uint64_t key, int64_t index) {
  uint64_t x = key + static_cast<uint64_t>(index) * 0xBF58476D1CE4E5B9u;
  x ^= x >> 31;
  x *= 0x94D049BB133111EBu;
  return x ^ x >> 29;
}
inline uint64_t ValueOf(const std::string& tensor, const std::string& state, int64_t index, uint64_t salt) {
  return ValueAt(KeyOf(tensor, state, salt), index);
}

// The whole tensor's bytes in the wanted order.
inline std::vector<std::byte> BytesOf(const SavedTensor& tensor, const SavedState& state, uint64_t salt,
                                      bool transposed) {
  const int64_t count = Numel(tensor.shape), size = SizeOf(state.dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(count * size));
  const uint64_t key = KeyOf(tensor.name, state.name, salt);
  const int64_t rows = transposed ? tensor.shape[0] : 1, columns = transposed ? tensor.shape[1] : count;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = transposed ? i % columns * rows + i / columns : i;
    const uint64_t value = ValueAt(key, i);
    std::memcpy(bytes.data() + place * size, &value, static_cast<size_t>(size));
  }
  return bytes;
}

// What rank `rank` of `world` writes: per state one part, the shard of the flat concatenation of all tensors, padded to
// a multiple.
class RankSave {
 public:
  RankSave(const std::vector<SavedTensor>& tensors, const std::vector<SavedState>& states, int rank, int world,
           uint64_t salt) {
    for (const SavedState& state : states) {
      int64_t total = 0;
      for (const SavedTensor& tensor : tensors) total += Numel(tensor.shape);
      const int64_t shard = AlignUp(total, world) / world, low = rank * shard, high = low + shard,
                    size = SizeOf(state.dtype);
      Part& part = parts_.emplace_back();
      part.state = state;
      part.bytes.resize(static_cast<size_t>(shard * size), std::byte{0x5A});
      int64_t begin = 0;
      for (const SavedTensor& tensor : tensors) {
        const int64_t count = Numel(tensor.shape), from = std::clamp(low, begin, begin + count),
                      to = std::clamp(high, begin, begin + count);
        if (to > from || (count == 0 && rank == world - 1)) {
          const Order order = tensor.transposed ? Order::kTransposed : Order::kRowMajor;
          const Region region{.boxes = {}, .flat_begin = from - begin, .flat_count = to - from, .order = order};
          const int64_t offset = std::clamp<int64_t>(from - low, 0, shard);
          const std::vector<std::byte> held = BytesOf(tensor, state, salt, tensor.transposed);
          if (to > from) {
            std::memcpy(part.bytes.data() + offset * size, held.data() + (from - begin) * size,
                        static_cast<size_t>((to - from) * size));
          }
          part.slabs.push_back({.tensor = tensor.name, .shape = tensor.shape, .region = region, .elem_offset = offset});
        }
        begin += count;
      }
    }
  }

  void AddTo(RankWriter& writer) const {
    for (const Part& part : parts_) writer.AddPart(part.state.name, part.state.dtype, part.bytes, part.slabs);
  }

 private:
  struct Part {
    SavedState state;
    std::vector<std::byte> bytes;
    std::vector<PartSlab> slabs;
  };
  std::vector<Part> parts_;
};

inline CheckpointMetadata MetadataFor(int world) {
  CheckpointMetadata metadata;
  metadata.topology = {.world = world, .dp = world, .tp = 1, .pp = 1, .ep = 1, .cp = 1, .zero_stage = 2, .ranks = {}};
  for (int r = 0; r < world; ++r) metadata.topology.ranks.push_back({0, r, 0, 0, 0});
  metadata.model_config = R"({"model_type":"gpt2"})";
  metadata.optimizer = R"({"type":"AdamW","applied_steps":7})";
  metadata.trainer_state = R"({"iteration":7})";
  metadata.data_position = R"({"consumed_samples":56})";
  metadata.run_config = "{}";
  metadata.required_states = {"master"};
  return metadata;
}

struct SaveRequest {
  std::filesystem::path root;
  std::string tag = "global_step7";
  int64_t step = 7;
  int world = 2;
  uint64_t salt = 1;
  std::vector<SavedTensor> tensors = DefaultTensors();
  std::vector<SavedState> states = DefaultStates();
  Observer observer = {};
};

inline std::filesystem::path Save(const SaveRequest& request) {
  const Uuid uuid = NewUuid();
  BeginCheckpoint(request.root, request.tag, uuid);
  try {
    std::vector<RankFileSummary> summaries;
    for (int rank = 0; rank < request.world; ++rank) {
      const RankSave save(request.tensors, request.states, rank, request.world, request.salt);
      RankWriter writer(TemporaryFolder(request.root, request.tag, uuid), rank, uuid, request.step, request.observer);
      save.AddTo(writer);
      writer.AddBlob("rng/dropout", {std::byte{1}, static_cast<std::byte>(rank)});
      summaries.push_back(RankFileSummary::FromJson(writer.Finish().ToJson()));
    }
    CommitOptions options;
    options.observer = request.observer;
    return CommitCheckpoint(request.root, request.tag, uuid, summaries, MetadataFor(request.world), options);
  } catch (...) {
    AbortCheckpoint(request.root, request.tag, uuid);
    throw;
  }
}

// "" if every state of every tensor reads back bit for bit, in both orders.
inline std::string Difference(const CheckpointReader& reader, const SaveRequest& request) {
  for (const SavedTensor& tensor : request.tensors) {
    for (const SavedState& state : request.states) {
      for (const bool transposed : {false, true}) {
        if (transposed && tensor.shape.size() != 2) continue;
        const std::vector<std::byte> want = BytesOf(tensor, state, request.salt, transposed);
        std::vector<std::byte> found(want.size());
        reader.ReadFlat(tensor.name, state.name, 0, Numel(tensor.shape), found,
                        transposed ? Order::kTransposed : Order::kRowMajor);
        if (found != want) return tensor.name + " (" + state.name + ") differs";
      }
    }
  }
  return "";
}

}  // namespace trireme::checkpoint::testing
