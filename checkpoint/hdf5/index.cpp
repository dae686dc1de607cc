#include "checkpoint/hdf5/index.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <utility>

#include "checkpoint/hdf5/h5.h"
#include "checkpoint/hdf5/layout.h"
#include "checkpoint/reshard.h"
#include "engine/base/error.h"

namespace trireme::hdf5 {
namespace {

using checkpoint::Box;
using checkpoint::DatasetRecord;
using checkpoint::Order;
using checkpoint::Region;

struct FileRow {
  char path[64];
  uint64_t bytes, xxh3_low, xxh3_high, identity_offset;
  int32_t rank;
};
struct DatasetRow {
  char name[64];
  char dtype[8];
  uint64_t elements, offset, hash_offset;
  uint32_t file_id;
  uint16_t dataset_id;
};
struct SlabRow {
  uint64_t elem_offset, box_first, flat_begin, flat_count, xxh3;
  uint32_t param_id, file_id, box_count;
  uint16_t state_id, dataset_id;
  uint8_t order;
};

struct Field {
  const char* name;
  size_t offset;
  hid_t type;
};

Handle Compound(size_t bytes, const std::vector<Field>& fields) {
  Handle type(H5Tcreate(H5T_COMPOUND, bytes), H5Tclose, "creating a type");
  for (const Field& field : fields) Check(H5Tinsert(type, field.name, field.offset, field.type), "inserting a field");
  return type;
}

Handle Text(size_t bytes) {
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose, "copying a type");
  Check(H5Tset_size(type, bytes), "setting a text's size");
  return type;
}

#define TRIREME_FIELD(row, name, type) \
  Field { #name, offsetof(row, name), type }

Handle FileRowType() {
  const Handle path = Text(sizeof FileRow::path);
  return Compound(
      sizeof(FileRow),
      {TRIREME_FIELD(FileRow, path, path), TRIREME_FIELD(FileRow, bytes, H5T_STD_U64LE),
       TRIREME_FIELD(FileRow, xxh3_low, H5T_STD_U64LE), TRIREME_FIELD(FileRow, xxh3_high, H5T_STD_U64LE),
       TRIREME_FIELD(FileRow, identity_offset, H5T_STD_U64LE), TRIREME_FIELD(FileRow, rank, H5T_STD_I32LE)});
}
Handle DatasetRowType() {
  const Handle name = Text(sizeof DatasetRow::name), dtype = Text(sizeof DatasetRow::dtype);
  return Compound(
      sizeof(DatasetRow),
      {TRIREME_FIELD(DatasetRow, name, name), TRIREME_FIELD(DatasetRow, dtype, dtype),
       TRIREME_FIELD(DatasetRow, elements, H5T_STD_U64LE), TRIREME_FIELD(DatasetRow, offset, H5T_STD_U64LE),
       TRIREME_FIELD(DatasetRow, hash_offset, H5T_STD_U64LE), TRIREME_FIELD(DatasetRow, file_id, H5T_STD_U32LE),
       TRIREME_FIELD(DatasetRow, dataset_id, H5T_STD_U16LE)});
}
Handle SlabRowType() {
  return Compound(sizeof(SlabRow),
                  {TRIREME_FIELD(SlabRow, param_id, H5T_STD_U32LE), TRIREME_FIELD(SlabRow, state_id, H5T_STD_U16LE),
                   TRIREME_FIELD(SlabRow, file_id, H5T_STD_U32LE), TRIREME_FIELD(SlabRow, dataset_id, H5T_STD_U16LE),
                   TRIREME_FIELD(SlabRow, elem_offset, H5T_STD_U64LE), TRIREME_FIELD(SlabRow, box_first, H5T_STD_U64LE),
                   TRIREME_FIELD(SlabRow, box_count, H5T_STD_U32LE), TRIREME_FIELD(SlabRow, flat_begin, H5T_STD_U64LE),
                   TRIREME_FIELD(SlabRow, flat_count, H5T_STD_U64LE), TRIREME_FIELD(SlabRow, order, H5T_STD_U8LE),
                   TRIREME_FIELD(SlabRow, xxh3, H5T_STD_U64LE)});
}
#undef TRIREME_FIELD

template <size_t N>
void PutText(char (&out)[N], std::string_view text) {
  TRIREME_CHECK(text.size() < N, fmt::format("\"{}\" is longer than {} letters", text, N - 1));
  std::memcpy(out, text.data(), text.size());
}

void WriteFiles(hid_t root, const Index& index) {
  std::vector<FileRow> files(index.files.size());
  std::vector<DatasetRow> datasets;
  for (size_t f = 0; f < index.files.size(); ++f) {
    const IndexFile& file = index.files[f];
    PutText(files[f].path, file.path);
    files[f].bytes = static_cast<uint64_t>(file.bytes);
    files[f].xxh3_low = file.hash.low;
    files[f].xxh3_high = file.hash.high;
    files[f].rank = file.rank;
    files[f].identity_offset = static_cast<uint64_t>(file.identity_offset);
    for (size_t d = 0; d < file.datasets.size(); ++d) {
      DatasetRow& row = datasets.emplace_back();
      std::memset(&row, 0, sizeof row);
      PutText(row.name, file.datasets[d].name);
      PutText(row.dtype, Name(file.datasets[d].dtype));
      row.file_id = static_cast<uint32_t>(f);
      row.dataset_id = static_cast<uint16_t>(d);
      row.elements = static_cast<uint64_t>(file.datasets[d].elements);
      row.offset = static_cast<uint64_t>(file.datasets[d].offset);
      row.hash_offset = static_cast<uint64_t>(file.datasets[d].hash_offset);
    }
  }
  WriteTable(root, "files", FileRowType(), {files.size()}, files.data());
  WriteTable(root, "datasets", DatasetRowType(), {datasets.size()}, datasets.data());
}

void WriteSlabs(hid_t group, const IndexParameter& parameter, size_t param_id,
                const std::map<std::string, uint16_t>& state_ids, hid_t slab_type) {
  const size_t ndim = parameter.shape.size();
  std::vector<SlabRow> rows;
  std::vector<int64_t> boxes;  // [n][2][ndim]: low corners and (exclusive) high corners
  std::map<std::vector<int64_t>, uint64_t> known;
  uint64_t num_boxes = 0;
  for (const IndexSlab& slab : parameter.slabs) {
    SlabRow& row = rows.emplace_back();
    std::memset(&row, 0, sizeof row);
    row.param_id = static_cast<uint32_t>(param_id);
    row.state_id = state_ids.at(slab.state);
    row.file_id = static_cast<uint32_t>(slab.file);
    row.dataset_id = static_cast<uint16_t>(slab.dataset);
    row.elem_offset = static_cast<uint64_t>(slab.elem_offset);
    row.flat_begin = static_cast<uint64_t>(slab.region.flat_begin);
    row.flat_count = static_cast<uint64_t>(slab.region.flat_count);
    row.order = static_cast<uint8_t>(slab.region.order);
    row.xxh3 = slab.xxh3;
    row.box_count = static_cast<uint32_t>(slab.region.boxes.size());
    std::vector<int64_t> flat;
    for (const Box& box : slab.region.boxes) {
      flat.insert(flat.end(), box.begin.begin(), box.begin.end());
      for (size_t d = 0; d < ndim; ++d) flat.push_back(box.begin[d] + box.extent[d]);
    }
    const auto [entry, added] = known.try_emplace(flat, num_boxes);
    row.box_first = entry->second;
    if (added) {
      boxes.insert(boxes.end(), flat.begin(), flat.end());
      num_boxes += slab.region.boxes.size();
    }
  }
  WriteTable(group, "slabs", slab_type, {rows.size()}, rows.data());
  if (ndim > 0) WriteTable(group, "boxes", H5T_STD_I64LE, {num_boxes, 2, ndim}, boxes.data());
}

void WriteParameters(hid_t root, const Index& index) {
  std::map<std::string, uint16_t> state_ids;
  std::vector<std::string> states, order;
  for (const IndexParameter& parameter : index.parameters) {
    order.push_back(parameter.name);
    for (const IndexSlab& slab : parameter.slabs) {
      if (state_ids.try_emplace(slab.state, static_cast<uint16_t>(states.size())).second) states.push_back(slab.state);
    }
  }
  WriteTexts(root, "states", states);
  WriteTexts(root, "param_order", order);
  const Handle params = CreateGroup(root, "params", /*track_order=*/true);
  const Handle slab_type = SlabRowType();
  for (size_t p = 0; p < index.parameters.size(); ++p) {
    const IndexParameter& parameter = index.parameters[p];
    const Handle group = CreateGroup(params, EscapeName(parameter.name));
    WriteAttribute(group, "param_id", static_cast<int64_t>(p));
    WriteAttribute(group, "global_shape", std::span<const int64_t>(parameter.shape));
    WriteAttribute(group, "role", parameter.attributes.role);
    WriteAttribute(group, "trainable", int64_t{parameter.attributes.trainable});
    WriteAttribute(group, "group", int64_t{parameter.attributes.group});
    WriteAttribute(group, "alias_of", parameter.attributes.alias_of);
    WriteSlabs(group, parameter, p, state_ids, slab_type);
  }
}

void WriteTexts(hid_t root, const checkpoint::CheckpointMetadata& metadata) {
  const auto put = [root](const char* group_name, const char* name, const std::string& text) {
    const Handle group = Exists(root, group_name) ? OpenGroup(root, group_name) : CreateGroup(root, group_name);
    WriteTextDataset(group, name, text);
  };
  put("model", "config", metadata.model_config);
  put("optimizer", "state", metadata.optimizer);
  put("trainer", "state", metadata.trainer_state);
  put("trainer", "run_config", metadata.run_config);
  put("data_position", "state", metadata.data_position);
}

void WriteTopology(hid_t root, const checkpoint::Topology& topology) {
  const Handle group = CreateGroup(root, "topology");
  const std::pair<const char*, int> entries[] = {{"world", topology.world},
                                                 {"dp", topology.dp},
                                                 {"tp", topology.tp},
                                                 {"pp", topology.pp},
                                                 {"ep", topology.ep},
                                                 {"cp", topology.cp},
                                                 {"zero_stage", topology.zero_stage}};
  for (const auto& [name, value] : entries) WriteAttribute(group, name, int64_t{value});
  std::vector<int32_t> ranks;
  for (const auto& place : topology.ranks) ranks.insert(ranks.end(), place.begin(), place.end());
  WriteTable(group, "ranks", H5T_STD_I32LE, {topology.ranks.size(), 5}, ranks.data());
}

[[noreturn]] void Inconsistent(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kCheckpoint, "CKP008", what, where, "the index is damaged; resume from another checkpoint");
}

// Unsigned 64-bit file values become int64_t; what does not fit is damage.
int64_t Signed(uint64_t value, const std::string& where, const char* name) {
  if (value > uint64_t{1} << 62) Inconsistent(where, fmt::format("{} is {}", name, value));
  return static_cast<int64_t>(value);
}

void CheckRange(const std::string& where, const std::string& name, int64_t offset, int64_t bytes, int64_t file_bytes) {
  if (offset > file_bytes || bytes > file_bytes - offset) {
    Inconsistent(where,
                 fmt::format("{} at [{}, +{}) lies outside its file of {} bytes", name, offset, bytes, file_bytes));
  }
}

template <typename Row>
std::vector<Row> ReadRows(hid_t parent, const std::string& name, hid_t type) {
  std::vector<hsize_t> dims;
  const std::vector<std::byte> bytes = ReadTable(parent, name, type, sizeof(Row), dims);
  std::vector<Row> rows(bytes.size() / sizeof(Row));
  if (!rows.empty()) std::memcpy(rows.data(), bytes.data(), rows.size() * sizeof(Row));
  return rows;
}

std::string TextOf(const char* data, size_t bytes) { return {data, strnlen(data, bytes)}; }

void ReadFiles(hid_t root, Index& index, const std::string& where) {
  for (const FileRow& row : ReadRows<FileRow>(root, "files", FileRowType())) {
    IndexFile& file = index.files.emplace_back();
    file.path = TextOf(row.path, sizeof row.path);
    file.bytes = Signed(row.bytes, where, "a file size");
    file.hash = {row.xxh3_low, row.xxh3_high};
    file.rank = row.rank;
    file.identity_offset = Signed(row.identity_offset, where, "an offset");
    CheckRange(where, "the identity of " + file.path, file.identity_offset, sizeof(Identity), file.bytes);
  }
  for (const DatasetRow& row : ReadRows<DatasetRow>(root, "datasets", DatasetRowType())) {
    if (row.file_id >= index.files.size())
      Inconsistent(where, fmt::format("a dataset of file {} of {}", row.file_id, index.files.size()));
    IndexFile& file = index.files[row.file_id];
    if (row.dataset_id != file.datasets.size()) Inconsistent(where, "the datasets are out of order");
    DatasetRecord& record = file.datasets.emplace_back();
    record.name = TextOf(row.name, sizeof row.name);
    const std::string dtype_name = TextOf(row.dtype, sizeof row.dtype);
    const std::optional<DType> dtype = ParseDType(dtype_name);
    if (!dtype) Inconsistent(where, fmt::format("{} has the dtype \"{}\"", record.name, dtype_name));
    record.dtype = *dtype;
    record.elements = Signed(row.elements, where, "a count");
    record.offset = Signed(row.offset, where, "an offset");
    record.hash_offset = Signed(row.hash_offset, where, "an offset");
    if (record.elements > file.bytes)
      Inconsistent(where, fmt::format("{} has {} elements", record.name, record.elements));
    const int64_t bytes = record.elements * SizeOf(record.dtype);
    CheckRange(where, record.name, record.offset, bytes, file.bytes);
    CheckRange(where, record.name + ".xxh3", record.hash_offset, NumBlocks(bytes) * 8, file.bytes);
  }
}

std::vector<Box> ReadBoxes(hid_t group, size_t ndim, const std::string& where) {
  std::vector<Box> boxes;
  if (ndim == 0) return boxes;
  std::vector<hsize_t> dims;
  const std::vector<std::byte> bytes = ReadTable(group, "boxes", H5T_STD_I64LE, sizeof(int64_t), dims);
  if (dims.size() != 3 || dims[1] != 2 || dims[2] != ndim) Inconsistent(where, "a table of boxes has the wrong shape");
  std::vector<int64_t> values(bytes.size() / sizeof(int64_t));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  for (size_t i = 0; i + 2 * ndim <= values.size(); i += 2 * ndim) {
    Box& box = boxes.emplace_back();
    for (size_t d = 0; d < ndim; ++d) {
      const int64_t low = values[i + d], high = values[i + ndim + d];
      if (low < 0 || high < low) Inconsistent(where, fmt::format("a box reaches from {} to {}", low, high));
      box.begin.push_back(low);
      box.extent.push_back(high - low);
    }
  }
  return boxes;
}

IndexSlab ReadSlab(const SlabRow& row, const Index& index, const std::vector<std::string>& states,
                   const std::vector<Box>& boxes, const std::string& where) {
  IndexSlab slab;
  if (row.state_id >= states.size())
    Inconsistent(where, fmt::format("a slab of state {} of {}", row.state_id, states.size()));
  if (row.file_id >= index.files.size())
    Inconsistent(where, fmt::format("a slab in file {} of {}", row.file_id, index.files.size()));
  const IndexFile& file = index.files[row.file_id];
  if (row.dataset_id >= file.datasets.size())
    Inconsistent(where, fmt::format("a slab in dataset {} of {}", row.dataset_id, file.path));
  if (row.box_count > boxes.size() || row.box_first > boxes.size() - row.box_count) {
    Inconsistent(where, fmt::format("a slab with boxes [{}, +{}) of {}", row.box_first, row.box_count, boxes.size()));
  }
  slab.state = states[row.state_id];
  slab.file = static_cast<int>(row.file_id);
  slab.dataset = row.dataset_id;
  slab.elem_offset = Signed(row.elem_offset, where, "an offset");
  slab.xxh3 = row.xxh3;
  if (row.order > 1) Inconsistent(where, fmt::format("a slab of order {}", row.order));
  const auto first = boxes.begin() + static_cast<ptrdiff_t>(row.box_first);
  slab.region = {.boxes = {first, first + row.box_count},
                 .flat_begin = Signed(row.flat_begin, where, "a range"),
                 .flat_count = Signed(row.flat_count, where, "a range"),
                 .order = static_cast<Order>(row.order)};
  const int64_t elements = file.datasets[row.dataset_id].elements;
  if (slab.elem_offset > elements || slab.region.flat_count > elements - slab.elem_offset) {
    Inconsistent(where, fmt::format("a slab at [{}, +{}) lies outside {} of {} elements", slab.elem_offset,
                                    slab.region.flat_count, file.datasets[row.dataset_id].name, elements));
  }
  return slab;
}

void ReadParameters(hid_t root, Index& index, const std::string& where) {
  const std::vector<std::string> states = hdf5::ReadTexts(root, "states");
  const Handle params = OpenGroup(root, "params");
  const Handle slab_type = SlabRowType();
  for (const std::string& name : hdf5::ReadTexts(root, "param_order")) {
    const Handle group = OpenGroup(params, EscapeName(name));
    IndexParameter& parameter = index.parameters.emplace_back();
    const std::string here = where + ", " + name;
    parameter.name = name;
    parameter.shape = ReadIntegers(group, "global_shape");
    if (!checkpoint::CheckedNumel(parameter.shape))
      Inconsistent(here, "the shape " + checkpoint::ShapeText(parameter.shape));
    parameter.attributes = {.role = ReadText(group, "role"),
                            .trainable = ReadInteger(group, "trainable") != 0,
                            .group = static_cast<int>(ReadInteger(group, "group")),
                            .alias_of = ReadText(group, "alias_of")};
    const std::vector<Box> boxes = ReadBoxes(group, parameter.shape.size(), here);
    for (const SlabRow& row : ReadRows<SlabRow>(group, "slabs", slab_type)) {
      parameter.slabs.push_back(ReadSlab(row, index, states, boxes, here));
      if (!checkpoint::CheckedVolume(parameter.shape, parameter.slabs.back().region)) {
        Inconsistent(here, "a slab lies outside the shape " + checkpoint::ShapeText(parameter.shape));
      }
    }
  }
}

void ReadTopology(hid_t root, checkpoint::Topology& topology, const std::string& where) {
  const Handle group = OpenGroup(root, "topology");
  const std::pair<const char*, int*> entries[] = {{"world", &topology.world},
                                                  {"dp", &topology.dp},
                                                  {"tp", &topology.tp},
                                                  {"pp", &topology.pp},
                                                  {"ep", &topology.ep},
                                                  {"cp", &topology.cp},
                                                  {"zero_stage", &topology.zero_stage}};
  for (const auto& [name, value] : entries) *value = static_cast<int>(ReadInteger(group, name));
  std::vector<hsize_t> dims;
  const std::vector<std::byte> bytes = ReadTable(group, "ranks", H5T_STD_I32LE, sizeof(int32_t), dims);
  if (dims.size() != 2 || dims[1] != 5) Inconsistent(where, "the table of ranks has the wrong shape");
  topology.ranks.resize(dims[0]);
  if (!bytes.empty()) std::memcpy(topology.ranks.data(), bytes.data(), bytes.size());
}

}  // namespace

std::string EscapeName(std::string_view name) {
  if (name == ".") return "%2E";
  std::string out;
  for (const char c : name) {
    if (c == '/') {
      out += "%2F";
    } else if (c == '%') {
      out += "%25";
    } else {
      out += c;
    }
  }
  return out;
}

std::vector<std::byte> BuildIndex(const Index& index) {
  const Session session;
  SparseImage memory;
  Handle root = CreateInMemory(memory, 4 << 10);
  WriteAttribute(root, "format", std::string("trireme"));
  WriteAttribute(root, "version", std::span<const int64_t>(std::array{index.version_major, index.version_minor}));
  WriteAttribute(root, "uuid", index.uuid);
  WriteAttribute(root, "step", index.step);
  WriteAttribute(root, "created_ns", index.created_ns);
  WriteAttribute(root, "writer", index.writer);
  WriteAttribute(root, "byte_order", std::string("little"));
  {
    const Handle types = CreateGroup(root, "types");
    const Handle bfloat16 = FileType(DType::kBFloat16);
    Check(H5Tcommit2(types, "bfloat16", bfloat16, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), "naming a type");
  }
  WriteTopology(root, index.metadata.topology);
  WriteTexts(root, index.metadata);
  WriteFiles(root, index);
  WriteParameters(root, index);
  WriteAttribute(root, "complete", int64_t{1});
  CloseInMemory(std::move(root));
  std::vector<std::byte> image(static_cast<size_t>(memory.Size()));
  memory.ReadAt(0, image);
  return image;
}

Index ParseIndex(std::span<const std::byte> image, const std::string& where) {
  const Session session;
  const Handle root = OpenImage(image);
  Index index;
  if (!HasAttribute(root, "format") || ReadText(root, "format") != "trireme")
    Inconsistent(where, "this is no index of a checkpoint");
  const std::vector<int64_t> version = ReadIntegers(root, "version");
  if (version.size() != 2) Inconsistent(where, "the version has no two numbers");
  index.version_major = version[0];
  index.version_minor = version[1];
  if (index.version_major > kVersionMajor) {
    throw Error(ErrorCode::kCheckpoint, "CKP007",
                fmt::format("the format is version {}.{}, this program reads up to {}.x", version[0], version[1],
                            kVersionMajor),
                where, "use a newer version of the program");
  }
  if (!HasAttribute(root, "complete")) Inconsistent(where, "the index was not finished");
  index.uuid = ReadUuid(root, "uuid");
  index.step = ReadInteger(root, "step");
  index.created_ns = ReadInteger(root, "created_ns");
  index.writer = ReadText(root, "writer");
  const auto text = [&](const char* group, const char* name) { return ReadTextDataset(OpenGroup(root, group), name); };
  index.metadata.model_config = text("model", "config");
  index.metadata.optimizer = text("optimizer", "state");
  index.metadata.trainer_state = text("trainer", "state");
  index.metadata.run_config = text("trainer", "run_config");
  index.metadata.data_position = text("data_position", "state");
  ReadTopology(root, index.metadata.topology, where);
  ReadFiles(root, index, where);
  ReadParameters(root, index, where);
  return index;
}

void CheckIndexCoverage(const Index& index, const std::string& where) {
  for (const IndexParameter& parameter : index.parameters) {
    std::map<std::string, std::vector<const IndexSlab*>> by_state;
    for (const IndexSlab& slab : parameter.slabs) by_state[slab.state].push_back(&slab);
    for (const auto& [state, slabs] : by_state) {
      std::vector<Region> regions;
      for (const IndexSlab* slab : slabs) regions.push_back(slab->region);
      const std::string problem = checkpoint::CoverageProblem(
          parameter.shape, regions,
          [&slabs = slabs, &index](size_t i) { return index.files[static_cast<size_t>(slabs[i]->file)].path; });
      if (problem.empty()) continue;
      throw Error(ErrorCode::kCheckpoint, "CKP011",
                  fmt::format("tensor {} {}, state {}: {}", parameter.name, checkpoint::ShapeText(parameter.shape),
                              state, problem),
                  where, "resume from another checkpoint; at a save this is a fault of the program, please report it");
    }
  }
}

}  // namespace trireme::hdf5
