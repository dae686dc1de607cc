// trireme plan: what a config means for a model on so many ranks, without a GPU and without LibTorch. Exit code 1 if it
// does not fit the memory that --gpu-memory-gib names.
#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/base/strings.h"
#include "engine/cli/commands.h"
#include "engine/plan/notes.h"
#include "engine/plan/plan.h"
#include "engine/schedule/verify.h"
#include "parsers/cli.h"
#include "parsers/config.h"
#include "parsers/model_config.h"

namespace trireme::cli {
namespace {

// Of a GPU's memory, what the driver, the libraries and their own scratch take; a plan above 95 % of the rest is called
// tight.
constexpr double kReservedBytes = 1e9;
constexpr double kTightShare = 0.95;

void Line(std::string_view title, const std::string& text) { fmt::print("{:<12}{}\n", title, text); }

void PrintModel(const Plan& plan) {
  const ModelSpec& m = plan.model;
  Line("model", fmt::format("{}: {} layers, hidden size {}, {} heads, vocabulary {} ({} rows), {} positions, {} head",
                            m.name, m.num_layers, m.hidden_size, m.num_attention_heads, m.vocab_size,
                            m.padded_vocab_size, m.max_position_embeddings, m.tie_word_embeddings ? "tied" : "own"));
  Line("parameters", FormatCount(plan.num_parameters));
}

void PrintBatch(const Plan& plan, const PlanOptions& options) {
  const BatchPlan& b = plan.batch;
  const Topology& t = plan.topology;
  Line("batch", fmt::format("train_batch_size {} = {} (micro) x {} (accumulation) x {} (dp)", b.train_batch_size,
                            b.micro_batch_size, b.num_micro_batches, t.dp_size));
  const char* most = b.is_dynamic() ? "up to " : "";
  Line("", fmt::format("{}{} tokens a sequence, {}{} a micro-batch, {}{} a step", most, FormatCount(b.sequence_length),
                       most, FormatCount(b.tokens_per_micro_batch()), most, FormatCount(b.tokens_per_step())));
  if (b.is_dynamic()) {
    Line("", fmt::format("dynamic batching: micro-batches of {} to {} sequences, lengths in multiples of {}",
                         b.dynamic.min_rows, FormatCount(b.dynamic.max_rows), b.dynamic.length_multiple));
  }
  Line("ranks",
       fmt::format("{} = {} nodes x {}; grid pp {} x dp {} x tp {}, rank = (pp_rank * {} + dp_rank) * {} + tp_rank",
                   t.world_size(), options.num_nodes, options.num_gpus, t.pp_size, t.dp_size, t.tp_size, t.dp_size,
                   t.tp_size));
}

void PrintTypes(const Plan& plan) {
  Line("types", fmt::format("weights and activations {}, {} {}, gradients {}, their reduction {}",
                            Name(plan.dtypes.compute), plan.separate_master ? "master weights and moments" : "moments",
                            Name(plan.dtypes.master), Name(plan.dtypes.accumulate), Name(plan.dtypes.communicate)));
  std::string zero = fmt::format("stage {}", plan.zero_stage);
  if (plan.zero_stage != plan.effective_zero_stage) zero += ": one data-parallel rank, nothing to shard";
  Line("zero", zero);
}

// Equal units on one line: "40 x block of 314,644,480".
void PrintUnits(const Plan& plan) {
  std::vector<std::pair<std::string, int>> kinds;
  int64_t padded = 0;
  for (const UnitLayout& unit : plan.units) {
    const bool block = unit.spec.kind == UnitKind::kBlock;
    const std::string text =
        fmt::format("{} of {}", block ? "block" : unit.spec.name, FormatCount(unit.padded_elements));
    padded += unit.padded_elements;
    if (!kinds.empty() && kinds.back().first == text) {
      ++kinds.back().second;
    } else {
      kinds.push_back({text, 1});
    }
  }
  std::string text;
  for (const auto& [kind, count] : kinds) text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, kind);
  Line("units", fmt::format("{}: {} elements; with padding {}", plan.num_units(), text, FormatCount(padded)));
}

// One line a pipeline rank: what it holds, and its memory.
void PrintStages(const Plan& plan) {
  const int pp = plan.topology.pp_size;
  if (pp == 1) return;
  const double m = static_cast<double>(plan.batch.num_micro_batches), v = plan.virtual_stages;
  const double bubble = (pp - 1) / (v * m + pp - 1);
  Line("pipeline", fmt::format("{} ranks x {} stages, {}; bubble of equal stages {:.1f} %", pp, plan.virtual_stages,
                               plan.pipeline_schedule == PipelineSchedule::kGPipe        ? "gpipe"
                               : plan.pipeline_schedule == PipelineSchedule::kZeroBubble ? "zero-bubble, at most"
                                                                                         : "1f1b",
                               100 * bubble));
  for (int rank = 0; rank < pp; ++rank) {
    std::string text;
    for (int stage = rank; stage < plan.num_stages(); stage += pp) {
      const UnitRange& units = plan.stages[static_cast<size_t>(stage)];
      text += fmt::format("{}{}{}{}", text.empty() ? "" : ", ", plan.units[static_cast<size_t>(units.first)].spec.name,
                          units.first == units.last ? "" : " to ",
                          units.first == units.last ? "" : plan.units[static_cast<size_t>(units.last)].spec.name);
    }
    if (plan.tied_across_stages() && rank == plan.PpRankOf(plan.head())) text += ", a copy of the tied embedding";
    Line("", fmt::format("rank {}: {}; {}", rank, text,
                         FormatBytes(plan.memory_of_pp_rank[static_cast<size_t>(rank)].total())));
  }
}

// "full 0 to 7, cheap 8 to 23, kept 24 to 31".
void PrintActivations(const Plan& plan) {
  static constexpr std::string_view kNames[] = {"kept", "cheap parts made again", "made again whole"};
  std::string text;
  int64_t layers = 0, inputs = 0, cheap = 0;
  for (int first = 1; first < plan.head();) {
    int last = first;
    const auto policy = [&](int unit) { return plan.units[static_cast<size_t>(unit)].recompute; };
    while (last + 1 < plan.head() && policy(last + 1) == policy(first)) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", kNames[static_cast<size_t>(policy(first))]);
    if (first > 1 || last + 1 < plan.head()) text += fmt::format(" in layers {} to {}", first - 1, last - 1);
    first = last + 1;
  }
  for (int unit = 1; unit < plan.head(); ++unit) {
    const UnitLayout& layout = plan.units[static_cast<size_t>(unit)];
    cheap += layout.recompute == Recompute::kCheap;
    layers += layout.recompute == Recompute::kFull;
    inputs += layout.recompute == Recompute::kFull && layout.segment.first == unit;
  }
  Line("activations", text);
  if (cheap > 0) Line("", "cheap: outputs of norms and of the MLP's activation");
  if (layers == 0) return;
  Line("", fmt::format("of {} layers the inputs of {} are kept{}{}", layers, inputs,
                       plan.boundaries_on_host ? " on the host" : "",
                       plan.partition_boundaries ? fmt::format(", 1/{} on each tp rank", plan.topology.tp_size) : ""));
}

void PrintBuckets(const Plan& plan) {
  int64_t least = INT64_MAX, most = 0;
  for (const UnitRange& bucket : plan.buckets) {
    int64_t elements = 0;
    for (int unit = bucket.first; unit <= bucket.last; ++unit)
      elements += plan.units[static_cast<size_t>(unit)].padded_elements;
    least = std::min(least, elements);
    most = std::max(most, elements);
  }
  Line("buckets", fmt::format("{} of {} to {} elements", plan.buckets.size(), FormatCount(least), FormatCount(most)));
}

void MemoryRow(std::string_view name, int64_t bytes, std::string_view how) {
  if (bytes > 0) fmt::print("  {:<16}{:>12}  {}\n", name, FormatBytes(bytes), how);
}

// Of what is offloaded and of inputs kept there; every rank of a node takes as much.
void PrintHostMemory(const Plan& plan) {
  const MemoryAccount::Host& h = plan.memory.host;
  if (h.total() + h.disk == 0) return;
  fmt::print("host memory of the same rank{}\n", plan.pin_memory ? ", page-locked" : "");
  MemoryRow("weights", h.weights, "own shards");
  MemoryRow("gradients", h.gradients, "own sums, for the update on the CPU");
  MemoryRow("master weights", h.master_weights, "own");
  MemoryRow("moments", h.moments, "own");
  MemoryRow("staging", h.arena,
            plan.boundaries_on_host ? "kept inputs, weights on their way to the device"
                                    : "weights of a few units on their way to the device");
  MemoryRow("total", h.total(), fmt::format("{} bytes", FormatCount(h.total())));
  MemoryRow("on disk", h.disk, "in files of nvme_path");
}

void PrintMemory(const Plan& plan) {
  const MemoryAccount& m = plan.memory;
  const int stage = plan.effective_zero_stage;
  const auto row = [](std::string_view name, int64_t bytes, std::string_view how) {
    fmt::print("  {:<16}{:>12}  {}\n", name, FormatBytes(bytes), how);
  };
  const Topology& t = plan.topology;
  const std::string part = fmt::format("{}{}", t.tp_size > 1 ? fmt::format("1/{} (tp) of ", t.tp_size) : "",
                                       t.pp_size > 1 ? "the rank's stages" : "the model");
  const auto shared = [&](int from) {
    return stage >= from ? fmt::format("1/{} (dp) of {}", t.dp_size, part) : "the whole of " + part;
  };
  fmt::print("memory of {}\n", plan.topology.pp_size == 1 ? "one rank" : "the fullest rank");
  row("weights", m.weights, shared(3));
  row("gradients", m.gradients, shared(2));
  if (plan.separate_master) row("master weights", m.master_weights, shared(1));
  row("moments", m.moments, shared(1));
  row("arena", m.arena,
      stage == 3   ? "activations, gathered weights, gradients of a few units"
      : stage == 2 ? "activations, gradients of a few units"
                   : "activations");
  row("attention", m.pool, "outputs of the attention kernels");
  row("workspace", m.workspace, "scratch: logits of a chunk of tokens, or a block's backward");
  if (m.tables > 0) row("tables", m.tables, "cosines and sines of rotary positions");
  row("total", m.total(), fmt::format("{} bytes", FormatCount(m.total())));
  PrintHostMemory(plan);
}

void PrintTraffic(const Plan& plan) {
  const TrafficAccount& t = plan.traffic;
  std::string text = fmt::format("each rank sends {} a step: gathers of weights {}, reductions of gradients {}",
                                 FormatBytes(t.total()), FormatBytes(t.gather), FormatBytes(t.reduce));
  if (t.transfer > 0) text += fmt::format(", transfers between stages {}", FormatBytes(t.transfer));
  if (t.tensor_parallel > 0) text += fmt::format(", inside the units over tp {}", FormatBytes(t.tensor_parallel));
  Line("traffic", text);
  if (t.down + t.up > 0) {
    Line("", fmt::format("and copies {} to the host, {} from it", FormatBytes(t.down), FormatBytes(t.up)));
  }
  double forward = 0;
  for (const UnitLayout& unit : plan.units) forward += unit.spec.forward_flops_per_token;
  const double tokens = static_cast<double>(plan.batch.tokens_per_step());
  Line("work",
       fmt::format("{:.4g} GFLOP a token, {:.4g} TFLOP a step and rank (forward and backward, causal attention)",
                   3 * forward / 1e9, 3 * forward * tokens / 1e12 / plan.topology.world_size()));
}

bool PrintVerdict(const Plan& plan, double gpu_memory_gib) {
  const double capacity = gpu_memory_gib * 1024 * 1024 * 1024 - kReservedBytes,
               total = static_cast<double>(plan.memory.total());
  const std::string_view verdict = total > capacity                 ? "does not fit"
                                   : total > kTightShare * capacity ? "fits, but tightly"
                                                                    : "fits";
  Line("verdict", fmt::format("{}: {} of the {} that {:g} GiB leave", verdict, FormatBytes(plan.memory.total()),
                              FormatBytes(static_cast<int64_t>(std::max(capacity, 0.0))), gpu_memory_gib));
  if (total <= capacity) return true;
  std::vector<std::string> ways;
  if (plan.batch.micro_batch_size > 1)
    ways.push_back("a smaller train_micro_batch_size_per_gpu with more accumulation");
  if (plan.zero_stage < 3) ways.push_back(fmt::format("zero_optimization.stage {}", plan.zero_stage + 1));
  ways.push_back("more ranks");
  Line("", "try " + Join(ways, ", or "));
  return false;
}

// ZeRO 2 and 3 with a pipeline: DeepSpeed refuses it, here it has a price.
void PrintPipelineWithZero(const Plan& plan, const Plan& stage_1) {
  const auto cost = [](const Plan& of) {
    return fmt::format("each rank sends {} of gathers and reductions a step, the fullest holds {}",
                       FormatBytes(of.traffic.gather + of.traffic.reduce), FormatBytes(of.memory.total()));
  };
  Line("", fmt::format("zero stage {} with a pipeline: {} for each micro-batch;", plan.zero_stage,
                       plan.zero_stage == 3 ? "weights are gathered and gradients reduced" : "gradients are reduced"));
  Line("", cost(plan));
  Line("", "at stage 1: " + cost(stage_1));
}

struct Made {
  Plan plan;
  std::optional<Plan> stage_1;  // the same at ZeRO 1, where the plan has a pipeline and a higher stage
};

Made Make(const PlanOptions& options) {
  Diagnostics of_model;
  ModelSpec model = ResolveModel(options.model, options.init_from, /*tp_size=*/1, of_model);
  of_model.ThrowIfErrors();
  const int64_t world_size = options.num_nodes * options.num_gpus;
  ParseResult parsed = ParseConfigFile(options.deepspeed_config, options.fill, world_size, model.hidden_size);
  if (options.fill.strict) parsed.diagnostics.WarningsAreErrors();
  parsed.diagnostics.ThrowIfErrors();
  for (const Diagnostics* found : {&of_model, &parsed.diagnostics}) {
    fmt::print(stderr, "{}", found->Render(Severity::kWarning));
  }
  PadVocabulary(model, parsed.config.tensor_parallel.tp_size);
  PlanInputs inputs;
  inputs.world_size = world_size;
  inputs.sequence_length = options.seq_length;
  inputs.fp64 = options.fill.fp64;
  inputs.hidden_dropout = options.activations.hidden_dropout;
  Made made{MakePlan(parsed.config, model, inputs), std::nullopt};
  AccountMemory(made.plan);
  if (made.plan.topology.pp_size > 1 && made.plan.effective_zero_stage >= 2) {
    parsed.config.zero_optimization.zero_stage = 1;
    made.stage_1 = MakePlan(parsed.config, model, inputs);
    AccountMemory(*made.stage_1);
  }
  return made;
}

}  // namespace

int RunPlan(Arguments arguments) {
  const PlanOptions options = ParsePlanFlags(arguments);
  if (options.help) {
    fmt::print("{}", PlanHelp());
    return 0;
  }
  const Made made = Make(options);
  const Plan& plan = made.plan;
  PrintModel(plan);
  PrintBatch(plan, options);
  PrintTypes(plan);
  PrintUnits(plan);
  PrintStages(plan);
  PrintBuckets(plan);
  PrintActivations(plan);
  PrintMemory(plan);
  PrintTraffic(plan);
  if (made.stage_1) PrintPipelineWithZero(plan, *made.stage_1);
  for (const std::string& note : LayoutNotes(plan, options.num_gpus)) Line("warning", note);
  if (!options.gpu_memory_gib) return 0;
  return PrintVerdict(plan, *options.gpu_memory_gib) ? 0 : ExitCode(ErrorCode::kCheckFailed);
}

}  // namespace trireme::cli
