#include "engine/data/position.h"

#include <fmt/core.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <nlohmann/json.hpp>

namespace trireme::data {
namespace {

// The one list of fields: writing, reading and the JSON names.
template <typename P, typename F>
void ForEachField(P& position, F&& field) {
  field("data_path", position.data_path);
  field("bin_bytes", position.bin_bytes);
  field("idx_bytes", position.idx_bytes);
  field("idx_hash", position.idx_hash);
  field("first_sequence", position.first_sequence);
  field("last_sequence", position.last_sequence);
  field("seq_length", position.seq_length);
  field("seed", position.seed);
  field("order", position.order);
  field("num_samples", position.num_samples);
  field("num_epochs", position.num_epochs);
  field("consumed_samples", position.consumed_samples);
}

nlohmann::ordered_json ToJson(const DataPosition& position) {
  nlohmann::ordered_json json;
  ForEachField(position, [&](const char* name, const auto& value) { json[name] = value; });
  if (position.weight != 0) json["weight"] = position.weight;
  for (const DataPosition& part : position.parts) json["parts"].push_back(ToJson(part));
  return json;
}

DataPosition FromJson(const nlohmann::json& json) {
  DataPosition position;
  ForEachField(position, [&](const char* name, auto& value) { json.at(name).get_to(value); });
  if (json.contains("weight")) json["weight"].get_to(position.weight);
  if (!json.contains("parts")) return position;
  for (const auto& part : json["parts"]) position.parts.push_back(FromJson(part));
  return position;
}

}  // namespace

DataPosition DescribeFiles(const IndexedDataset& data, SplitRange range) {
  const auto index = data.index_bytes();
  DataPosition position;
  position.data_path = data.prefix().string();
  position.bin_bytes = data.num_tokens() * SizeOf(data.type());
  position.idx_bytes = static_cast<int64_t>(index.size());
  position.idx_hash = fmt::format("{:016x}", XXH3_64bits(index.data(), index.size()));
  position.first_sequence = range.begin;
  position.last_sequence = range.end;
  return position;
}

DataPosition MakePosition(const GptDataset& train, SplitRange range, const GptDatasetOptions& options) {
  DataPosition position = DescribeFiles(train.data(), range);
  position.seq_length = options.seq_length;
  position.seed = options.seed;
  position.order = options.order == SampleOrder::kMegatron ? "megatron" : "file";
  position.num_samples = options.num_samples;
  position.num_epochs = train.plan().num_epochs;
  return position;
}

std::string PositionToJson(const DataPosition& position) { return ToJson(position).dump(2); }

DataPosition PositionFromJson(std::string_view text, const std::string& where) {
  try {
    return FromJson(nlohmann::json::parse(text));
  } catch (const nlohmann::json::exception& problem) {
    throw Error(ErrorCode::kCheckpoint, "DAT018", fmt::format("the data position cannot be read: {}", problem.what()),
                where, "resume from another checkpoint");
  }
}

std::vector<std::string> OrderDifferences(const DataPosition& saved, const DataPosition& now) {
  std::vector<std::string> out;
  const auto compare = [&](const char* what, const auto& a, const auto& b) {
    if (a != b) out.push_back(fmt::format("{} was {}, now it is {}", what, a, b));
  };
  if (!saved.parts.empty() || !now.parts.empty()) {
    compare("the number of datasets in the blend", saved.parts.size(), now.parts.size());
    if (!out.empty()) return out;
    for (size_t i = 0; i < now.parts.size(); ++i) {
      compare(fmt::format("the weight of dataset {} of the blend", i + 1).c_str(), saved.parts[i].weight,
              now.parts[i].weight);
      for (const std::string& difference : OrderDifferences(saved.parts[i], now.parts[i]))
        out.push_back(fmt::format("dataset {} of the blend, {}: {}", i + 1, now.parts[i].data_path, difference));
    }
    return out;
  }
  compare("the size of the token file", saved.bin_bytes, now.bin_bytes);
  compare("the size of the index", saved.idx_bytes, now.idx_bytes);
  compare("the hash of the index", saved.idx_hash, now.idx_hash);
  compare("the first sequence for training", saved.first_sequence, now.first_sequence);
  compare("the end of the sequences for training", saved.last_sequence, now.last_sequence);
  compare("--seq-length", saved.seq_length, now.seq_length);
  compare("the sample order", saved.order, now.order);
  if (saved.order == "file" && now.order == "file") return out;
  compare("--seed", saved.seed, now.seed);
  // In one epoch the order does not depend on how many samples are wanted.
  const bool one_epoch = saved.num_epochs == 1 && now.num_epochs == 1;
  if (!one_epoch)
    compare("the number of samples that the order of several epochs was made for", saved.num_samples, now.num_samples);
  return out;
}

}  // namespace trireme::data
