// "zero_optimization.offload_optimizer" and "offload_param". Facts: DeepSpeed 0.19, runtime/zero/offload_config.py.
#include <fmt/core.h>

#include "parsers/sections/sections.h"

namespace trireme {
namespace {

constexpr const char* kTunes = "it tunes a mechanism that this program does not have; the result is the same";

constexpr const char* kReadsAhead = "states on a disk are always read ahead and written behind";
constexpr const char* kPages = "weights on a disk lie in a mapped file, of which the system keeps in memory what fits";

constexpr KnownKey kKnownOfOptimizer[] = {
    {"super_offload", kNoEffect, "false", "updates always run bucket by bucket, under copies in both directions"},
    {"cpuadam_cores_perc", kNoEffect, "0.8", kTunes},
    {"pipeline_read", kNoEffect, "false", kReadsAhead},
    {"pipeline_write", kNoEffect, "false", kReadsAhead},
    {"fast_init", kNoEffect, "false", kTunes},
};
constexpr KnownKey kKnownOfParam[] = {
    {"buffer_count", kNoEffect, "5", kPages},
    {"buffer_size", kNoEffect, "100000000", kPages},
    {"max_in_cpu", kNoEffect, "1000000000", kPages},
};

// The keys of an offload object; nothing where it is absent, off by an old name, or wrong. `device` becomes what the
// old boolean says.
std::optional<SectionReader> Find(SectionReader& zero, const char* key, const char* old_key, OffloadDevice& device) {
  bool old_on = false;
  const bool has_old = zero.Has(old_key), has_new = zero.Has(key);
  if (has_old) zero.Read(old_key, old_on);
  zero.Know(old_key);
  if (has_old && has_new) {
    zero.diagnostics().Error("CFG011", zero.At(old_key), zero.Path(old_key),
                             fmt::format("{} here, and its new name {} is set too", ToText(old_on), key),
                             fmt::format("keep {} only", key));
  } else if (old_on) {
    device = OffloadDevice::kCpu;
    zero.diagnostics().Notice("CFG011", zero.At(old_key), zero.Path(old_key), "an old name",
                              fmt::format("write \"{}\": {{\"device\": \"cpu\"}}", key));
  }
  const JsonValue* value = zero.Take(key);
  if (value == nullptr || value->kind == JsonValue::Kind::kNull || value->IsAuto()) {
    zero.Record(key, old_on ? "cpu" : "none", old_on ? old_key : "default");
    return std::nullopt;
  }
  if (value->kind == JsonValue::Kind::kObject) return zero.Section(key, SectionKind::kChecked);
  zero.diagnostics().Error("CFG005", zero.At(key), zero.Path(key), fmt::format("{} is no object", Describe(*value)),
                           "write {\"device\": \"cpu\"}, or remove the key");
  return std::nullopt;
}

void ReadDevice(SectionReader& in, OffloadDevice& device) {
  std::string name = "none";
  in.Read("device", name);
  if (in.IsAuto("device")) {
    in.diagnostics().Notice("CFG015", in.At("device"), in.Path("device"), "\"auto\" is none, as in DeepSpeed alone",
                            "write \"cpu\" or \"none\"");
  }
  if (name == "cpu" || name == "nvme") {
    device = name == "cpu" ? OffloadDevice::kCpu : OffloadDevice::kNvme;
  } else if (name != "none") {
    in.diagnostics().Error("CFG012", in.At("device"), in.Path("device"), fmt::format("\"{}\" is no device", name),
                           "write \"none\", \"cpu\" or \"nvme\", in lower case");
  }
}

void ReadPath(SectionReader& in, OffloadDevice device, std::string& path) {
  std::optional<std::string> written;
  in.ReadOptional("nvme_path", written);
  path = written.value_or("");
  if (device != OffloadDevice::kNvme || !path.empty()) return;
  in.diagnostics().Error("CFG036", in.At("nvme_path"), in.Path("nvme_path"), "absent, and the device is nvme",
                         "name a folder on a local disk");
}

// Below stage 3 DeepSpeed takes nvme for cpu, and asks for no folder.
void ReadPathOrStay(SectionReader& in, OffloadDevice& device, std::string& path) {
  std::optional<std::string> written;
  in.ReadOptional("nvme_path", written);
  path = written.value_or("");
  if (device != OffloadDevice::kNvme || !path.empty()) return;
  device = OffloadDevice::kCpu;
  in.diagnostics().Notice("CFG010", in.At("device"), in.Path("device"), "nvme without nvme_path: host memory",
                          "name a folder on a local disk for files there");
}

OffloadOptimizerConfig ReadOptimizer(SectionReader& zero, int stage) {
  OffloadOptimizerConfig c;
  std::optional<SectionReader> in = Find(zero, "offload_optimizer", "cpu_offload", c.device);
  if (!in) return c;
  ReadDevice(*in, c.device);
  if (stage == 3) {
    ReadPath(*in, c.device, c.nvme_path);
  } else {
    ReadPathOrStay(*in, c.device, c.nvme_path);
  }
  in->Read("pin_memory", c.pin_memory);
  in->Read("buffer_count", c.buffer_count, AtLeast(0));
  in->Read("ratio", c.ratio, Between(0, 1));
  if (c.ratio < 1 && stage != 3) {
    in->diagnostics().Error("CFG036", in->At("ratio"), in->Path("ratio"),
                            fmt::format("{} at stage {}: a share below 1 needs stage 3", ToText(c.ratio), stage),
                            "set the stage to 3, or ratio to 1");
  }
  in->RejectUnread(kKnownOfOptimizer);
  return c;
}

OffloadParamConfig ReadParam(SectionReader& zero) {
  OffloadParamConfig c;
  std::optional<SectionReader> in = Find(zero, "offload_param", "cpu_offload_param", c.device);
  if (!in) return c;
  ReadDevice(*in, c.device);
  ReadPath(*in, c.device, c.nvme_path);
  in->Read("pin_memory", c.pin_memory);
  in->RejectUnread(kKnownOfParam);
  return c;
}

// `works`: whether the stage has what is to be offloaded.
void DropWithoutEffect(SectionReader& zero, const char* key, int stage, bool works, OffloadDevice& device) {
  if (works || device == OffloadDevice::kNone) return;
  device = OffloadDevice::kNone;
  zero.Record(fmt::format("{}.device", key), "none", fmt::format("derived: no effect at stage {}", stage));
  zero.diagnostics().Notice("CFG010", zero.At(key), zero.Path(key),
                            fmt::format("no effect at stage {}, as in DeepSpeed", stage));
}

}  // namespace

void ReadOffload(SectionReader& zero, ZeroConfig& c) {
  c.offload_optimizer = ReadOptimizer(zero, c.zero_stage);
  c.offload_param = ReadParam(zero);
  DropWithoutEffect(zero, "offload_optimizer", c.zero_stage, c.zero_stage >= 1, c.offload_optimizer.device);
  DropWithoutEffect(zero, "offload_param", c.zero_stage, c.zero_stage == 3, c.offload_param.device);
}

}  // namespace trireme
