// "optimizer": Adam, AdamW, Adagrad, Lion, Lamb (any letter case) and SGD. Facts: DeepSpeed 0.19, engine.py
// _configure_basic_optimizer.
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "engine/base/strings.h"
#include "parsers/sections/sections.h"

namespace trireme {
namespace {

constexpr const char* kSupported = "supported: Adam, AdamW, SGD, Adagrad, Lion, Lamb";

// Names that DeepSpeed or PyTorch know, the nearest that works here, and what becomes different.
struct Refused {
  std::string_view lower, nearest, loss;
};
constexpr Refused kOthers[] = {
    {"onebitadam", "Adam",
     "it is this optimizer's own rule until freeze_step; afterwards the gradients keep travelling whole instead of in "
     "one "
     "bit (communication_data_type bf16 halves them)"},
    {"zerooneadam", "Adam",
     "its rule without frozen variances and skipped reductions: the gradients travel whole at every step "
     "(communication_data_type bf16 halves them)"},
    {"onebitlamb", "Lamb",
     "it is this optimizer's own rule until freeze_step; afterwards the gradients keep travelling whole instead of in "
     "one "
     "bit (communication_data_type bf16 halves them)"},
    {"muon", "AdamW",
     "momentum is not orthogonalised; AdamW needs its own lr (adam_lr of the file, not muon_lr) and, as a rule, more "
     "steps"},
    {"muadam", "Adam", "the rates of muP for each width are lost: choose lr for this width"},
    {"muadamw", "AdamW", "the rates of muP for each width are lost: choose lr for this width"},
    {"musgd", "SGD", "the rates of muP for each width are lost: choose lr for this width"},
    {"rmsprop", "Adam",
     "with betas [0, alpha], bias_correction false and adam_w_mode false it is the same rule without momentum; the "
     "variants \"centered\" and momentum are lost"},
    {"adamax", "Adam", "the largest gradient becomes the mean square one"},
    {"nadam", "Adam", "Nesterov's look-ahead of the momentum is lost"},
    {"radam", "Adam", "a scheduler with a warm-up takes the place of its rectified first steps"},
    {"adadelta", "Adagrad", "it needs an lr, and its squares are summed instead of averaged"},
    {"asgd", "SGD", "the averaged weights are lost"},
    {"rprop", "Lion", "the step has one size for all elements, lr; Rprop itself is for whole data sets"},
    {"lbfgs", "AdamW", "curvature is not estimated; LBFGS evaluates the loss several times a step"},
    {"sparseadam", "Adam", "gradients are dense: rows without a token decay their moments too"},
    {"adafactor", "AdamW", "second moments are kept whole, 4 bytes a parameter; ZeRO divides them over the ranks"},
};

constexpr KnownKey kKnown[] = {
    {"legacy_fusion", kNoEffect, "false", "the update is always fused"},
};

constexpr KnownKey kAdamParams[] = {
    {"amsgrad", kRefused, "false", "set it to false: neither DeepSpeed's Adam nor this one has it"},
    {"maximize", kRefused, "false", "set it to false"},
    {"set_grad_none", kNoEffect, "true", "it tunes PyTorch, not the result"},
    {"fp32_optimizer_states", kRefused, "true", "set it to true: the moments are fp32"},
    {"foreach", kNoEffect, "", "it tunes PyTorch, not the result"},
    {"fused", kNoEffect, "", "it tunes PyTorch, not the result"},
    {"capturable", kNoEffect, "false", "it tunes PyTorch, not the result"},
    {"differentiable", kNoEffect, "false", "it tunes PyTorch, not the result"},
};

constexpr KnownKey kAdagradParams[] = {
    {"amsgrad", kRefused, "false", "set it to false: Adagrad has no such variant"},
    {"maximize", kRefused, "false", "set it to false"},
    {"fp32_optimizer_states", kRefused, "true", "set it to true: the sums are fp32"},
    {"foreach", kNoEffect, "", "it tunes PyTorch, not the result"},
    {"fused", kNoEffect, "", "it tunes PyTorch, not the result"},
    {"differentiable", kNoEffect, "false", "it tunes PyTorch, not the result"},
};

constexpr KnownKey kLionParams[] = {
    {"set_grad_none", kNoEffect, "true", "it tunes PyTorch, not the result"},
    {"fp32_optimizer_states", kRefused, "true", "set it to true: the momentum is fp32"},
};

constexpr KnownKey kLambParams[] = {
    {"amsgrad", kRefused, "false", "set it to false: neither DeepSpeed's Lamb nor this one has it"},
};

constexpr KnownKey kSgdParams[] = {
    {"maximize", kRefused, "false", "set it to false"},
    {"foreach", kNoEffect, "", "it tunes PyTorch, not the result"},
    {"fused", kNoEffect, "", "it tunes PyTorch, not the result"},
    {"differentiable", kNoEffect, "false", "it tunes PyTorch, not the result"},
};

// The type, or nullopt with the reason reported; `meant` is then the type that it was most likely to be.
std::optional<OptimizerType> ReadType(SectionReader& in, std::optional<OptimizerType>& meant) {
  std::string type;
  if (!in.Read("type", type)) {
    if (!in.Has("type")) {
      in.diagnostics().Error("CFG012", in.Here(), in.Path("type"), "the section has no type", kSupported);
    }
    return std::nullopt;
  }
  const std::string lower = ToLower(type);
  for (const OptimizerType known : {OptimizerType::kAdam, OptimizerType::kAdamW, OptimizerType::kAdagrad,
                                    OptimizerType::kLion, OptimizerType::kLamb}) {
    if (lower == ToLower(Name(known))) return known;
  }
  if (type == "SGD") return OptimizerType::kSgd;
  const auto refused = std::ranges::find(kOthers, std::string_view(lower), &Refused::lower);
  if (refused != std::end(kOthers)) {
    in.diagnostics().Error("CFG009", in.At("type"), in.Path("type"),
                           fmt::format("the optimizer {} of DeepSpeed or PyTorch is not supported here", type),
                           fmt::format("use {}: {}; {}", refused->nearest, refused->loss, kSupported));
    return std::nullopt;
  }
  static const std::vector<std::string> kNames = {"adam", "adamw", "sgd", "adagrad", "lion", "lamb"};
  static const std::vector<std::string> kSpelled = {"Adam", "AdamW", "SGD", "Adagrad", "Lion", "Lamb"};
  const std::optional<std::string> near = Suggest(lower, kNames);
  const size_t i = near ? static_cast<size_t>(std::ranges::find(kNames, *near) - kNames.begin()) : 0;
  in.diagnostics().Error("CFG012", in.At("type"), in.Path("type"), fmt::format("unknown optimizer \"{}\"", type),
                         near ? fmt::format("did you mean \"{}\"? {}", kSpelled[i], kSupported) : kSupported);
  static constexpr std::array kTypes = {OptimizerType::kAdam,    OptimizerType::kAdamW, OptimizerType::kSgd,
                                        OptimizerType::kAdagrad, OptimizerType::kLion,  OptimizerType::kLamb};
  if (near) meant = kTypes[i];
  return std::nullopt;
}

// One flag may be set alone: it then stands against the default of the other.
void ReadBetas(SectionReader& params, const TrainFlags& flags, OptimizerConfig& c) {
  const Range range = FromUpTo(0, 1);
  if (params.Find("betas") != nullptr && !params.IsAuto("betas")) {
    if (!params.Read("betas", c.betas, range)) return;
    const std::optional<double> wanted[2] = {flags.adam_beta1, flags.adam_beta2};
    for (size_t i = 0; i < 2; ++i) {
      if (!wanted[i] || *wanted[i] == c.betas[i]) continue;
      const std::string flag = fmt::format("--adam-beta{}", i + 1);
      params.diagnostics().Error(
          "CFG008", params.At("betas"), params.Path("betas"),
          fmt::format("the config says {}, but {} says {}", c.betas[i], flag, *wanted[i]),
          fmt::format("remove {}, or write \"auto\" in the file so that the flag decides", flag));
    }
    return;
  }
  const bool is_auto = params.IsAuto("betas");
  params.Take("betas");
  std::string source;
  for (const auto& [flag, name, i] : {std::tuple(flags.adam_beta1, "--adam-beta1", size_t{0}),
                                      std::tuple(flags.adam_beta2, "--adam-beta2", size_t{1})}) {
    if (!flag) continue;
    if (!range.Contains(*flag)) {
      params.diagnostics().Error("CFG006", params.At("betas"), params.Path("betas"),
                                 fmt::format("{} ({}) is out of range: it must be {}", *flag, name, range.Text()),
                                 fmt::format("set a value {}", range.Text()));
      continue;
    }
    c.betas[i] = *flag;
    source += source.empty() ? name : std::string(", ") + name;
  }
  if (source.empty()) source = is_auto ? "default (\"auto\")" : "default";
  params.Record("betas", fmt::format("[{}, {}]", c.betas[0], c.betas[1]), source);
}

void ReadLr(SectionReader& params, const TrainFlags& flags, OptimizerConfig& c) {
  params.Fill("lr", c.lr, flags.lr, "--lr", AtLeast(0), NeededByARun(flags));
}

void ReadAdam(SectionReader& params, const TrainFlags& flags, OptimizerConfig& c) {
  params.Read("torch_adam", c.torch_adam);
  if (c.torch_adam && c.type == OptimizerType::kAdamW) c.weight_decay = 0.01;  // PyTorch's default
  params.Read("adam_w_mode", c.adam_w_mode);
  c.decoupled_weight_decay = c.type == OptimizerType::kAdamW || c.adam_w_mode;
  ReadLr(params, flags, c);
  ReadBetas(params, flags, c);
  params.Fill("eps", c.eps, flags.adam_eps, "--adam-eps", AtLeast(0));
  params.Fill("weight_decay", c.weight_decay, flags.weight_decay, "--weight-decay", AtLeast(0));
  if (params.Read("bias_correction", c.bias_correction) && !c.bias_correction && c.torch_adam) {
    params.diagnostics().Error("CFG014", params.At("bias_correction"), params.Path("bias_correction"),
                               "PyTorch's Adam always corrects the bias, and torch_adam asks for it",
                               "remove torch_adam or bias_correction");
  }
}

void ReadSgd(SectionReader& params, const TrainFlags& flags, OptimizerConfig& c) {
  c.decoupled_weight_decay = false;
  ReadLr(params, flags, c);
  params.Fill("weight_decay", c.weight_decay, flags.weight_decay, "--weight-decay", AtLeast(0));
  params.Read("momentum", c.momentum, AtLeast(0));
  params.Read("dampening", c.dampening);
  params.Read("nesterov", c.nesterov);
  if (c.nesterov && (c.momentum <= 0 || c.dampening != 0)) {
    params.diagnostics().Error(
        "CFG014", params.At("nesterov"), params.Path("nesterov"),
        fmt::format("Nesterov needs momentum above 0 and dampening 0; they are {} and {}", c.momentum, c.dampening),
        "set momentum and remove dampening, or remove nesterov");
  }
}

void ReadAdagrad(SectionReader& params, const TrainFlags& flags, OptimizerConfig& c) {
  c.decoupled_weight_decay = false;
  c.lr = 1e-2;
  c.eps = 1e-10;
  ReadLr(params, flags, c);
  params.Fill("eps", c.eps, flags.adam_eps, "--adam-eps", AtLeast(0));
  params.Fill("weight_decay", c.weight_decay, flags.weight_decay, "--weight-decay", AtLeast(0));
  params.Read("lr_decay", c.lr_decay, AtLeast(0));
  params.Read("initial_accumulator_value", c.initial_accumulator_value, AtLeast(0));
}

void ReadLion(SectionReader& params, const TrainFlags& flags, OptimizerConfig& c) {
  ReadLr(params, flags, c);
  ReadBetas(params, flags, c);
  params.Fill("weight_decay", c.weight_decay, flags.weight_decay, "--weight-decay", AtLeast(0));
}

void ReadLamb(SectionReader& params, const TrainFlags& flags, OptimizerConfig& c) {
  ReadLr(params, flags, c);
  ReadBetas(params, flags, c);
  params.Fill("eps", c.eps, flags.adam_eps, "--adam-eps", AtLeast(0));
  params.Fill("weight_decay", c.weight_decay, flags.weight_decay, "--weight-decay", AtLeast(0));
  params.Read("bias_correction", c.bias_correction);
  params.Read("eps_inside_sqrt", c.eps_inside_sqrt);
  params.Read("max_coeff", c.max_coeff, AtLeast(0));
  params.Read("min_coeff", c.min_coeff, AtLeast(0));
  if (c.min_coeff > c.max_coeff) {
    params.diagnostics().Error("CFG014", params.At("min_coeff"), params.Path("min_coeff"),
                               fmt::format("min_coeff {} is above max_coeff {}", c.min_coeff, c.max_coeff),
                               "exchange them, or remove one");
  }
}

// What of `type` stands in params, all of it.
void ReadParams(SectionReader& params, const TrainFlags& flags, OptimizerConfig& c) {
  switch (c.type) {
    case OptimizerType::kAdam:
    case OptimizerType::kAdamW:
      ReadAdam(params, flags, c);
      return params.RejectUnread(kAdamParams);
    case OptimizerType::kSgd:
      ReadSgd(params, flags, c);
      return params.RejectUnread(kSgdParams);
    case OptimizerType::kAdagrad:
      ReadAdagrad(params, flags, c);
      return params.RejectUnread(kAdagradParams);
    case OptimizerType::kLion:
      ReadLion(params, flags, c);
      return params.RejectUnread(kLionParams);
    case OptimizerType::kLamb:
      ReadLamb(params, flags, c);
      return params.RejectUnread(kLambParams);
  }
}

// Clipping sits at the top level; here DeepSpeed refuses it, and silence would train without the user's value.
void RefuseMaxGradNorm(SectionReader& params) {
  const JsonValue* value = params.Take("max_grad_norm");
  if (value == nullptr) return;
  params.diagnostics().Error(
      "CFG033", params.At("max_grad_norm"), params.Path("max_grad_norm"),
      fmt::format("{} stands among the optimizer's parameters, which clip nothing", Describe(*value)),
      "move it to \"gradient_clipping\" at the top level");
}

void RecordRule(SectionReader& in, const OptimizerConfig& c, bool written) {
  const char* rule = c.decoupled_weight_decay ? "true (p -= lr*wd*p)" : "false (g += wd*p)";
  if (c.type == OptimizerType::kLamb) rule = "true (u += wd*p, before the trust ratio)";
  in.Record("decoupled_weight_decay", rule, fmt::format("derived from type {}", Name(c.type)));
  if (written && c.type == OptimizerType::kAdam && c.decoupled_weight_decay && c.weight_decay > 0) {
    in.diagnostics().Notice(
        "CFG034", in.At("type"), in.Path("type"),
        fmt::format("Adam decays its weights decoupled, as AdamW does, by {}: adam_w_mode is true", c.weight_decay),
        "set adam_w_mode to false for L2 decay in the gradient");
  }
}

// A plan needs no rate, and says that the run will.
void TellMissing(SectionReader& in, bool for_plan) {
  in.diagnostics().Add(
      {for_plan ? Severity::kWarning : Severity::kError, "CFG035", in.Here(), "optimizer",
       for_plan ? "the file has no optimizer section: the plan has AdamW, and `trireme train` stops unless it has --lr"
                : "the file has no optimizer section and --lr is not given",
       "write \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}}, or pass --lr"});
}

}  // namespace

OptimizerConfig ParseOptimizer(SectionReader in, const TrainFlags& flags) {
  OptimizerConfig c;
  if (!in.Exists()) {  // files for Hugging Face leave it to the program, which takes AdamW
    c.type = OptimizerType::kAdamW;
    if (!flags.lr) TellMissing(in, flags.for_plan);
    in.Record("type", "AdamW", "default (no section)");
  } else {
    std::optional<OptimizerType> meant;
    const std::optional<OptimizerType> type = ReadType(in, meant);
    if (!type && !meant) {
      in.Take("params");
      in.RejectUnread(kKnown);
      return c;
    }
    c.type = type ? *type : *meant;  // what is wrong with the params is said at once
  }
  SectionReader params = in.Section("params", SectionKind::kArguments, /*null_is_absent=*/true);
  RefuseMaxGradNorm(params);
  ReadParams(params, flags, c);
  RecordRule(in, c, in.Exists());
  in.RejectUnread(kKnown);
  return c;
}

}  // namespace trireme
