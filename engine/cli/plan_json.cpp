// The plan as JSON. Its keys are stable, and documented in docs/plan.md: a change there and here goes together.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/base/version.h"
#include "engine/cli/plan_text.h"
#include "engine/cli/problem_json.h"
#include "engine/schedule/placement.h"
#include "parsers/layout_text.h"

namespace trireme::cli {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
std::string Text(const T& name) {
  return std::string(Name(name));
}

Json ModelJson(const Plan& plan) {
  const ModelSpec& m = plan.model;
  return {{"name", m.name},
          {"parameters", plan.num_parameters},
          {"layers", m.num_layers},
          {"hidden_size", m.hidden_size},
          {"attention_heads", m.num_attention_heads},
          {"vocab_size", m.vocab_size},
          {"padded_vocab_size", m.padded_vocab_size},
          {"tied_head", m.tie_word_embeddings}};
}

Json ConfigJson(const Config& config) {
  Json out = Json::object();
  for (const Origin& origin : config.origins) {
    out[origin.key] = {{"value", origin.value}, {"source", origin.source}};
  }
  return out;
}

Json LayoutJson(const Planned& planned) {
  const Plan& plan = planned.plan;
  const Topology& t = plan.topology;
  const BatchPlan& b = plan.batch;
  Json out;
  out["ranks"] = {
      {"world_size", t.world_size()}, {"nodes", planned.num_nodes}, {"ranks_per_node", planned.ranks_per_node},
      {"pipeline", t.pp_size},        {"data", t.dp_size},          {"tensor", t.tp_size}};
  out["batch"] = {{"train_batch_size", b.train_batch_size},
                  {"micro_batch_size", b.micro_batch_size},
                  {"micro_batches", b.num_micro_batches},
                  {"sequence_length", b.sequence_length},
                  {"tokens_per_step", b.tokens_per_step()}};
  out["types"] = {{"compute", Text(plan.dtypes.compute)},
                  {"master", Text(plan.dtypes.master)},
                  {"accumulate", Text(plan.dtypes.accumulate)},
                  {"communicate", Text(plan.dtypes.communicate)}};
  out["zero_stage"] = {{"configured", plan.zero_stage}, {"effective", plan.effective_zero_stage}};
  out["buckets"] = plan.buckets.size();
  return out;
}

Json StagesJson(const Plan& plan) {
  Json out = Json::array();
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    const UnitRange& units = plan.stages[static_cast<size_t>(stage)];
    out.push_back({{"pipeline_rank", stage % plan.topology.pp_size},
                   {"first_unit", plan.units[static_cast<size_t>(units.first)].spec.name},
                   {"last_unit", plan.units[static_cast<size_t>(units.last)].spec.name}});
  }
  return out;
}

Json ClassesJson(const MemoryByClass& bytes) {
  Json out;
  for (size_t i = 0; i < kNumMemoryClasses; ++i) {
    out[std::string(JsonName(static_cast<MemoryClass>(i)))] = bytes[i];
  }
  out["total"] = SumOf(bytes);
  return out;
}

Json MemoryJson(const Plan& plan) {
  Json out = Json::array();
  for (size_t rank = 0; rank < plan.memory_of_pp_rank.size(); ++rank) {
    const MemoryAccount& account = plan.memory_of_pp_rank[rank];
    Json of_rank = {{"pipeline_rank", rank}, {"program_total", account.total()}};
    for (size_t i = 0; i < kNumMemoryMoments; ++i) {
      const auto moment = static_cast<MemoryMoment>(i);
      of_rank["device"][Text(moment)] = ClassesJson(ByClass(account, moment));
      of_rank["host"][Text(moment)] = ClassesJson(HostByClass(account, moment));
    }
    of_rank["disk"] = account.host.disk;
    out.push_back(std::move(of_rank));
  }
  return out;
}

Json TrafficJson(const Planned& planned) {
  const TrafficAccount& t = planned.plan.traffic;
  const auto row = [&](int64_t bytes, Group group) {
    const GroupSpread spread = SpreadOf(planned.plan, planned.ranks_per_node, group);
    return Json{{"bytes", bytes}, {"ranks", spread.ranks}, {"nodes", spread.nodes()}};
  };
  return {{"weights", row(t.gather, Group::kDp)},
          {"gradients", row(t.reduce, Group::kDp)},
          {"tensor_parallel", row(t.tensor_parallel, Group::kTp)},
          {"boundaries", row(t.transfer, Group::kPp)},
          {"total", t.total()},
          {"to_host", t.down},
          {"from_host", t.up}};
}

Json PredictionJson(const Planned& planned) {
  const Prediction& p = *planned.prediction;
  return {{"cluster", planned.cluster->name},
          {"step_seconds", p.step_seconds},
          {"tokens_per_second", p.tokens_per_second},
          {"tokens_per_second_per_rank", p.tokens_per_second_per_rank},
          {"mfu_full", p.mfu_full},
          {"mfu_causal", p.mfu_causal},
          {"flops_per_second_per_rank", p.flops_per_second_per_rank},
          {"exposed_seconds",
           {{"weights", p.exposed.gather},
            {"gradients", p.exposed.reduce},
            {"tensor_parallel", p.exposed.tensor_parallel},
            {"boundaries", p.exposed.transfer},
            {"total", p.exposed.total()}}},
          {"exposed_share", p.exposed_share},
          {"bubble", p.bubble},
          {"bubble_seconds", p.bubble_seconds},
          {"copies_seconds", p.copies_seconds},
          {"host_seconds", p.host_seconds}};
}

Json FillJson(const Planned& planned) {
  const OffloadOptimizerConfig& offload = planned.config.zero_optimization.offload_optimizer;
  return {{"fits", planned.fill->fits},
          {"recompute", RecomputeText(planned.config.recompute.runs)},
          {"offload_ratio", offload.device == OffloadDevice::kNone ? 0 : offload.ratio},
          {"needed_bytes", planned.fill->needed_bytes},
          {"limit_bytes", planned.fill->limit_bytes}};
}

Json VerdictJson(const Verdict& v) {
  return {{"fits", v.fits},
          {"tight", v.fits && v.tight},
          {"device_bytes", static_cast<int64_t>(v.device_bytes)},
          {"ranks_per_device", v.ranks_per_device},
          {"needed_bytes", static_cast<int64_t>(v.needed_bytes)},
          {"pipeline_rank", v.pp_rank},
          {"largest_class", std::string(JsonName(v.largest))},
          {"host_fits", v.host_fits},
          {"host_bytes", static_cast<int64_t>(v.host_bytes)},
          {"needed_host_bytes", static_cast<int64_t>(v.needed_host_bytes)}};
}

Json ChangesJson(const std::vector<Change>& changes) {
  Json out = Json::array();
  for (const Change& change : changes) {
    Json keys = Json::object();
    for (const auto& [key, value] : change.keys) keys[key] = value;
    out.push_back({{"what", change.what},
                   {"with", keys},
                   {"needed_bytes", change.needed_bytes},
                   {"step_ratio", change.step_ratio ? Json(*change.step_ratio) : Json(nullptr)}});
  }
  return out;
}

std::string_view OffloadDeviceName(const Plan& plan) {
  if (std::ranges::none_of(plan.units, &UnitLayout::optimizer_on_host)) return "none";
  return plan.optimizer_on_disk ? "nvme" : "cpu";
}

Json SuggestedJson(const Proposals& proposals) {
  const Advice& advice = *proposals.suggested;
  Json layouts = Json::array();
  for (const Suggestion& s : advice.best) {
    layouts.push_back({{"layout", Describe(s.layout, s.plan)},
                       {"tensor", s.layout.tp},
                       {"pipeline", s.layout.pp},
                       {"data", s.plan.topology.dp_size},
                       {"virtual_stages", s.layout.virtual_stages},
                       {"sequence_parallel", s.layout.sequence_parallel},
                       {"zero_stage", s.layout.zero_stage},
                       {"micro_batch_size", s.layout.micro_batch},
                       {"micro_batches", s.plan.batch.num_micro_batches},
                       {"recompute", RecomputeText(s.layout.recompute.runs)},
                       {"offload_ratio", s.layout.offload_ratio()},
                       {"offload_device", OffloadDeviceName(s.plan)},
                       {"needed_bytes", s.needed_bytes},
                       {"step_seconds", s.step_seconds()},
                       {"tokens_per_second", s.prediction.tokens_per_second},
                       {"exposed_share", s.prediction.exposed_share},
                       {"bubble", s.prediction.bubble}});
  }
  return {{"layouts", layouts}, {"reasons", proposals.reasons}, {"legal", advice.legal}};
}

}  // namespace

std::string PlanJson(const Planned& planned, const std::optional<Verdict>& verdict, const Proposals& proposals) {
  Json out;
  out["schema"] = 1;
  out["version"] = std::string(Version());
  out["model"] = ModelJson(planned.plan);
  out["config"] = ConfigJson(planned.config);
  out.update(LayoutJson(planned));
  out["stages"] = StagesJson(planned.plan);
  out["memory"] = MemoryJson(planned.plan);
  out["traffic"] = TrafficJson(planned);
  out["fill"] = planned.fill ? FillJson(planned) : Json(nullptr);
  out["prediction"] = planned.prediction ? PredictionJson(planned) : Json(nullptr);
  Json notices = Json::array();
  for (const Problem& problem : planned.notices) notices.push_back(ProblemJson(problem));
  out["notices"] = std::move(notices);
  out["warnings"] = planned.warnings;
  out["advice"] = planned.advice;
  out["verdict"] = verdict ? VerdictJson(*verdict) : Json(nullptr);
  out["would_fit"] = proposals.changes ? ChangesJson(*proposals.changes) : Json(nullptr);
  out["suggested"] = proposals.suggested ? SuggestedJson(proposals) : Json(nullptr);
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";  // names and values may hold any bytes
}

}  // namespace trireme::cli
