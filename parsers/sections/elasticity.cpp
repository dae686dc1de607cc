// "elasticity": the batch numbers out of what any number of replicas could train with (parsers/elasticity.h).
#include "parsers/elasticity.h"

#include <fmt/core.h>

#include "engine/base/strings.h"
#include "parsers/sections/sections.h"

namespace trireme {
namespace {

constexpr int64_t kLargest = 1'000'000'000;

constexpr KnownKey kKnown[] = {
    {"min_time", kNoEffect, "0.0", "a scheduler of jobs reads it"},
};

bool ReadMicroBatches(SectionReader& in, std::vector<int64_t>& sizes) {
  const JsonValue* list = in.Take("micro_batch_sizes");
  if (list == nullptr) return false;
  std::vector<int64_t> read;
  for (const JsonValue& size : list->elements) {
    if (size.kind == JsonValue::Kind::kInteger && size.integer > 0 && size.integer <= kLargest)
      read.push_back(size.integer);
  }
  if (list->kind != JsonValue::Kind::kArray || read.empty() || read.size() != list->elements.size()) {
    in.diagnostics().Error("CFG027", in.At("micro_batch_sizes"), in.Path("micro_batch_sizes"),
                           fmt::format("{} is no list of whole numbers above 0", Describe(*list)),
                           "write for example [2, 4, 6]");
    return true;
  }
  sizes = std::move(read);
  return true;
}

void CheckRules(SectionReader& in, const ElasticityConfig& c) {
  const auto refuse = [&](const char* key, const std::string& what, const std::string& fix) {
    in.diagnostics().Error("CFG027", in.At(key), in.Path(key), what, fix);
  };
  if (c.max_gpus < c.min_gpus) {
    refuse("max_gpus", fmt::format("{} is below min_gpus {}", c.max_gpus, c.min_gpus), "raise it");
  }
  if (c.version != 0.1 && c.version != 0.2) {
    refuse("version", fmt::format("{} is no version", c.version), "write 0.1 or 0.2");
  }
  if (c.version < 0.2 && c.model_parallel_size > 1) {
    refuse("model_parallel_size", fmt::format("{} needs version 0.2", c.model_parallel_size), "set version to 0.2");
  }
  if (c.num_gpus_per_node % c.model_parallel_size != 0) {
    refuse("num_gpus_per_node",
           fmt::format("{} is no multiple of model_parallel_size {}", c.num_gpus_per_node, c.model_parallel_size),
           fmt::format("set it to {}", (c.num_gpus_per_node / c.model_parallel_size + 1) * c.model_parallel_size));
  }
}

}  // namespace

ElasticityConfig ParseElasticity(SectionReader in) {
  ElasticityConfig c;
  in.Read("enabled", c.enabled);
  const bool largest = in.Read("max_train_batch_size", c.max_train_batch_size, Between(1, kLargest));
  const bool sizes = ReadMicroBatches(in, c.micro_batch_sizes);
  in.Read("min_gpus", c.min_gpus, AtLeast(1));
  in.Read("max_gpus", c.max_gpus, AtLeast(1));
  in.Read("prefer_larger_batch", c.prefer_larger_batch);
  in.Read("ignore_non_elastic_batch_info", c.ignore_non_elastic_batch_info);
  in.Read("version", c.version);
  in.Read("num_gpus_per_node", c.num_gpus_per_node, Between(1, 1'000'000));
  in.Read("model_parallel_size", c.model_parallel_size, Between(1, 1'000'000));
  if (c.enabled) {
    for (const auto& [key, given] : {std::pair("max_train_batch_size", largest), {"micro_batch_sizes", sizes}}) {
      if (given || in.Has(key)) continue;
      in.diagnostics().Error("CFG027", in.Here(), in.Path(key), "absent, and elasticity is on",
                             "write it, or set enabled to false");
    }
    CheckRules(in, c);
  }
  in.RejectUnread(kKnown);
  return c;
}

}  // namespace trireme
