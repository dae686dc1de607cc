// What is said of memory that does not suffice, before a run and in its middle.
#include "engine/plan/memory_text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "engine/schedule/verify.h"
#include "parsers/model_config.h"

namespace trireme {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

Plan PlanOf(int64_t ranks, int stage, bool offload = false, int64_t pp = 1) {
  Config config;
  config.batch = {ranks / pp, 1, 1};
  config.bf16.enabled = true;
  config.zero_optimization.zero_stage = stage;
  config.pipeline_parallel.pp_size = pp;
  if (offload) config.zero_optimization.offload_optimizer.device = OffloadDevice::kCpu;
  PlanInputs inputs;
  inputs.world_size = ranks;
  inputs.sequence_length = 1024;
  Plan plan = MakePlan(config, NamedModel("gpt-1.3b"), inputs);
  AccountMemory(plan);
  return plan;
}

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(MemoryShortages, MEM_08_FreeDeviceMemoryDecides) {
  const Plan plan = PlanOf(1, 0);
  MemoryRoom room{.device_bytes = 80 * kGiB, .device_free = 79 * kGiB, .host = {.limit = 64 * kGiB}};
  EXPECT_FALSE(FindShortage(plan, 0, room).has_value());
  room.device_free = plan.memory.total() - 1;
  const auto shortage = FindShortage(plan, 0, room);
  ASSERT_TRUE(shortage.has_value());
  EXPECT_TRUE(shortage->certain);
  EXPECT_FALSE(shortage->on_host);
  EXPECT_EQ(shortage->needed - shortage->room, 1);
  EXPECT_TRUE(Contains(shortage->text, "optimizer states: moments take most of it")) << shortage->text;
  EXPECT_TRUE(Contains(shortage->text, "other processes hold what is missing")) << shortage->text;
  room.device_free = plan.memory.total();
  EXPECT_FALSE(FindShortage(plan, 0, room).has_value());
  room.device_limit = plan.memory.total() - 1;
  EXPECT_TRUE(Contains(FindShortage(plan, 0, room)->text, "--device-memory-gib"));
}

// Each of the ranks that share a device fits, and all of them do not. Pipeline ranks need different amounts.
TEST(MemoryShortages, RanksThatShareADeviceAreAddedUp) {
  const Plan plan = PlanOf(4, 1, false, 2);
  const int64_t first = plan.memory_of_pp_rank[0].total(), last = plan.memory_of_pp_rank[1].total();
  ASSERT_NE(first, last);
  MemoryRoom room{.device_bytes = 800 * kGiB, .ranks_per_node = 4, .shared_devices = 1};
  room.device_free = 2 * (first + last) - 1;
  EXPECT_TRUE(FindShortage(plan, 3, room).has_value());
  room.device_free += 1;
  EXPECT_FALSE(FindShortage(plan, 3, room).has_value());
  // Over two devices in turn: ranks 0 and 2, one of each pipeline rank.
  room.shared_devices = 2;
  room.device_free = first + last - 1;
  EXPECT_TRUE(FindShortage(plan, 0, room).has_value());
  room.device_free += 1;
  EXPECT_FALSE(FindShortage(plan, 0, room).has_value());
  room.shared_devices = 0;
  room.device_free = first;
  EXPECT_FALSE(FindShortage(plan, 0, room).has_value());
}

// 1.42e9 parameters: masters and moments of 12 bytes and gradients of 4 on the host.
TEST(MemoryShortages, MEM_01_AllRanksOfAHostAreAddedUp) {
  const Plan plan = PlanOf(8, 2, /*offload=*/true);
  const int64_t needed = 8 * plan.memory.host.peak();
  EXPECT_GT(needed, int64_t{16} * plan.num_parameters);
  MemoryRoom room{.device_bytes = 80 * kGiB, .device_free = 80 * kGiB, .ranks_per_node = 8};
  room.host = {.limit = needed - 1, .available = needed - 1, .is_group = true};
  const auto refused = FindShortage(plan, 0, room);
  ASSERT_TRUE(refused.has_value());
  EXPECT_TRUE(refused->on_host && refused->certain);
  EXPECT_TRUE(Contains(refused->text, "the 8 ranks of this host need")) << refused->text;
  EXPECT_TRUE(Contains(refused->text, "limit of this control group")) << refused->text;
  // The limit would do, but others hold memory now: a warning.
  room.host.limit = needed;
  const auto warned = FindShortage(plan, 0, room);
  ASSERT_TRUE(warned.has_value());
  EXPECT_FALSE(warned->certain);
  EXPECT_TRUE(Contains(warned->text, "are free now")) << warned->text;
  room.host.available = needed;
  EXPECT_FALSE(FindShortage(plan, 0, room).has_value());
  room.ranks_per_node = 4;
  room.host.limit = room.host.available = needed / 2;
  EXPECT_FALSE(FindShortage(plan, 5, room).has_value());
  // Without offload a rank on a GPU needs none.
  EXPECT_FALSE(FindShortage(PlanOf(8, 2), 0,
                            {.device_bytes = 800 * kGiB,
                             .device_free = 800 * kGiB,
                             .ranks_per_node = 8,
                             .host = {.limit = 1 << 30, .available = 1 << 30}})
                   .has_value());
}

TEST(MemoryShortages, OnTheCpuTheHostIsTheDevice) {
  const Plan plan = PlanOf(2, 0);
  MemoryRoom room{.ranks_per_node = 2};
  const int64_t needed = 2 * (plan.memory.total() + plan.memory.host.peak());
  room.host = {.limit = needed, .available = needed};
  EXPECT_FALSE(FindShortage(plan, 1, room).has_value());
  room.host.limit -= 1;
  EXPECT_TRUE(FindShortage(plan, 1, room)->on_host);
}

TEST(MemoryText, ShowsPlannedBesideMeasured) {
  const Plan plan = PlanOf(2, 3, true);
  MeasuredMemory measured;
  measured.device[static_cast<size_t>(MemoryClass::kWeights)] = 3 * kGiB;
  measured.device[static_cast<size_t>(MemoryClass::kActivations)] = 5 * kGiB;
  measured.unused = kGiB / 2;
  const std::string text = RenderMemory(plan.memory, &measured, /*on_gpu=*/true);
  for (const char* row : {"planned    measured", "weights", "gathered", "= arena", "buckets", "unused", "communicator",
                          "8.50 GiB", "on the host"}) {
    EXPECT_TRUE(Contains(text, row)) << row << " in\n" << text;
  }
  const std::string cpu = RenderMemory(plan.memory, nullptr, /*on_gpu=*/false);
  EXPECT_FALSE(Contains(cpu, "context")) << cpu;
  EXPECT_FALSE(Contains(cpu, "measured")) << cpu;
  const std::string json = MemoryToJson(plan.memory, measured, /*on_gpu=*/true);
  EXPECT_TRUE(Contains(json, "\"planned\": {\"weights\": " + std::to_string(plan.memory.weights))) << json;
  EXPECT_TRUE(Contains(json, "\"arena\": 5368709120")) << json;
  EXPECT_TRUE(Contains(json, "\"total\": " + std::to_string(8 * kGiB + kGiB / 2))) << json;
}

TEST(MemoryText, MEM_09_TellsNeedFromFragmentation) {
  const MemoryAccount planned = PlanOf(1, 0).memory;
  MeasuredMemory measured;
  measured.device_total = 80 * kGiB;
  measured.device_free = kGiB;
  measured.unused = 3 * kGiB;
  const std::string pieces = NeedOrFragmentation(measured, 2 * kGiB, planned);
  EXPECT_TRUE(Contains(pieces, "fragmentation: LibTorch's allocator has 3.00 GiB reserved")) << pieces;
  EXPECT_TRUE(Contains(pieces, "expandable_segments")) << pieces;
  EXPECT_TRUE(Contains(NeedOrFragmentation(measured, 4 * kGiB, planned), "true need, not fragmentation"));
  measured.others = 30 * kGiB;
  EXPECT_TRUE(Contains(NeedOrFragmentation(measured, 4 * kGiB, planned), "not beside the other processes"));
  EXPECT_TRUE(
      Contains(WhoHoldsWhat(measured), "this process holds 49.00 GiB, other processes 30.00 GiB, 1.00 GiB are free"))
      << WhoHoldsWhat(measured);
  measured.device_total = 0;
  EXPECT_TRUE(Contains(NeedOrFragmentation(measured, kGiB, planned), "buffers are made once"));
}

}  // namespace
}  // namespace trireme
