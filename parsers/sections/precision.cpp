// "fp16", "bf16" (old name "bfloat16") and "data_types".
#include <fmt/core.h>

#include "parsers/sections/sections.h"
#include "parsers/text_values.h"

namespace trireme {
namespace {

// bf16 blocks of older files carry the keys of fp16; DeepSpeed ignored them until 0.17.
constexpr const char* kNoScale = "bf16 uses no loss scale";
constexpr const char* kInputs = "the inputs of a GPT are token ids, which nothing casts";
constexpr const char* kMasters = "set it to false: master weights and moments are fp32";
constexpr KnownKey kBf16Known[] = {
    {"check_grad_overflow", kNoEffect, "true", "a gradient that is not finite skips the update at every ZeRO stage"},
    {"immediate_grad_update", kNoEffect, "false", "it says when gradients are added up; the sums are the same"},
    {"bf16_master_weights_and_grads", kRefused, "false", kMasters},
    {"bf16_optimizer_states", kRefused, "false", kMasters},
    {"loss_scale", kNoEffect, "", kNoScale},
    {"loss_scale_window", kNoEffect, "", kNoScale},
    {"initial_scale_power", kNoEffect, "", kNoScale},
    {"hysteresis", kNoEffect, "", kNoScale},
    {"consecutive_hysteresis", kNoEffect, "", kNoScale},
    {"min_loss_scale", kNoEffect, "", kNoScale},
    {"auto_cast", kNoEffect, "false", kInputs},
    {"accumulate_grads_in_fp32", kNoEffect, "true", "data_types.grad_accum_dtype decides, and is fp32 by default"},
    {"check_overflow", kNoEffect, "", "the key's name is check_grad_overflow"},
};
// Members of older files that DeepSpeed ignored until 0.17.
constexpr KnownKey kFp16Known[] = {
    {"auto_cast", kNoEffect, "false", kInputs},         {"fp16_master_weights_and_grads", kRefused, "false", kMasters},
    {"type", kNoEffect, "fp16", "old files carry it"},  {"fp16", kNoEffect, "true", "old files carry it"},
    {"opt_level", kNoEffect, "", "old files carry it"},
};
constexpr KnownKey kDataTypesKnown[] = {
    {"param_dtype", kNoEffect, "", "fp16.enabled and bf16.enabled decide"},
    {"buffer_dtype", kNoEffect, "", "the models have no buffers"},
    {"keep_in_fp32_modules", kNoEffect, "", "the models have no buffers"},
};

// "enabled": a flag that is given fills "auto" and absent keys; without one "auto" is off, as in DeepSpeed alone.
void ReadEnabled(SectionReader& in, bool flag, const char* flag_name, bool& enabled) {
  const bool is_auto = in.IsAuto("enabled");
  in.Fill("enabled", enabled, flag ? std::optional<bool>(true) : std::nullopt, flag_name);
  if (is_auto && !flag) {
    in.diagnostics().Notice("CFG015", in.At("enabled"), in.Path("enabled"),
                            fmt::format("\"auto\" without {} is off, as in DeepSpeed alone", flag_name),
                            fmt::format("pass {}, or write true or false", flag_name));
  }
}

// In fp16 DeepSpeed takes no boolean for a number where it decides about scaling.
void RefuseBooleans(SectionReader& in) {
  for (const char* key : {"loss_scale", "loss_scale_window"}) {
    const JsonValue* value = in.Find(key);
    if (value == nullptr || value->kind != JsonValue::Kind::kBool) continue;
    in.diagnostics().Error("CFG005", in.At(key), in.Path(key), fmt::format("{} is no number", Describe(*value)),
                           std::string_view(key) == "loss_scale"
                               ? "write 0 for a dynamic scale, or the static scale, for example 1024"
                               : "write how many good steps double the scale, for example 1000");
  }
}

}  // namespace

Fp16Config ParseFp16(SectionReader in, const TrainFlags& flags) {
  Fp16Config c;
  ReadEnabled(in, flags.fp16, "--fp16", c.enabled);
  RefuseBooleans(in);
  in.Read("loss_scale", c.loss_scale, AtLeast(0));
  in.Read("initial_scale_power", c.initial_scale_power, Between(-126, 127));
  const bool window = in.Read("loss_scale_window", c.loss_scale_window);
  const bool hysteresis = in.Read("hysteresis", c.hysteresis);
  in.Read("consecutive_hysteresis", c.consecutive_hysteresis);
  const bool floor = in.Read("min_loss_scale", c.min_loss_scale);
  if (c.enabled && c.loss_scale == 0) {  // DeepSpeed checks the scaler's keys with a dynamic scale only
    if (window && c.loss_scale_window < 1) {
      in.diagnostics().Error("CFG006", in.At("loss_scale_window"), in.Path("loss_scale_window"),
                             fmt::format("{} is out of range: it must be at least 1", c.loss_scale_window),
                             "set a value at least 1");
    }
    if (floor && c.min_loss_scale <= 0) {
      in.diagnostics().Error("CFG006", in.At("min_loss_scale"), in.Path("min_loss_scale"),
                             fmt::format("{} is out of range: it must be above 0", c.min_loss_scale),
                             "set a value above 0");
    }
    if (hysteresis && c.hysteresis < 1) {  // DeepSpeed counts down from it and lowers the scale at exactly 1
      in.diagnostics().Warning(
          "CFG054", in.At("hysteresis"), in.Path("hysteresis"),
          fmt::format("{}: no overflow ever lowers the loss scale at ZeRO stages 1 to 3, as in DeepSpeed",
                      c.hysteresis),
          "write 1: the first overflow halves the scale; or 2, the default: the second");
    }
  }
  in.RejectUnread(kFp16Known);
  return c;
}

Bf16Config ParseBf16(SectionReader& root, const TrainFlags& flags) {
  // The old name is read only where the new one is absent or null, as in DeepSpeed.
  const bool old_name = !root.Has("bf16") && root.Has("bfloat16");
  SectionReader in = root.Section(old_name ? "bfloat16" : "bf16", SectionKind::kChecked, /*null_is_absent=*/true);
  root.Take(old_name ? "bf16" : "bfloat16");
  if (old_name) {
    root.diagnostics().Notice("CFG011", root.At("bfloat16"), "bfloat16", "an old name", "write \"bf16\"");
  }
  Bf16Config c;
  ReadEnabled(in, flags.bf16, "--bf16", c.enabled);
  in.RejectUnread(kBf16Known);
  if (!old_name && root.Has("bfloat16")) {
    const JsonMember* other = root.Take("bfloat16")->Find("enabled");
    if (other != nullptr && other->value.kind == JsonValue::Kind::kBool && other->value.boolean != c.enabled) {
      root.diagnostics().Error(
          "CFG011", root.At("bfloat16"), "bfloat16.enabled",
          fmt::format("{} here, but bf16.enabled, the new name of the section, is {}", other->value.boolean, c.enabled),
          "keep the section bf16 only");
    }
  }
  return c;
}

DataTypesConfig ParseDataTypes(SectionReader in) {
  DataTypesConfig c;
  std::optional<std::string> text;
  if (in.ReadOptional("grad_accum_dtype", text)) {
    c.grad_accum_dtype = DTypeFromText(*text);
    const DType dtype = c.grad_accum_dtype.value_or(DType::kInt8);
    if (dtype != DType::kFloat32 && dtype != DType::kBFloat16 && dtype != DType::kFloat16) {
      in.diagnostics().Error("CFG012", in.At("grad_accum_dtype"), in.Path("grad_accum_dtype"),
                             fmt::format("{} is no type for gradients", Quoted(*text)),
                             "write fp32, or the type of the weights");
      c.grad_accum_dtype.reset();
    }
  }
  in.RejectUnread(kDataTypesKnown);
  return c;
}

}  // namespace trireme
