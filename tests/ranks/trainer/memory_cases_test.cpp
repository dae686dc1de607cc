// Memory of real runs: what is allocated is what was planned, class by class; what cannot fit is refused before
// anything is allocated; and where memory ends, the error says why.
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>

#include "engine/base/host_memory.h"
#include "engine/trainer/checkpointing.h"
#include "tests/ranks/trainer/folder.h"
#include "tests/ranks/trainer/tiny_run.h"
#include "tests/support/run_threads.h"

namespace trireme::test {
namespace {

int64_t Of(const MemoryByClass& bytes, MemoryClass memory_class) { return bytes[static_cast<size_t>(memory_class)]; }

using Adjust = std::function<void(TrainerSetup& setup)>;
using Body = std::function<void(Trainer& trainer, int rank)>;

// "" or what the ranks threw.
std::string OnRanks(const TinyRun& run, const Adjust& adjust, const Body& body) {
  return RunThreadRanks(run.world, [&](ThreadRank& self) {
    RankWorld world;
    world.rank = self.rank;
    world.world_size = world.ranks_per_node = self.world;
    world.make_group = self.GroupMaker();
    world.world = self.MakeCommunicator("world");
    TrainerSetup setup = SetupOf(run, self.rank);
    if (adjust) adjust(setup);
    Trainer trainer(setup, std::move(world));
    trainer.InitialiseWeights(7);
    body(trainer, self.rank);
  });
}

void Steps(Trainer& trainer, int64_t count) {
  for (int64_t step = 0; step < count; ++step) {
    trainer.StartStep(SyntheticFill(trainer));
    trainer.FinishStep();
  }
}

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Between LibTorch and its CPU allocator: how many bytes are in tensors, and how many were at most. What it gives may
// be freed after its end.
class CountingAllocator : public c10::Allocator {
 public:
  CountingAllocator() : below_(c10::GetCPUAllocator()) {
    c10::SetAllocator(c10::kCPU, this, kPriority);
    ForgetPeak();
  }
  ~CountingAllocator() override { c10::SetAllocator(c10::kCPU, below_, kPriority); }

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = below_->allocate(bytes);
    void* address = data.get();
    if (address == nullptr) return data;
    Blocks& blocks = All();
    const std::lock_guard lock(blocks.mutex);
    blocks.live += static_cast<int64_t>(bytes);
    blocks.peak = std::max(blocks.peak, blocks.live);
    blocks.of.emplace(address, std::pair(std::move(data), bytes));
    return {address, address, Free, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return Free; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }

  static int64_t live() { return Locked(&Blocks::live); }
  static int64_t peak() { return Locked(&Blocks::peak); }
  static void ForgetPeak() {
    const std::lock_guard lock(All().mutex);
    All().peak = All().live;
  }

 private:
  static constexpr uint8_t kPriority = 100;
  struct Blocks {
    std::mutex mutex;
    int64_t live = 0, peak = 0;
    std::map<void*, std::pair<c10::DataPtr, size_t>> of;
  };
  static Blocks& All() {
    static Blocks blocks;
    return blocks;
  }
  static int64_t Locked(int64_t Blocks::*count) {
    const std::lock_guard lock(All().mutex);
    return All().*count;
  }
  static void Free(void* address) {
    Blocks& blocks = All();
    const std::lock_guard lock(blocks.mutex);
    const auto found = blocks.of.find(address);
    if (found == blocks.of.end()) return;
    blocks.live -= static_cast<int64_t>(found->second.second);
    blocks.of.erase(found);
  }

  c10::Allocator* below_;
};

TEST(MemoryOfARun, IsThePlansClassByClass) {
  TinyRun plain{.world = 1, .global_batch = 6};
  TinyRun zero3{.world = 2, .zero_stage = 3, .fp64 = false, .bf16 = true, .recompute = Recompute::kFull};
  TinyRun zero2{.world = 3, .zero_stage = 2, .fp64 = false, .bf16 = true};
  TinyRun pipeline{.world = 4, .zero_stage = 1, .accumulation = 9, .tp = 1, .pp = 2};
  TinyRun offload{.world = 2, .zero_stage = 3, .fp64 = false, .bf16 = true, .offload_optimizer = 1};
  TinyRun tensor{.world = 2, .fp64 = false, .bf16 = true, .heads = 4, .tp = 2, .sequence_parallel = true};
  for (const TinyRun& run : {plain, zero3, zero2, pipeline, offload, tensor}) {
    const std::string failed = OnRanks(run, {}, [](Trainer& trainer, int) {
      Steps(trainer, 1);
      const MemoryAccount& planned = trainer.planned();
      const MeasuredMemory measured = trainer.MeasureMemory();
      EXPECT_EQ(Of(measured.device, MemoryClass::kWeights), planned.weights);
      EXPECT_EQ(Of(measured.device, MemoryClass::kGradients), planned.gradients);
      EXPECT_EQ(Of(measured.device, MemoryClass::kMasterWeights), planned.master_weights);
      EXPECT_EQ(Of(measured.device, MemoryClass::kMoments), planned.moments);
      EXPECT_EQ(Of(measured.device, MemoryClass::kActivations), planned.arena);
      EXPECT_EQ(Of(measured.device, MemoryClass::kWorkspace), planned.workspace);
      EXPECT_EQ(SumOf(measured.host), planned.host.total());
      EXPECT_GE(measured.process.peak_resident, measured.reserved_peak);
    });
    EXPECT_EQ(failed, "") << "ZeRO " << run.zero_stage << " on " << run.world;
  }
}

// Weights and gradients are 6 of the 18 bytes a parameter: they would fit.
TEST(MemoryOfARun, MEM_08_OptimizerStatesThatDoNotFitAreRefusedBeforeAnythingIsAllocated) {
  const TinyRun run{.world = 2, .global_batch = 2, .fp64 = false, .bf16 = true, .layers = 4};
  int64_t states = 0;
  ASSERT_EQ("", OnRanks(run, {}, [&](Trainer& trainer, int rank) {
              if (rank == 0) states = trainer.planned().weights + trainer.planned().gradients;
            }));
  CountingAllocator allocator;
  const std::string failed = OnRanks(
      run, [&](TrainerSetup& setup) { setup.memory_limits.device_bytes = states * 10 / 6; },
      [](Trainer&, int) { FAIL() << "it does not fit"; });
  EXPECT_TRUE(Contains(failed, "error TRN060: rank 0: does not fit, and nothing was allocated")) << failed;
  EXPECT_TRUE(Contains(failed, "optimizer states: moments take most of it")) << failed;
  EXPECT_TRUE(Contains(failed, "--device-memory-gib")) << failed;
  EXPECT_TRUE(Contains(failed, "zero_optimization.stage")) << "a choice: " << failed;
  EXPECT_TRUE(Contains(failed, "master weights")) << "the account: " << failed;
  EXPECT_LT(allocator.peak(), states / 4) << "texts that ranks exchange, and no state";
}

TEST(MemoryOfARun, MEM_01_StatesThatTheHostHasNoRoomForAreRefused) {
  const TinyRun run{.world = 2, .zero_stage = 2, .fp64 = false, .bf16 = true, .layers = 4, .offload_optimizer = 1};
  const std::string failed = OnRanks(
      run, [](TrainerSetup& setup) { setup.memory_limits.host_bytes = 500'000; },
      [](Trainer&, int) { FAIL() << "it does not fit"; });
  EXPECT_TRUE(Contains(failed, "error TRN061: rank 0")) << failed;
  EXPECT_TRUE(Contains(failed, "the 2 ranks of this host need")) << failed;
  EXPECT_TRUE(Contains(failed, "488.28 KiB")) << failed;
  EXPECT_TRUE(Contains(failed, "moments")) << failed;
}

// What LibTorch throws in the middle of a step.
TEST(OutOfMemoryError, SaysWhatFillsTheDeviceAndWhatIsMissing) {
  TinyRun run{.world = 2, .zero_stage = 2, .fp64 = false, .bf16 = true};
  std::atomic<int> backwards = 0;
  const auto adjust = [&](TrainerSetup& setup) {
    setup.before_instruction = [&](const Instruction& instruction, int64_t) {
      if (instruction.op != Op::kBackward || ++backwards != 9) return;
      at::empty({int64_t{1} << 60}, at::kByte);
    };
  };
  const std::string failed = OnRanks(run, adjust, [](Trainer& trainer, int) { Steps(trainer, 4); });
  EXPECT_TRUE(Contains(failed, "error TRN062")) << failed;
  EXPECT_TRUE(Contains(failed, "can't allocate memory")) << failed;
  EXPECT_TRUE(Contains(failed, "planned    measured")) << failed;
  EXPECT_TRUE(Contains(failed, "fill most of it")) << failed;
  EXPECT_TRUE(Contains(failed, "true need, not fragmentation")) << failed;
  EXPECT_TRUE(Contains(failed, "fix: ")) << failed;
}

// Halfway through the construction of a rank: the account has what is there already.
TEST(OutOfMemoryError, NamesTheBufferThatDidNotFit) {
  const Plan plan = [] {
    Plan made;
    const std::string failed =
        OnRanks({.world = 1, .fp64 = false, .bf16 = true}, {}, [&](Trainer& trainer, int) { made = trainer.plan(); });
    EXPECT_EQ(failed, "");
    return made;
  }();
  const auto memory = std::make_shared<RankMemory>(
      at::kCPU, RankMemoryOptions{.device_limit = plan.memory.weights + plan.memory.gradients});
  RankWorld world;
  const MemoryWatch watch(world, {});
  const auto cures = [](const Plan& of, const MemoryShortage& shortage) { return WaysToShrink(of, shortage.on_host); };
  try {
    watch.Guard(plan, 0, *memory, cures,
                [&] { RankState state(plan, 0, at::kCPU, RankState::Use::kTraining, {}, memory); });
    FAIL() << "it does not fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.id(), "TRN062");
    EXPECT_EQ(ExitCode(error.code()), 71);
    EXPECT_TRUE(Contains(error.what(), "of device memory for")) << error.what();
    EXPECT_GT(Of(memory->device_bytes(), MemoryClass::kWeights), 0);
    EXPECT_LE(SumOf(memory->device_bytes()), memory->device_limit());
  }
}

TEST(MemoryOfARun, MEM_09_IsFlatWhileLengthsAlternate) {
  class Alternating : public data::SequenceSource {
   public:
    int64_t num_samples() const override { return 64; }
    int64_t Length(int64_t sample) const override { return sample % 4 < 2 ? 2 : 16; }
    void Read(int64_t sample, std::span<int32_t> ids) const override {
      for (size_t i = 0; i < ids.size(); ++i)
        ids[i] = static_cast<int32_t>((static_cast<size_t>(sample) * 7 + i * 3) % 61);
    }
  };
  TinyRun run{.world = 1, .global_batch = 4, .fp64 = false, .bf16 = true, .layers = 2, .max_tokens = 32};
  const auto source = std::make_shared<const data::DynamicBatches>(
      std::make_shared<Alternating>(), data::DynamicBatchOptions{.packs = 4,
                                                                 .max_tokens = 32,
                                                                 .longest = 16,
                                                                 .length_multiple = 8,
                                                                 .order = data::StreamOrder::kFile,
                                                                 .repeats = true});
  CountingAllocator allocator;
  const std::string failed = OnRanks(run, {}, [&](Trainer& trainer, int) {
    const auto step = [&] {
      trainer.StartStep(trainer.BatchFrom(source, trainer.consumed_samples()));
      trainer.FinishStep();
      trainer.executor().Drain();
    };
    for (int i = 0; i < 20; ++i) step();
    const int64_t live = allocator.live(), peak = allocator.peak();
    const MemoryByClass planned = trainer.MeasureMemory().device;
    for (int i = 20; i < 200; ++i) step();
    EXPECT_EQ(allocator.live(), live);
    EXPECT_LE(allocator.peak(), peak);
    const MemoryByClass after = trainer.MeasureMemory().device;
    EXPECT_EQ(Of(after, MemoryClass::kActivations), Of(planned, MemoryClass::kActivations));
  });
  EXPECT_EQ(failed, "");
}

// As `ulimit -l` refuses it, or a container's driver.
TEST(PageLocking, MEM_10_IsRefusedOnceInWordsAndTrainingGoesOn) {
  TinyRun run{.world = 1, .zero_stage = 2, .steps = 2, .fp64 = false, .bf16 = true, .offload_optimizer = 1};
  const auto lock = std::make_shared<PageLock>();
  std::atomic<int> asked = 0, unlocked = 0;
  std::atomic<int64_t> locked_bytes = 0;
  constexpr int64_t kQuota = 20'000;
  lock->lock = [&](void*, size_t bytes, std::string& why_not) {
    ++asked;
    why_not = "invalid argument";
    if (locked_bytes + static_cast<int64_t>(bytes) > kQuota) return false;
    locked_bytes += static_cast<int64_t>(bytes);
    return true;
  };
  lock->unlock = [&](void*) { ++unlocked; };
  const auto losses = [&](const std::shared_ptr<PageLock>& page_lock, bool pin) {
    std::vector<double> of_run;
    const std::string failed = OnRanks(
        run,
        [&](TrainerSetup& setup) {
          setup.page_lock = page_lock;
          setup.config.zero_optimization.offload_optimizer.pin_memory = pin;
        },
        [&](Trainer& trainer, int) {
          for (int step = 0; step < 2; ++step) {
            trainer.StartStep(SyntheticFill(trainer));
            of_run.push_back(trainer.FinishStep().loss);
          }
        });
    EXPECT_EQ(failed, "");
    return of_run;
  };
  const std::vector<double> plain = losses(nullptr, true);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(losses(lock, false), plain);
  EXPECT_EQ(asked, 0) << "pin_memory false is honoured";
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(losses(lock, true), plain);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_GT(asked, 3);
  EXPECT_GT(unlocked, 0);
  EXPECT_LT(unlocked, asked);
  const size_t first = said.find("cannot be page-locked (invalid argument");
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("cannot be page-locked", first + 1), std::string::npos) << said;
  EXPECT_TRUE(Contains(said, "`ulimit -l` is")) << said;
}

TEST(MemoryOfARun, MEM_12_SavesLeaveNothingBehind) {
  const TinyRun run{.world = 2, .zero_stage = 3, .fp64 = false, .bf16 = true};
  const Folder folder;
  CountingAllocator allocator;
  int64_t third = 0, last = 0;
  const std::string failed = OnRanks(run, {}, [&](Trainer& trainer, int rank) {
    int64_t live = 0;
    for (int save = 1; save <= 30; ++save) {
      Steps(trainer, 1);
      trainer.Save(folder.path / "native", std::nullopt);
      const std::filesystem::path exported = folder.path / ("hf" + std::to_string(save));
      trainer.SaveHuggingFace(exported, DType::kBFloat16, {});
      trainer.world().world->Barrier();
      if (rank != 0) continue;
      std::filesystem::remove_all(exported);
      (save <= 3 ? third : last) = ReadProcessMemory().resident;
      if (save == 3) live = allocator.live();
    }
    if (rank == 0) {
      EXPECT_LE(allocator.live(), live + (1 << 16));
    }
  });
  EXPECT_EQ(failed, "");
  EXPECT_LE(static_cast<double>(last), 1.02 * static_cast<double>(third));
}

// Beside the arena, which is idle then, one tensor.
TEST(MemoryOfARun, MEM_14_GatheringAtASaveTakesOneTensorAtMost) {
  TinyRun run{.world = 4, .zero_stage = 3, .global_batch = 16, .fp64 = false, .tied = false, .bf16 = true, .layers = 4};
  const Folder folder;
  CountingAllocator allocator;
  int64_t before = 0, peak = 0, largest = 0;
  const std::string failed = OnRanks(run, {}, [&](Trainer& trainer, int rank) {
    Steps(trainer, 1);
    trainer.executor().Drain();
    for (const UnitLayout& unit : trainer.plan().units) {
      ASSERT_LE(unit.padded_elements * 2, trainer.executor().arena_bytes());
    }
    trainer.world().world->Barrier();
    if (rank == 0) {
      allocator.ForgetPeak();
      before = allocator.live();
      for (const UnitLayout& unit : trainer.plan().units) {
        for (const Segment& segment : unit.segments) largest = std::max(largest, segment.count * 2);
      }
    }
    trainer.world().world->Barrier();
    trainer.SaveHuggingFace(folder.path / "model", std::nullopt, {});
    trainer.world().world->Barrier();
    if (rank == 0) peak = allocator.peak();
    trainer.world().world->Barrier();
  });
  EXPECT_EQ(failed, "");
  EXPECT_GT(largest, 0);
  EXPECT_LE(peak - before, largest + (1 << 14)) << "of all four ranks together; with texts that they exchange";
}

// Counts what is asked for.
class CountingReader : public checkpoint::CheckpointReader {
 public:
  explicit CountingReader(std::unique_ptr<CheckpointReader> below) : below_(std::move(below)) {}
  const checkpoint::CheckpointInfo& info() const override { return below_->info(); }
  std::span<const checkpoint::TensorInfo> tensors() const override { return below_->tensors(); }
  void ReadRegion(std::string_view tensor, std::string_view state, const checkpoint::Region& region,
                  std::span<std::byte> out) const override {
    bytes_ += static_cast<int64_t>(out.size());
    below_->ReadRegion(tensor, state, region, out);
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<CheckpointReader> below_;
  mutable std::atomic<int64_t> bytes_ = 0;
};

// And holds no more of it than one slice at a time.
TEST(InitialWeights, MEM_03_EachRankReadsItsSlicesAlone) {
  const Folder folder;
  const TinyRun source{.world = 1, .fp64 = false, .bf16 = true, .layers = 6};
  ASSERT_EQ("", OnRanks(source, {}, [&](Trainer& trainer, int) {
              trainer.SaveHuggingFace(folder.path / "model", std::nullopt, {});
            }));
  TinyRun zero3 = source, both = source;
  zero3.world = 8;
  zero3.global_batch = 8;
  zero3.zero_stage = 3;
  both.world = 4;
  both.zero_stage = 1;
  both.heads = 4;
  both.tp = 2;
  both.global_batch = 8;
  for (const TinyRun& run : {zero3, both}) {
    CountingAllocator allocator;
    std::atomic<int64_t> all = 0;
    int64_t model_bytes = 0, largest = 0, before = 0, peak = 0;
    const std::string failed = OnRanks(run, {}, [&](Trainer& trainer, int rank) {
      const CountingReader reader(checkpoint::OpenHuggingFace(folder.path / "model", trainer.plan().model));
      trainer.world().world->Barrier();
      if (rank == 0) {
        for (const checkpoint::TensorInfo& tensor : reader.tensors()) {
          const int64_t elements =
              std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
          model_bytes += 2 * elements;
          largest = std::max(largest, 2 * elements);
        }
        allocator.ForgetPeak();
        before = allocator.live();
      }
      trainer.world().world->Barrier();
      LoadInitialWeights(trainer.state(), reader);
      all += reader.bytes();
      // A rank's share, and what it has whole for itself: biases and norms that tp does not split.
      EXPECT_LE(static_cast<double>(reader.bytes()), 1.2 * static_cast<double>(model_bytes) / run.world);
      trainer.world().world->Barrier();
      if (rank == 0) peak = allocator.peak();
      trainer.world().world->Barrier();
    });
    EXPECT_EQ(failed, "");
    EXPECT_GE(all.load(), model_bytes);
    EXPECT_LE(static_cast<double>(all.load()), 1.1 * static_cast<double>(model_bytes));
    EXPECT_LE(peak - before, run.world * largest) << "a slice a rank at a time, in the file's type and in its own";
  }
}

}  // namespace
}  // namespace trireme::test
