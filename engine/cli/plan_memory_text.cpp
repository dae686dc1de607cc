// Memory of a plan, and the verdict.
#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/advise/fill.h"
#include "engine/base/bytes.h"
#include "engine/cli/plan_text.h"

namespace trireme::cli {
namespace {

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

bool PrintVerdict(const Plan& plan, double memory_bytes) {
  const double capacity = memory_bytes - kReservedBytes, total = static_cast<double>(plan.memory.total());
  const std::string_view verdict = total > capacity                 ? "does not fit"
                                   : total > kTightShare * capacity ? "fits, but tightly"
                                                                    : "fits";
  Line("verdict", fmt::format("{}: {} of the {} that {:g} GiB leave", verdict, FormatBytes(plan.memory.total()),
                              FormatBytes(static_cast<int64_t>(std::max(capacity, 0.0))), memory_bytes / (1 << 30)));
  return total <= capacity;
}

}  // namespace trireme::cli
