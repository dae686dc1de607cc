#include "engine/plan/memory_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "engine/base/bytes.h"

namespace trireme {
namespace {

int64_t Of(const MemoryByClass& bytes, MemoryClass memory_class) { return bytes[static_cast<size_t>(memory_class)]; }

bool InArena(MemoryClass memory_class) {
  return memory_class >= MemoryClass::kActivations && memory_class <= MemoryClass::kGaps;
}

// What has no line of its own in a run on the CPU.
MemoryByClass PlannedOf(const MemoryAccount& account, MemoryMoment moment, bool on_gpu) {
  MemoryByClass bytes = ByClass(account, moment);
  if (!on_gpu)
    bytes[static_cast<size_t>(MemoryClass::kCommunicator)] = bytes[static_cast<size_t>(MemoryClass::kContext)] = 0;
  return bytes;
}

struct Row {
  std::string name;
  int64_t planned = 0, measured = -1;  // -1: not told apart
  std::string note = {};
};

std::vector<Row> RowsOf(const MemoryAccount& account, const MeasuredMemory* measured, bool on_gpu) {
  const MemoryByClass planned = PlannedOf(account, MemoryMoment::kStep, on_gpu);
  const MemoryClass largest = LargestOf(planned);
  std::vector<Row> rows;
  for (size_t c = 0; c < kNumMemoryClasses; ++c) {
    const auto memory_class = static_cast<MemoryClass>(c);
    Row row{std::string(Name(memory_class)), planned[c], measured != nullptr ? measured->device[c] : -1};
    if (InArena(memory_class) || memory_class == MemoryClass::kLogits || memory_class == MemoryClass::kCommunicator)
      row.measured = -1;
    if (memory_class == MemoryClass::kWorkspace && measured != nullptr) row.note = "measured with the logits' chunk";
    if (memory_class == MemoryClass::kContext && measured != nullptr) row.note = "measured with communicators";
    if (memory_class == largest) row.note = "most of it";
    if (row.planned > 0 || row.measured > 0) rows.push_back(row);
    if (memory_class != MemoryClass::kGaps || account.arena == 0) continue;
    rows.push_back({"= arena", account.arena,
                    measured != nullptr ? Of(measured->device, MemoryClass::kActivations) : -1, "the five above"});
  }
  if (measured != nullptr && measured->unused > 0) {
    rows.push_back({"unused", 0, measured->unused, "reserved by LibTorch, in no tensor: fragmentation"});
  }
  return rows;
}

std::string Line(const Row& row, bool with_measured) {
  std::string text = fmt::format("  {:<16}{:>12}", row.name, FormatBytes(row.planned));
  if (with_measured) text += fmt::format("{:>12}", row.measured < 0 ? "" : FormatBytes(row.measured));
  if (!row.note.empty()) text += "  " + row.note;
  return text + "\n";
}

std::string RenderHost(const MemoryAccount& account, const MeasuredMemory* measured) {
  const MemoryByClass planned = HostByClass(account, MemoryMoment::kStep);
  std::string text;
  for (size_t c = 0; c < kNumMemoryClasses; ++c) {
    if (planned[c] == 0 && (measured == nullptr || measured->host[c] == 0)) continue;
    text +=
        Line({std::string(Name(static_cast<MemoryClass>(c))), planned[c], measured != nullptr ? measured->host[c] : -1},
             measured != nullptr);
  }
  if (text.empty()) return "";
  const int64_t total = account.host.total();
  return "  on the host, of what is offloaded\n" + text +
         Line({"total", total, measured != nullptr ? SumOf(measured->host) : -1,
               fmt::format("{} while it begins, {} while it saves", FormatBytes(total + account.host.initialising),
                           FormatBytes(total + account.host.saving))},
              measured != nullptr);
}

std::string JsonOf(const MemoryByClass& bytes) {
  std::string text;
  for (size_t c = 0; c < bytes.size(); ++c) {
    if (bytes[c] != 0) text += fmt::format("\"{}\": {}, ", JsonName(static_cast<MemoryClass>(c)), bytes[c]);
  }
  return text;
}

// Of the ranks of one node, `stride` apart from `rank`: what they need together.
int64_t SumOver(const Plan& plan, int rank, int64_t ranks_per_node, int64_t stride,
                int64_t (*of)(const MemoryAccount&)) {
  const int64_t first = rank / ranks_per_node * ranks_per_node;
  const int64_t end = std::min<int64_t>(plan.topology.world_size(), first + ranks_per_node);
  int64_t bytes = 0;
  for (int64_t other = first + (rank - first) % stride; other < end; other += stride) {
    const int pp_rank = plan.topology.CoordinateOf(static_cast<int>(other)).pp_rank;
    bytes += of(plan.memory_of_pp_rank[static_cast<size_t>(pp_rank)]);
  }
  return bytes;
}

std::string LargestText(const MemoryByClass& bytes) {
  const MemoryClass largest = LargestOf(bytes);
  const bool states = largest == MemoryClass::kMoments || largest == MemoryClass::kMasterWeights;
  return fmt::format("{}{} take most of it, {} a rank", states ? "optimizer states: " : "", Name(largest),
                     FormatBytes(Of(bytes, largest)));
}

std::optional<MemoryShortage> OnDevice(const Plan& plan, int rank, const MemoryRoom& room) {
  const MemoryAccount& own = plan.memory_of_pp_rank[static_cast<size_t>(plan.topology.CoordinateOf(rank).pp_rank)];
  const MemoryByClass bytes = PlannedOf(own, MemoryMoment::kStep, /*on_gpu=*/false);
  MemoryShortage shortage;
  if (room.device_limit > 0 && own.total() > room.device_limit) {
    shortage.needed = own.total();
    shortage.room = room.device_limit;
    shortage.text = fmt::format("this rank needs {} of device memory, and --device-memory-gib grants it {}: {}",
                                FormatBytes(shortage.needed), FormatBytes(shortage.room), LargestText(bytes));
    return shortage;
  }
  if (room.device_bytes == 0) return std::nullopt;
  const bool shared = room.shared_devices > 0 && room.shared_devices < room.ranks_per_node;
  const int64_t stride = shared ? room.shared_devices : room.ranks_per_node;
  shortage.needed =
      SumOver(plan, rank, room.ranks_per_node, stride, [](const MemoryAccount& of) { return of.total(); });
  shortage.room = room.device_free;
  if (shortage.needed <= shortage.room) return std::nullopt;
  shortage.text =
      fmt::format("{} {} of device memory, of which {} are free of {}: {}",
                  shared ? "the ranks that share this GPU need" : "this rank needs", FormatBytes(shortage.needed),
                  FormatBytes(room.device_free), FormatBytes(room.device_bytes), LargestText(bytes));
  if (shortage.needed <= room.device_bytes) shortage.text += "; other processes hold what is missing (`nvidia-smi`)";
  return shortage;
}

std::optional<MemoryShortage> OnHost(const Plan& plan, int rank, const MemoryRoom& room) {
  const bool is_device = room.device_bytes == 0;
  const MemoryAccount& own = plan.memory_of_pp_rank[static_cast<size_t>(plan.topology.CoordinateOf(rank).pp_rank)];
  MemoryByClass bytes = HostByClass(own, MemoryMoment::kStep);
  const MemoryByClass of_device = PlannedOf(own, MemoryMoment::kStep, /*on_gpu=*/false);
  for (size_t c = 0; is_device && c < bytes.size(); ++c) bytes[c] += of_device[c];
  MemoryShortage shortage;
  shortage.on_host = true;
  using Need = int64_t (*)(const MemoryAccount&);
  const Need of_host = [](const MemoryAccount& of) { return of.host.peak(); };
  const Need of_both = [](const MemoryAccount& of) { return of.total() + of.host.peak(); };
  shortage.needed = SumOver(plan, rank, room.ranks_per_node, /*stride=*/1, is_device ? of_both : of_host);
  shortage.certain = shortage.needed > room.host.limit;
  shortage.room = shortage.certain ? room.host.limit : room.host.available;
  if (room.host.limit == 0 || shortage.needed <= shortage.room || SumOf(bytes) == 0) return std::nullopt;
  shortage.text = fmt::format(
      "{} {} of host memory, {}: {}",
      room.ranks_per_node == 1 ? "this rank needs" : fmt::format("the {} ranks of this host need", room.ranks_per_node),
      FormatBytes(shortage.needed),
      shortage.certain
          ? "and there are " + room.host.Describe()
          : fmt::format("of which {} are free now (of {})", FormatBytes(shortage.room), room.host.Describe()),
      LargestText(bytes));
  return shortage;
}

}  // namespace

std::string RenderMemory(const MemoryAccount& planned, const MeasuredMemory* measured, bool on_gpu) {
  std::string text = fmt::format("  {:<16}{:>12}", "", "planned");
  if (measured != nullptr) text += fmt::format("{:>12}", "measured");
  text += "\n";
  for (const Row& row : RowsOf(planned, measured, on_gpu)) text += Line(row, measured != nullptr);
  const auto at = [&](MemoryMoment moment) { return SumOf(PlannedOf(planned, moment, on_gpu)); };
  text += Line({"total", at(MemoryMoment::kStep), measured != nullptr ? measured->peak() : -1,
                fmt::format("{} when it begins, {} while it saves", FormatBytes(at(MemoryMoment::kInitialise)),
                            FormatBytes(at(MemoryMoment::kSave)))},
               measured != nullptr);
  return text + RenderHost(planned, measured);
}

std::string MemoryToJson(const MemoryAccount& planned, const MeasuredMemory& measured, bool on_gpu) {
  const MemoryByClass step = PlannedOf(planned, MemoryMoment::kStep, on_gpu);
  std::string text =
      fmt::format("{{\"planned\": {{{}\"total\": {}, \"initialisation\": {}, \"save\": {}, \"host\": {}}}, ",
                  JsonOf(step), SumOf(step), SumOf(PlannedOf(planned, MemoryMoment::kInitialise, on_gpu)),
                  SumOf(PlannedOf(planned, MemoryMoment::kSave, on_gpu)), planned.host.total());
  MemoryByClass device = measured.device;
  const int64_t arena = std::exchange(device[static_cast<size_t>(MemoryClass::kActivations)], 0);
  text += fmt::format(
      "\"measured\": {{{}\"arena\": {}, \"unused\": {}, \"total\": {}, \"reserved_peak\": {}, \"host\": {}, "
      "\"resident_peak\": {}, \"others\": {}}}}}",
      JsonOf(device), arena, measured.unused, measured.peak(), measured.reserved_peak, SumOf(measured.host),
      measured.process.peak_resident, measured.others);
  return text;
}

std::optional<MemoryShortage> FindShortage(const Plan& plan, int rank, const MemoryRoom& room) {
  if (std::optional<MemoryShortage> shortage = OnDevice(plan, rank, room)) return shortage;
  return OnHost(plan, rank, room);
}

std::string WhoHoldsWhat(const MeasuredMemory& measured) {
  if (measured.device_total == 0) {
    return fmt::format("of the host's memory ({}) this process has {} resident, {} are available",
                       measured.host_memory.Describe(), FormatBytes(measured.process.resident),
                       FormatBytes(measured.host_memory.available));
  }
  return fmt::format("of the device's {} this process holds {}, other processes {}, {} are free",
                     FormatBytes(measured.device_total),
                     FormatBytes(measured.device_total - measured.device_free - measured.others),
                     FormatBytes(measured.others), FormatBytes(measured.device_free));
}

// A want that unused reserves would have covered is fragmentation.
std::string NeedOrFragmentation(const MeasuredMemory& measured, int64_t asked, const MemoryAccount& planned) {
  if (measured.device_total > 0 && measured.unused >= std::max<int64_t>(asked, int64_t{1} << 20)) {
    return fmt::format(
        "fragmentation: LibTorch's allocator has {} reserved that no tensor uses, in pieces that are too "
        "small (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets it join them)",
        FormatBytes(measured.unused));
  }
  if (measured.others > 0 && measured.device_total > 0 && planned.total() <= measured.device_total - kContextBytes) {
    return "the plan fits the device, but not beside the other processes on it (`nvidia-smi`)";
  }
  return "true need, not fragmentation: " + (measured.device_total > 0
                                                 ? FormatBytes(measured.unused) + " are reserved and unused"
                                                 : std::string("buffers are made once, in exact size"));
}

std::vector<std::string> WaysToShrink(const Plan& plan, bool on_host) {
  std::vector<std::string> ways;
  if (on_host && plan.offloads() && !plan.optimizer_on_disk)
    ways.push_back("offload_optimizer.device nvme, or a smaller offload_optimizer.ratio");
  if (plan.batch.micro_batch_size > 1)
    ways.push_back("a smaller train_micro_batch_size_per_gpu with more accumulation");
  if (!plan.recomputes()) ways.push_back("--recompute-granularity full");
  if (plan.zero_stage < 3 && plan.topology.dp_size > 1)
    ways.push_back(fmt::format("zero_optimization.stage {}", plan.zero_stage + 1));
  if (!on_host && !plan.offloads()) ways.push_back("zero_optimization.offload_optimizer.device cpu");
  ways.push_back("more ranks");
  return ways;
}

}  // namespace trireme
