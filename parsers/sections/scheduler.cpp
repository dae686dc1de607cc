// "scheduler": DeepSpeed's five. All lengths count optimizer steps. Facts: DeepSpeed 0.19, runtime/lr_schedules.py.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "engine/base/strings.h"
#include "parsers/sections/sections.h"

namespace trireme {
namespace {

const std::vector<std::pair<std::string, SchedulerType>> kTypes = {{"WarmupLR", SchedulerType::kWarmupLR},
                                                                   {"WarmupDecayLR", SchedulerType::kWarmupDecayLR},
                                                                   {"WarmupCosineLR", SchedulerType::kWarmupCosineLR},
                                                                   {"LRRangeTest", SchedulerType::kLRRangeTest},
                                                                   {"OneCycle", SchedulerType::kOneCycle}};
constexpr const char* kSupported = "supported: WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest, OneCycle";

constexpr std::array kPyTorch = {"StepLR",
                                 "MultiStepLR",
                                 "ExponentialLR",
                                 "CosineAnnealingLR",
                                 "LinearLR",
                                 "CosineAnnealingWarmRestarts",
                                 "ConstantLR",
                                 "PolynomialLR",
                                 "OneCycleLR",
                                 "CyclicLR",
                                 "ReduceLROnPlateau",
                                 "LambdaLR"};

// The type, or nullopt with the reason reported; `meant` is then the type that it was most likely to be.
std::optional<SchedulerType> ReadType(SectionReader& in, std::optional<SchedulerType>& meant) {
  std::string type;
  if (!in.Read("type", type)) {
    if (!in.Has("type")) {
      in.diagnostics().Error("CFG012", in.Here(), in.Path("type"), "the section has no type", kSupported);
    }
    return std::nullopt;
  }
  for (const auto& [name, value] : kTypes) {
    if (type == name) return value;
  }
  for (const auto& [name, value] : kTypes) {
    if (ToLower(type) != ToLower(name)) continue;
    in.diagnostics().Error("CFG012", in.At("type"), in.Path("type"),
                           fmt::format("scheduler names keep their letter case, and \"{}\" is none", type),
                           fmt::format("write \"{}\"", name));
    meant = value;
    return std::nullopt;
  }
  if (std::ranges::find(kPyTorch, type) != kPyTorch.end()) {
    in.diagnostics().Error("CFG009", in.At("type"), in.Path("type"),
                           fmt::format("PyTorch's scheduler {} is not supported here", type), kSupported);
    return std::nullopt;
  }
  std::vector<std::string> names;
  for (const auto& entry : kTypes) names.push_back(entry.first);
  const std::optional<std::string> near = Suggest(type, names);
  in.diagnostics().Error("CFG012", in.At("type"), in.Path("type"), fmt::format("unknown scheduler \"{}\"", type),
                         near ? fmt::format("did you mean \"{}\"? {}", *near, kSupported) : kSupported);
  if (near) meant = kTypes[static_cast<size_t>(std::ranges::find(names, *near) - names.begin())].second;
  return std::nullopt;
}

void Missing(SectionReader& params, const char* key, const char* fix) {
  params.diagnostics().Error("CFG040", params.Here(), params.Path(key), "the schedule needs this key, and it is absent",
                             fix);
}

void ReadWarmupSteps(SectionReader& params, const TrainFlags& flags, SchedulerConfig& c) {
  params.Fill("warmup_num_steps", c.warmup_num_steps, flags.lr_warmup_iters, "--lr-warmup-iters", Between(1, 1e15),
              NeededByARun(flags));
  std::string type = "log";
  if (params.Read("warmup_type", type) && type != "log" && type != "linear") {
    params.diagnostics().Warning("CFG012", params.At("warmup_type"), params.Path("warmup_type"),
                                 fmt::format("unknown warm-up \"{}\": log is taken, as in DeepSpeed", type),
                                 "write \"log\" or \"linear\"");
    type = "log";
  }
  c.warmup_type = type == "linear" ? WarmupType::kLinear : WarmupType::kLog;
}

// The schedule's length is no flag of its own, so a written value need not equal --train-iters.
void ReadTotalSteps(SectionReader& params, const TrainFlags& flags, SchedulerConfig& c) {
  const char* key = "total_num_steps";
  const Range range = Between(1, 1e15);
  if (params.Has(key) && !params.IsAuto(key)) {
    params.Read(key, c.total_num_steps, range);
  } else if (flags.train_iters || params.IsAuto(key)) {
    params.Fill(key, c.total_num_steps, flags.train_iters, "--train-iters", range, NeededByARun(flags));
  } else {
    params.Know(key);
    const char* fix = "write it, or pass --train-iters";
    if (!flags.for_plan) return Missing(params, key, fix);
    params.diagnostics().Warning("CFG040", params.Here(), params.Path(key),
                                 "absent: no value is needed here, but `trireme train` stops without one", fix);
  }
  if (c.total_num_steps > 0 && c.total_num_steps < c.warmup_num_steps) {
    params.diagnostics().Warning(
        "CFG041", params.At(key), params.Path(key),
        fmt::format("{} is less than warmup_num_steps {}: the schedule ends inside its warm-up", c.total_num_steps,
                    c.warmup_num_steps),
        "raise total_num_steps or lower warmup_num_steps");
  }
}

// `absent` is the rate without the key; null and "auto" mean the optimizer's.
void ReadMaxLr(SectionReader& params, double optimizer_lr, double absent, SchedulerConfig& c) {
  const char* key = "warmup_max_lr";
  c.warmup_max_lr = absent;
  const JsonValue* value = params.Take(key);
  if (value != nullptr && (value->kind == JsonValue::Kind::kNull || value->IsAuto())) {
    c.warmup_max_lr = optimizer_lr;
    params.Record(key, ToText(optimizer_lr), "optimizer.params.lr");
  } else if (!params.Read(key, c.warmup_max_lr, AtLeast(0)) && c.type == SchedulerType::kWarmupLR) {
    params.Record(key, ToText(optimizer_lr), "default: optimizer.params.lr");
  }
}

void ReadMinLr(SectionReader& params, SchedulerConfig& c) {
  if (params.IsAuto("warmup_min_lr")) {
    params.Take("warmup_min_lr");
    params.Record("warmup_min_lr", "0", "default (\"auto\")");
  } else {
    params.Read("warmup_min_lr", c.warmup_min_lr, AtLeast(0));
  }
}

void ReadLastIteration(SectionReader& params, SchedulerConfig& c) {
  params.Read("last_batch_iteration", c.last_batch_iteration, AtLeast(-1));
}

void ReadRangeTest(SectionReader& params, SchedulerConfig& c) {
  params.Read("lr_range_test_min_lr", c.lr_range_test_min_lr, AtLeast(0));
  params.Read("lr_range_test_step_size", c.lr_range_test_step_size, Between(1, 1e15));
  params.Read("lr_range_test_step_rate", c.lr_range_test_step_rate);
  params.Read("lr_range_test_staircase", c.lr_range_test_staircase);
}

void ReadOneCycle(SectionReader& params, SchedulerConfig& c) {
  for (const char* key : {"cycle_min_lr", "cycle_max_lr"}) {
    if (!params.Has(key)) Missing(params, key, "write the learning rate");
  }
  params.Read("cycle_min_lr", c.cycle_min_lr, AtLeast(0));
  params.Read("cycle_max_lr", c.cycle_max_lr, AtLeast(0));
  params.Read("decay_lr_rate", c.decay_lr_rate);
  params.Read("cycle_first_step_size", c.cycle_first_step_size, Between(1, 1e15));
  params.Read("cycle_first_stair_count", c.cycle_first_stair_count, Between(0, 1e15));
  std::optional<int64_t> second_size, second_stairs;
  params.ReadOptional("cycle_second_step_size", second_size, Between(0, 1e15));
  params.ReadOptional("cycle_second_stair_count", second_stairs, Between(0, 1e15));
  c.cycle_second_step_size = second_size.value_or(c.cycle_first_step_size);
  c.cycle_second_stair_count = second_stairs.value_or(c.cycle_first_stair_count);
  if (!second_size) params.Record("cycle_second_step_size", ToText(c.cycle_second_step_size), "the first's");
  if (!second_stairs) params.Record("cycle_second_stair_count", ToText(c.cycle_second_stair_count), "the first's");
  params.Read("decay_step_size", c.decay_step_size, Between(0, 1e15));
  params.Read("cycle_momentum", c.cycle_momentum);
  params.Read("cycle_min_mom", c.cycle_min_mom, FromUpTo(0, 1));
  params.Read("cycle_max_mom", c.cycle_max_mom, FromUpTo(0, 1));
  params.Read("decay_mom_rate", c.decay_mom_rate);
}

}  // namespace

SchedulerConfig ParseScheduler(SectionReader in, const TrainFlags& flags, const OptimizerConfig& optimizer) {
  SchedulerConfig c;
  if (!in.Exists()) {
    in.Record("type", "none: the optimizer's lr, constant", "default");
    return c;
  }
  std::optional<SchedulerType> meant;
  const std::optional<SchedulerType> read = ReadType(in, meant), type = read ? read : meant;
  if (!in.Has("params")) {
    in.diagnostics().Error("CFG040", in.Here(), in.Path("params"), "the section has no params",
                           "write \"params\": {...}, which may be empty for WarmupLR and LRRangeTest");
  }
  if (!type || !in.Has("params")) {
    in.Take("params");
    in.RejectUnread();
    return c;
  }
  c.type = *type;
  SectionReader params = in.Section("params", SectionKind::kArguments);
  switch (c.type) {
    case SchedulerType::kNone:
      break;
    case SchedulerType::kWarmupLR:
    case SchedulerType::kWarmupDecayLR:
      ReadMinLr(params, c);
      ReadMaxLr(params, optimizer.lr, c.type == SchedulerType::kWarmupLR ? optimizer.lr : 1e-3, c);
      ReadWarmupSteps(params, flags, c);
      if (c.type == SchedulerType::kWarmupDecayLR) ReadTotalSteps(params, flags, c);
      break;
    case SchedulerType::kWarmupCosineLR:
      params.Read("warmup_min_ratio", c.warmup_min_ratio, AtLeast(0));
      params.Read("cos_min_ratio", c.cos_min_ratio, AtLeast(0));
      ReadWarmupSteps(params, flags, c);
      ReadTotalSteps(params, flags, c);
      break;
    case SchedulerType::kLRRangeTest:
      ReadRangeTest(params, c);
      break;
    case SchedulerType::kOneCycle:
      ReadOneCycle(params, c);
      break;
  }
  ReadLastIteration(params, c);
  params.RejectUnread();
  in.RejectUnread();
  return c;
}

}  // namespace trireme
