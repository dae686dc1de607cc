// "data_efficiency": of DeepSpeed's ways to feed data, dynamic batching.
#include <fmt/core.h>

#include <ranges>

#include "parsers/sections/sections.h"

namespace trireme {
namespace {

constexpr const char* kLoader = "batches are read ahead by one thread a rank, into pinned memory on GPUs";
constexpr KnownKey kSamplingKnown[] = {
    {"num_epochs", kNoEffect, "1000", "--train-iters says how long a run is; data begins again after each epoch"},
    {"num_workers", kNoEffect, "0", kLoader},
    {"pin_memory", kNoEffect, "false", kLoader},
};
constexpr KnownKey kBatchingKnown[] = {
    {"metrics_path", kNoEffect, "", "lengths stand in the dataset's index"},
    {"verbose", kNoEffect, "false", "--log-json has the tokens and the learning rate of every step"},
};

// DeepSpeed acts on the inner switches, whatever the "enabled" around them says.
void RefuseSwitchedOn(SectionReader section, const char* what, const char* fix) {
  bool enabled = false;
  section.Read("enabled", enabled);
  if (!enabled) return;
  section.diagnostics().Error("CFG009", section.At("enabled"), section.Path("enabled"),
                              fmt::format("{} is not supported: it changes what is trained", what), fix);
}

template <class E>
void ReadChoice(SectionReader& in, const char* key, std::span<const std::pair<std::string_view, E>> choices, E& value,
                const char* example) {
  std::string text;
  for (const auto& [name, choice] : std::ranges::reverse_view(choices)) {
    if (choice == value) text = name;  // the default's first name
  }
  if (!in.Read(key, text)) return;
  for (const auto& [name, choice] : choices) {
    if (text != name) continue;
    value = choice;
    return;
  }
  in.diagnostics().Error("CFG012", in.At(key), in.Path(key), fmt::format("{} is none of its values", Quoted(text)),
                         example);
}

DynamicBatchingConfig ParseDynamicBatching(SectionReader in) {
  static constexpr std::pair<std::string_view, RateScaling> kMethods[] = {{"linear", RateScaling::kLinear},
                                                                          {"sqrt", RateScaling::kSqrt},
                                                                          {"none", RateScaling::kNone},
                                                                          {"None", RateScaling::kNone}};
  static constexpr std::pair<std::string_view, PickingOrder> kOrders[] = {
      {"dataloader", PickingOrder::kFile}, {"random", PickingOrder::kRandom}, {"seqlen", PickingOrder::kLength}};
  DynamicBatchingConfig c;
  in.Read("enabled", c.enabled);
  const bool budget = in.Read("max_tokens", c.max_tokens, Between(1, 1'000'000'000));
  if (c.enabled && !budget && !in.Has("max_tokens")) {
    in.diagnostics().Error("CFG037", in.Here(), in.Path("max_tokens"), "dynamic batching needs it",
                           "write the most tokens that a micro-batch may have, for example 8192");
  }
  ReadChoice<RateScaling>(in, "lr_scaling_method", kMethods, c.lr_scaling_method,
                          "write \"linear\", \"sqrt\" or \"none\"");
  in.Read("min_batch_size", c.min_batch_size, AtLeast(1));
  in.ReadOptional("max_batch_size", c.max_batch_size, AtLeast(1));
  ReadChoice<PickingOrder>(in, "sequence_picking_order", kOrders, c.sequence_picking_order,
                           "write \"dataloader\", \"random\" or \"seqlen\"");
  if (c.max_batch_size && *c.max_batch_size < c.min_batch_size) {
    in.diagnostics().Error("CFG006", in.At("max_batch_size"), in.Path("max_batch_size"),
                           fmt::format("{} is below min_batch_size {}", *c.max_batch_size, c.min_batch_size),
                           "raise it, or remove it");
  }
  in.RejectUnread(kBatchingKnown);
  return c;
}

}  // namespace

DataEfficiencyConfig ParseDataEfficiency(SectionReader in) {
  DataEfficiencyConfig c;
  bool enabled = false;
  const bool outer = in.Read("enabled", enabled);
  in.Read("seed", c.seed, Between(0, 4294967295.0));
  SectionReader sampling = in.Section("data_sampling", SectionKind::kLoose);
  bool sampling_enabled = false;
  sampling.Read("enabled", sampling_enabled);
  c.dynamic_batching = ParseDynamicBatching(sampling.Section("dynamic_batching", SectionKind::kLoose));
  RefuseSwitchedOn(sampling.Section("curriculum_learning", SectionKind::kLoose), "curriculum learning",
                   "switch it off; dynamic_batching with \"sequence_picking_order\": \"seqlen\" starts with the short");
  sampling.RejectUnread(kSamplingKnown);
  SectionReader routing = in.Section("data_routing", SectionKind::kLoose);
  bool routing_enabled = false;
  routing.Read("enabled", routing_enabled);
  RefuseSwitchedOn(routing.Section("random_ltd", SectionKind::kLoose), "random layer token drop",
                   "switch it off or remove it");
  routing.RejectUnread();
  in.RejectUnread();
  if (c.dynamic_batching.enabled && outer && !(enabled && sampling_enabled)) {
    in.diagnostics().Notice("CFG010", in.At("enabled"), in.Path("enabled"),
                            "dynamic_batching.enabled decides, whatever the switches around it say, as in DeepSpeed");
  }
  return c;
}

}  // namespace trireme
