// Writing a native checkpoint (hdf5/FORMAT.md) from N ranks, which may be threads or processes; no MPI. Each rank:
//   RankWriter writer(TemporaryFolder(root, tag, uuid), rank, uuid, step);       // the same uuid, tag and step on all
//   ranks writer.AddPart("exp_avg", DType::kFloat32, flat_shard_bytes, slabs);         // the flat shard of a unit, as
//   held in memory std::string mine = writer.Finish().ToJson();                                 // gathered to rank 0
//   by any means
// and rank 0, before and after:
//   BeginCheckpoint(root, tag, uuid);
//   CommitCheckpoint(root, tag, uuid, summaries, metadata);                      // index, manifest, rename, `latest`
// Until CommitCheckpoint returns, `latest` names the previous checkpoint and nothing of it has been touched.
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

#include "checkpoint/file_io.h"
#include "checkpoint/reader.h"
#include "checkpoint/tensor.h"

namespace trireme::checkpoint {

// What a run of elements in a part is: `region` of the logical `tensor`. region.order kTransposed: the elements lie as
// the matrix [out, in] while the logical shape is [in, out] (GPT-2); they are written as held.
struct PartSlab {
  std::string tensor;
  std::vector<int64_t> shape;  // logical, whole
  Region region;
  int64_t elem_offset = 0;  // first element inside the part
};

struct SlabSpec {
  std::string tensor, state;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  Region region;
};

struct DatasetRecord {  // one bulk dataset, or one blob, of a rank's file
  std::string name;     // "exp_avg", "rank/rng/dropout"
  DType dtype = DType::kFloat32;
  int64_t elements = 0;
  int64_t offset = 0;       // bytes from the start of the file
  int64_t hash_offset = 0;  // of the XXH3-64 values, one for each 16 MiB
};

struct SlabRecord {
  SlabSpec spec;
  int dataset = 0;          // index into datasets
  int64_t elem_offset = 0;  // first element inside that dataset
  uint64_t xxh3 = 0;        // of the bytes as stored
};

// What rank 0 must know of one rank's file.
struct RankFileSummary {
  int rank = 0;
  Uuid uuid{};
  int64_t step = 0;
  std::string path;  // relative to the tag's folder
  int64_t bytes = 0;
  Hash128 hash;
  int64_t identity_offset = 0;
  std::vector<DatasetRecord> datasets;
  std::vector<SlabRecord> slabs;
  std::string failure;  // not empty: this rank could not write, and why

  std::string ToJson() const;
  static RankFileSummary FromJson(std::string_view text);  // throws CKP022
  static RankFileSummary Failed(int rank, std::string why);
};

class RankWriter {
 public:
  // Fills `out` with the part's bytes from `byte_begin` on; called once for each byte, in order, in pieces of at most
  // 16 MiB, so that a part may lie on a device.
  using Fill = std::function<void(int64_t byte_begin, std::span<std::byte> out)>;

  RankWriter(std::filesystem::path folder, int rank, const Uuid& uuid, int64_t step, Observer observer = {});
  ~RankWriter();

  // Appends a part to the state's dataset. The bytes are read in Finish: they must live and stay unchanged until then.
  // Elements that no slab names (padding) are written too. Slabs of no element are kept only for tensors of no element.
  void AddPart(std::string_view state, DType dtype, std::span<const std::byte> bytes, std::vector<PartSlab> slabs);
  void AddPart(std::string_view state, DType dtype, int64_t elements, Fill fill, std::vector<PartSlab> slabs);
  void Add(const SlabSpec& slab, std::span<const std::byte> bytes);  // a part that is one slab
  void AddBlob(std::string name, std::vector<std::byte> bytes);      // CheckpointReader::ReadBlob reads it back

  int64_t bytes() const;  // bulk bytes so far: summed over ranks it is what RequireFreeSpace wants

  // Writes, hashes, fsyncs. On error the partial file is removed. Throws CKP013 (no space), CKP014, CKP015.
  RankFileSummary Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What the index says of a parameter beside its slabs.
struct ParameterAttributes {
  std::string role;  // "embedding", "norm", ... free text
  bool trainable = true;
  int group = 0;         // optimizer group
  std::string alias_of;  // tied: stored under this name; such an entry has no slabs
};

struct CheckpointMetadata {
  Topology topology;
  // JSON texts, stored as given. model_config has Hugging Face's field names.
  std::string model_config, optimizer, trainer_state, data_position, run_config;
  std::vector<std::string> parameter_order;  // the optimizer's; others follow in the order of the ranks
  std::vector<std::string> required_states;  // each tensor must have them: a state that no rank saved is found
  std::map<std::string, ParameterAttributes> parameters;  // those that differ from the defaults
};

struct CommitOptions {
  bool reread_hashes = false;  // read each rank's file again and compare; sizes are always compared
  bool move_latest = true;
  Observer observer = {};
};

// <root>/<tag>.tmp.<first 8 digits of uuid>: every rank can name it.
std::filesystem::path TemporaryFolder(const std::filesystem::path& root, const std::string& tag, const Uuid& uuid);

// Rank 0, before any rank writes: makes the folders and removes temporary ones that were abandoned more than an hour
// ago. Throws CKP016 for a tag that is no plain folder name.
void BeginCheckpoint(const std::filesystem::path& root, const std::string& tag, const Uuid& uuid);

// Rank 0, after every rank has written. Checks ranks, sizes and that the slabs of each tensor and state are disjoint
// and cover it; writes index.h5, manifest.json last; renames to <root>/<tag> (an older folder of that name is swapped
// out and removed after); moves `latest`. On error removes the temporary folder and throws CKP004, CKP011, CKP012,
// CKP013, CKP014, CKP022.
std::filesystem::path CommitCheckpoint(const std::filesystem::path& root, const std::string& tag, const Uuid& uuid,
                                       std::span<const RankFileSummary> summaries, const CheckpointMetadata& metadata,
                                       const CommitOptions& options = {});

// Rank 0, where a save is given up: removes the temporary folder. Never throws.
void AbortCheckpoint(const std::filesystem::path& root, const std::string& tag, const Uuid& uuid) noexcept;

}  // namespace trireme::checkpoint
