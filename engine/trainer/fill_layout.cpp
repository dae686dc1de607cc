#include "engine/trainer/fill_layout.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/log.h"

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

}  // namespace

Config FillLayout(const Config& config, const ModelSpec& model, const PlanInputs& inputs, FillOptions options,
                  RankWorld& world) {
  options.limit_bytes = SmallestOf(options.limit_bytes, world);
  options.host_limit_bytes = SmallestOf(options.host_limit_bytes, world);
  std::optional<Filled> filled = FillOwn({config, model, inputs}, options);
  if (!filled) return config;  // MakePlan says why it is no layout
  if (world.rank != 0) return std::move(filled->config);
  const std::string text = "fill: " + DescribeFill(*filled, options);
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
