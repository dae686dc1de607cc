// Memory of a plan, and the verdict.
#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/strings.h"
#include "engine/cli/plan_text.h"

namespace trireme::cli {
namespace {

void MemoryRow(std::string_view name, int64_t bytes, std::string_view how) {
  if (bytes > 0) fmt::print("  {:<16}{:>12}  {}\n", name, FormatBytes(bytes), how);
}

// What is transient, where it is most.
void PrintArena(const MemoryAccount& m) {
  MemoryRow("arena", m.arena, "what comes and goes; at its fullest");
  MemoryRow("  activations", m.of_arena.activations, "in flight: what forward passes leave for backward passes");
  MemoryRow("  gathered", m.of_arena.gathered, "parameters: whole weights of a few units");
  MemoryRow("  buckets", m.of_arena.buckets, "gradients of a few units, and the staging of their reductions");
  MemoryRow("  boundaries", m.of_arena.boundaries, "between units and stages, kept inputs, tokens");
  MemoryRow("  gaps", m.arena - m.of_arena.live(), "alignment, and places that lanes may not share");
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
  MemoryRow("total", h.total(),
            fmt::format("{} bytes; {} more while a run begins, {} while it saves", FormatCount(h.total()),
                        FormatBytes(h.initialising), FormatBytes(h.saving)));
  MemoryRow("on disk", h.disk, "in files of nvme_path");
}

}  // namespace

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
  PrintArena(m);
  row("workspace", m.workspace, "scratch of what computes, as much as the hungriest unit needs");
  if (m.logits > 0) row("  logits", m.logits, "of it, for a chunk of tokens");
  row("attention", m.pool, "outputs of the attention kernels");
  if (m.tables > 0) row("tables", m.tables, "cosines and sines of rotary positions");
  row("total", m.total(), fmt::format("{} bytes, at the peak of a step", FormatCount(m.total())));
  const auto at = [&](MemoryMoment moment) { return FormatBytes(SumOf(ByClass(m, moment))); };
  fmt::print(
      "  on a GPU with the driver's context ({}){}: {} at the peak of initialisation, {} of a step, {} of a save\n",
      FormatBytes(m.context),
      m.communicator > 0 ? fmt::format(" and NCCL's communicators ({})", FormatBytes(m.communicator)) : "",
      at(MemoryMoment::kInitialise), at(MemoryMoment::kStep), at(MemoryMoment::kSave));
  PrintHostMemory(plan);
}

void PrintVerdict(const Planned& planned, const Verdict& verdict) {
  const Plan& plan = planned.plan;
  const auto bytes = [](double count) { return FormatBytes(static_cast<int64_t>(std::max(count, 0.0))); };
  const std::string_view word = !verdict.fits ? "does not fit" : verdict.tight ? "fits, but tightly" : "fits";
  const std::string rank = plan.topology.pp_size > 1 ? fmt::format("pipeline rank {} takes ", verdict.pp_rank) : "";
  const int64_t ranks = verdict.ranks_per_device;
  const std::string of =
      ranks == 1 ? "a device's " + bytes(verdict.device_bytes)
                 : fmt::format("its share, {}, of a device's {}",
                               bytes(verdict.device_bytes / static_cast<double>(ranks)), bytes(verdict.device_bytes));
  Line("verdict", fmt::format("{}: {}{} of {}, with {}what a save takes; most of it are {}", word, rank,
                              bytes(verdict.needed_bytes), of,
                              planned.room.scope == MemoryScope::kGpu         ? "context, communicators and "
                              : planned.room.scope == MemoryScope::kSharedGpu ? "its context and "
                                                                              : "",
                              Name(verdict.largest)));
  if (!verdict.host_fits) {
    Line("", fmt::format("the {} of a node need {} of the host's {}", Counted(planned.ranks_per_node, "rank"),
                         bytes(verdict.needed_host_bytes), bytes(verdict.host_bytes)));
  }
}

}  // namespace trireme::cli
