#include "engine/trainer/fill_layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "engine/advise/layout.h"
#include "engine/base/bytes.h"
#include "engine/base/log.h"
#include "parsers/layout_text.h"

namespace trireme {
namespace {

int64_t SmallestOf(int64_t mine, RankWorld& world) {
  int64_t smallest = mine;
  for (const std::string& text : GatherTexts(*world.world, world.device, std::to_string(mine))) {
    int64_t other = 0;
    std::from_chars(text.data(), text.data() + text.size(), other);
    smallest = std::min(smallest, other);
  }
  return smallest;
}

// What the table of resolved values says of the keys that were chosen.
void RecordChoice(Config& config) {
  const ZeroConfig& zero = config.zero_optimization;
  const bool offloads = zero.offload_optimizer.device != OffloadDevice::kNone;
  const std::pair<std::string, std::string> chosen[] = {
      {"trireme.recompute", RecomputeText(config.recompute.runs)},
      {"zero_optimization.offload_optimizer.ratio", offloads ? fmt::format("{}", zero.offload_optimizer.ratio) : "0"},
      {"zero_optimization.stage3_prefetch_bucket_size", std::to_string(zero.stage3_prefetch_bucket_size)}};
  for (const auto& [key, value] : chosen) {
    const auto row = std::ranges::find(config.origins, key, &Origin::key);
    if (row == config.origins.end()) {
      if (key.ends_with("ratio") && offloads) config.origins.push_back({key, value, "trireme.fill", "1"});
    } else if (row->value != value) {
      row->value = value;
      row->source = "trireme.fill";
    }
  }
}

}  // namespace

Config FillLayout(const Config& config, const ModelSpec& model, const PlanInputs& inputs, FillOptions options,
                  RankWorld& world) {
  options.limit_bytes = SmallestOf(options.limit_bytes, world);
  options.host_limit_bytes = SmallestOf(options.host_limit_bytes, world);
  const Job job{config, model, inputs};
  std::optional<Filled> filled = Fill(job, config, options);
  if (!filled) return config;  // MakePlan says why it is no layout
  RecordChoice(filled->config);
  if (world.rank != 0) return std::move(filled->config);
  const ZeroConfig& zero = filled->config.zero_optimization;
  const bool offloads = zero.offload_optimizer.device != OffloadDevice::kNone;
  const std::string text =
      fmt::format("fill: made again: {}; optimizer offloaded: {:.3g}; planned {} of {} that a rank may take",
                  DescribeRecompute(filled->plan), offloads ? zero.offload_optimizer.ratio : 0,
                  FormatBytes(options.Needs(filled->plan)), FormatBytes(options.limit_bytes));
  if (filled->fits) {
    log::Info("{}", text);
  } else {
    log::Warn(
        "{}: this is the least that this layout takes. fix: a smaller micro-batch, a higher ZeRO stage, or "
        "`trireme plan --suggest`",
        text);
  }
  return std::move(filled->config);
}

}  // namespace trireme
