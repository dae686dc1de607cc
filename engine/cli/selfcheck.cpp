// `trireme selfcheck`: whether all layouts train alike on this machine.
#include <fmt/core.h>

#include <cstdio>
#include <string>

#include "engine/base/error.h"
#include "engine/cli/commands.h"
#include "engine/trainer/selfcheck.h"
#include "parsers/cli.h"
#include "parsers/flag_set.h"
#include "parsers/model_config.h"

namespace trireme::cli {
namespace {

struct Request {
  std::string config, device, dtype = "fp64", help_text;
  ModelFlags model;
  int64_t ranks = 0, steps = 20;
  double tolerance = 0;
  bool oversubscribe = false, json = false, help = false;
};

Request Parse(Arguments arguments) {
  Request r;
  FlagSet flags("selfcheck");
  flags.AddPositional("ds_config.json", "its optimizer, scheduler and clipping are used; a plain AdamW without it",
                      r.config);
  flags.AddHeading("Trains a small model in every layout of the ranks and compares each with one rank:");
  flags.Add("model_name", "NAME", "the family and features of this model, in small; gpt-125m if not given",
            r.model.model_name);
  flags.Add("ranks", "N", "0: all GPUs where there are two or more, else 4 CPU ranks", r.ranks);
  flags.Add("device", "cpu|cuda", "GPUs where there are enough if not given", r.device);
  flags.Add("oversubscribe", "let the ranks share the GPUs there are: slower, and as good a check", r.oversubscribe);
  flags.Add("dtype", "fp64|fp32|bf16", "fp64 shows a missing collective, the others the kernels that training uses",
            r.dtype);
  flags.Add("steps", "N", "optimizer steps of each layout", r.steps);
  flags.Add("tolerance", "X", "relative difference of losses and norms that passes; 0: 1e-10, 1e-4 or 0.05 by dtype",
            r.tolerance);
  flags.Add("json", "one JSON object a layout", r.json);
  flags.Add("help", "this text", r.help);
  r.help_text = flags.Help();
  flags.Parse(arguments);
  return r;
}

// All ranks of a GPU are threads of this process, whose streams share 32 hardware queues.
constexpr int64_t kMostRanksPerGpu = 4;

[[noreturn]] void Fail(const std::string& what, const char* where, const std::string& fix) {
  throw Error(ErrorCode::kUsage, "USE002", what, where, fix);
}

SelfcheckOptions OptionsOf(const Request& r, double& tolerance) {
  SelfcheckOptions options;
  if (r.dtype == "fp64" || r.dtype == "fp32" || r.dtype == "bf16") {
    options.dtype = r.dtype == "fp64" ? DType::kFloat64 : r.dtype == "fp32" ? DType::kFloat32 : DType::kBFloat16;
  } else {
    Fail(fmt::format("\"{}\" is no type of this check", r.dtype), "--dtype", "pass fp64, fp32 or bf16");
  }
  if (r.steps < 1) Fail(fmt::format("{} steps compare nothing", r.steps), "--steps", "pass at least 1");
  if (r.ranks < 0 || r.ranks > 64) Fail(fmt::format("{} ranks are out of range", r.ranks), "--ranks", "pass 2 to 64");
  if (!r.device.empty() && r.device != "cpu" && r.device != "cuda") {
    Fail(fmt::format("\"{}\" is no device", r.device), "--device", "pass cpu or cuda");
  }
  tolerance = r.tolerance > 0 ? r.tolerance : r.dtype == "fp64" ? 1e-10 : r.dtype == "fp32" ? 1e-4 : 0.05;
  if (r.oversubscribe) PrepareSharedGpus();
  const int64_t gpus = r.device == "cpu" ? 0 : VisibleGpus();
  const int64_t wanted = r.ranks > 0 ? r.ranks : gpus >= 2 ? gpus : 4;
  options.cuda = gpus >= wanted || (r.oversubscribe && gpus > 0);
  if (r.device == "cuda" && !options.cuda) {
    Fail(fmt::format("{} ranks need {} GPUs, this host shows {}", wanted, wanted, gpus), "--device cuda",
         gpus > 0 ? "pass fewer --ranks, --oversubscribe to let them share a GPU, or --device cpu"
                  : "pass --device cpu");
  }
  if (options.cuda && gpus < wanted) options.shared_gpus = static_cast<int>(gpus);
  if (options.shared_gpus > 0 && wanted > kMostRanksPerGpu * gpus) {
    Fail(fmt::format("{} ranks on {} GPUs; this check runs at most {} on each, whose streams need hardware queues of "
                     "their own",
                     wanted, gpus, kMostRanksPerGpu),
         "--oversubscribe", fmt::format("pass --ranks {} or fewer", kMostRanksPerGpu * gpus));
  }
  options.ranks = static_cast<int>(wanted);
  Diagnostics diagnostics;
  ModelFlags model = r.model;
  if (model.model_name.empty()) model.model_name = "gpt-125m";
  options.model = ResolveModel(model, "", 1, diagnostics);
  if (!r.config.empty()) {
    TrainFlags fill;
    fill.for_plan = true;
    // Batch keys do not matter here: the check has its own.
    ParseResult parsed = ParseConfigFile(r.config, fill, 1, options.model.hidden_size);
    for (const Problem& problem : parsed.diagnostics.problems()) diagnostics.Add(problem);
    options.config = parsed.config;
  } else {
    options.config.optimizer.lr = 1e-3;
  }
  diagnostics.ThrowIfErrors();
  return options;
}

void Print(const SelfcheckResult& result, bool agrees, bool json) {
  if (json) {
    fmt::print(
        "{{\"layout\": \"{}\", \"ranks\": {}, \"loss_difference\": {:.3g}, \"norm_difference\": {:.3g}, "
        "\"seconds\": {:.2f}, \"agrees\": {}}}\n",
        Describe(result.layout), result.layout.ranks(), result.loss_error, result.norm_error, result.seconds, agrees);
  } else {
    fmt::print("{:<52} {:>10.2e} {:>10.2e} {:>7.1f} s  {}\n", Describe(result.layout), result.loss_error,
               result.norm_error, result.seconds, agrees ? "ok" : "DIFFERS");
    if (!result.failed.empty()) fmt::print("{}\n", result.failed);
  }
  std::fflush(stdout);
}

}  // namespace

int RunSelfcheck(Arguments arguments) {
  const Request request = Parse(arguments);
  if (request.help) {
    fmt::print("{}", request.help_text);
    return 0;
  }
  double tolerance = 0;
  const SelfcheckOptions options = OptionsOf(request, tolerance);
  Selfcheck check(options);
  const std::vector<SelfcheckLayout> layouts = check.Layouts();
  if (!request.json) {
    fmt::print("{} layouts of {} {} ranks, {} steps of {} in {}, against one rank; tolerance {:g}\n\n", layouts.size(),
               layouts.front().ranks(), request.device == "cpu" ? "CPU" : "", request.steps, check.model().name,
               request.dtype, tolerance);
    if (options.shared_gpus > 0) {
      fmt::print("The ranks share {} GPU(s): this tries layouts, and its times say nothing about speed.\n\n",
                 options.shared_gpus);
    }
    fmt::print("{:<52} {:>10} {:>10} {:>9}\n", "layout", "loss", "norm", "time");
  }
  size_t differing = 0;
  for (const SelfcheckLayout& layout : layouts) {
    const SelfcheckResult result = check.Run(layout);
    const bool agrees = result.failed.empty() && result.loss_error <= tolerance && result.norm_error <= tolerance;
    differing += agrees ? 0 : 1;
    Print(result, agrees, request.json);
  }
  if (!request.json) {
    fmt::print("\n{}\n", differing == 0 ? fmt::format("all {} layouts agree", layouts.size())
                                        : fmt::format("{} of {} layouts differ", differing, layouts.size()));
  }
  return differing == 0 ? 0 : ExitCode(ErrorCode::kCheckFailed);
}

}  // namespace trireme::cli
