// RankFileSummary as JSON: what ranks send to rank 0. Integers stand in short arrays: a job has many slabs.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "checkpoint/json/strict_json.h"
#include "checkpoint/writer.h"
#include "engine/base/error.h"

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

json BoxesJson(const std::vector<Box>& boxes) {
  json out = json::array();
  for (const Box& box : boxes) out.push_back({box.begin, box.extent});
  return out;
}

DType ParseType(const json& value) {
  const std::optional<DType> dtype = ParseDType(value.get<std::string>());
  if (!dtype) throw std::runtime_error("unknown dtype " + value.dump());
  return *dtype;
}

SlabRecord ParseSlab(const json& row, const json& tensors) {
  SlabRecord slab;
  const json& tensor = tensors.at(row.at(0).get<size_t>());
  slab.spec.tensor = tensor.at("name").get<std::string>();
  slab.spec.shape = tensor.at("shape").get<std::vector<int64_t>>();
  slab.spec.state = row.at(1).get<std::string>();
  slab.dataset = row.at(2).get<int>();
  slab.elem_offset = row.at(3).get<int64_t>();
  slab.spec.region.flat_begin = row.at(4).get<int64_t>();
  slab.spec.region.flat_count = row.at(5).get<int64_t>();
  slab.spec.region.order = row.at(6).get<int>() == 0 ? Order::kRowMajor : Order::kTransposed;
  slab.xxh3 = row.at(7).get<uint64_t>();
  for (const json& box : row.at(8)) {
    slab.spec.region.boxes.push_back({box.at(0).get<std::vector<int64_t>>(), box.at(1).get<std::vector<int64_t>>()});
  }
  return slab;
}

}  // namespace

std::string RankFileSummary::ToJson() const {
  json out{{"rank", rank},
           {"uuid", Hex(uuid)},
           {"step", step},
           {"path", path},
           {"bytes", bytes},
           {"xxh3_128", Hex(hash)},
           {"identity_offset", identity_offset},
           {"failure", failure}};
  out["datasets"] = json::array();
  for (const DatasetRecord& d : datasets)
    out["datasets"].push_back({d.name, Name(d.dtype), d.elements, d.offset, d.hash_offset});
  out["tensors"] = json::array();
  out["slabs"] = json::array();
  std::map<std::string, size_t> tensor_ids;
  for (const SlabRecord& slab : slabs) {
    const auto [entry, added] = tensor_ids.try_emplace(slab.spec.tensor, tensor_ids.size());
    if (added) out["tensors"].push_back({{"name", slab.spec.tensor}, {"shape", slab.spec.shape}});
    const Region& region = slab.spec.region;
    out["slabs"].push_back({entry->second, slab.spec.state, slab.dataset, slab.elem_offset, region.flat_begin,
                            region.flat_count, static_cast<int>(region.order), slab.xxh3, BoxesJson(region.boxes)});
  }
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

RankFileSummary RankFileSummary::FromJson(std::string_view text) {
  std::string problem;
  json in;
  RankFileSummary out;
  if (ParseStrictJson(text, in, problem)) {
    try {
      Uuid uuid{};
      Hash128 hash;
      if (!ParseHex(in.at("uuid").get<std::string>(), uuid) || !ParseHex(in.at("xxh3_128").get<std::string>(), hash)) {
        throw std::runtime_error("uuid or hash are not hexadecimal");
      }
      out = {.rank = in.at("rank").get<int>(),
             .uuid = uuid,
             .step = in.at("step").get<int64_t>(),
             .path = in.at("path").get<std::string>(),
             .bytes = in.at("bytes").get<int64_t>(),
             .hash = hash,
             .identity_offset = in.at("identity_offset").get<int64_t>(),
             .datasets = {},
             .slabs = {},
             .failure = in.at("failure").get<std::string>()};
      for (const json& d : in.at("datasets")) {
        out.datasets.push_back({d.at(0).get<std::string>(), ParseType(d.at(1)), d.at(2).get<int64_t>(),
                                d.at(3).get<int64_t>(), d.at(4).get<int64_t>()});
      }
      for (const json& row : in.at("slabs")) {
        out.slabs.push_back(ParseSlab(row, in.at("tensors")));
        SlabRecord& slab = out.slabs.back();
        slab.spec.dtype = out.datasets.at(static_cast<size_t>(slab.dataset)).dtype;
      }
      return out;
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  throw Error(ErrorCode::kCheckpoint, "CKP022",
              fmt::format("a rank's summary of {} bytes cannot be read: {}", text.size(), problem), "",
              "all ranks must run the same version of the program");
}

RankFileSummary RankFileSummary::Failed(int rank, std::string why) {
  RankFileSummary out;
  out.rank = rank;
  out.failure = std::move(why);
  return out;
}

}  // namespace trireme::checkpoint
