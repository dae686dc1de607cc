// Any saved cut feeds any wanted cut, bit for bit: random tensors (also of 0, 1 and prime sizes, turned or not), world
// sizes 1 to 8, boxes, orders. The seed is printed; TRIREME_SEED repeats a run.
#include "checkpoint/reshard.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "checkpoint/find.h"
#include "checkpoint/verify.h"
#include "tests/unit/checkpoint/saved.h"

namespace trireme::checkpoint {
namespace {

using testing::SavedState;
using testing::SavedTensor;

class Random {
 public:
  Random() {
    const char* text = std::getenv("TRIREME_SEED");
    seed_ = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device{}();
    engine_.seed(seed_);
  }
  uint64_t seed() const { return seed_; }
  int64_t Between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  bool Coin() { return Between(0, 1) == 1; }

 private:
  uint64_t seed_ = 0;
  std::mt19937_64 engine_;
};

std::vector<int64_t> RandomShape(Random& random, int max_dims = 4) {
  constexpr int64_t kSizes[] = {0, 1, 1, 2, 3, 5, 7, 13, 31};
  std::vector<int64_t> shape(static_cast<size_t>(random.Between(0, max_dims)));
  for (int64_t& extent : shape) extent = kSizes[random.Between(shape.size() > 2 ? 1 : 0, shape.size() > 2 ? 6 : 8)];
  return shape;
}

// A region that is valid for `shape`: one or two disjoint boxes (or the whole), a range of them, either order.
Region RandomRegion(Random& random, const std::vector<int64_t>& shape) {
  Region region;
  region.order = shape.size() >= 2 && random.Coin() ? Order::kTransposed : Order::kRowMajor;
  int64_t volume = Numel(shape);
  if (random.Coin() && !shape.empty()) {
    Box box;
    for (const int64_t extent : shape) {
      box.begin.push_back(random.Between(0, extent));
      box.extent.push_back(random.Between(0, extent - box.begin.back()));
    }
    volume = Numel(box.extent);
    region.boxes.push_back(box);
    if (box.begin[0] > 0 && random.Coin()) {  // a second one before the first
      box.extent[0] = random.Between(0, box.begin[0]);
      box.begin[0] = 0;
      volume += Numel(box.extent);
      region.boxes.push_back(box);
    }
  }
  region.flat_begin = random.Between(0, volume);
  region.flat_count = random.Between(0, volume - region.flat_begin);
  return region;
}

// The plain definition of a region, one element at a time: the row-major index of each of its elements.
std::vector<int64_t> Elements(const std::vector<int64_t>& shape, const Region& region) {
  std::vector<Box> boxes = region.boxes;
  if (boxes.empty()) boxes.push_back({std::vector<int64_t>(shape.size(), 0), shape});
  std::vector<int64_t> all;
  for (const Box& box : boxes) {
    const int64_t volume = Numel(box.extent);
    for (int64_t i = 0; i < volume; ++i) {
      std::vector<size_t> dims(shape.size());
      for (size_t d = 0; d < dims.size(); ++d) dims[d] = d;
      if (region.order == Order::kTransposed) std::swap(dims[dims.size() - 1], dims[dims.size() - 2]);
      std::vector<int64_t> at(shape.size());
      int64_t rest = i;
      for (size_t level = dims.size(); level-- > 0;) {
        at[dims[level]] = box.begin[dims[level]] + rest % box.extent[dims[level]];
        rest /= box.extent[dims[level]];
      }
      int64_t flat = 0;
      for (size_t d = 0; d < at.size(); ++d) flat = flat * shape[d] + at[d];
      all.push_back(flat);
    }
  }
  return {all.begin() + region.flat_begin, all.begin() + region.flat_begin + region.flat_count};
}

class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  void ReadBytes(int64_t begin, std::span<std::byte> out) const override {
    ASSERT_LE(begin + static_cast<int64_t>(out.size()), static_cast<int64_t>(bytes_.size()));
    std::memcpy(out.data(), bytes_.data() + begin, out.size());
  }

 private:
  std::span<const std::byte> bytes_;
};

TEST(Reshard, DecompositionIsTheDefinition) {
  Random random;
  SCOPED_TRACE("TRIREME_SEED=" + std::to_string(random.seed()));
  int64_t seen = 0;
  for (int round = 0; round < 20000 && !HasFailure(); ++round) {
    const std::vector<int64_t> shape = RandomShape(random);
    const Region region = RandomRegion(random, shape);
    seen += region.flat_count;
    const std::vector<int64_t> want = Elements(shape, region);
    const std::vector<Rect> rects = Decompose(shape, region, 100);
    const size_t num_boxes = std::max<size_t>(1, region.boxes.size());
    EXPECT_LE(rects.size(), num_boxes * std::max<size_t>(1, 2 * shape.size() - (shape.empty() ? 0 : 1)));
    std::vector<int64_t> found(want.size(), -1);
    for (const Rect& rect : rects) {
      int64_t volume = 1;
      for (int d = 0; d < rect.ndim; ++d) volume *= rect.extent[d];
      for (int64_t i = 0; i < volume; ++i) {
        int64_t rest = i, flat = 0, place = rect.offset - 100, scale = 1;
        for (int d = rect.ndim - 1; d >= 0; --d) {
          const int64_t at = rest % rect.extent[d];
          rest /= rect.extent[d];
          place += at * rect.stride[d];
          flat += (rect.begin[d] + at) * scale;
          scale *= shape[d];
        }
        ASSERT_TRUE(place >= 0 && place < static_cast<int64_t>(found.size()));
        EXPECT_EQ(-1, found[place]) << "written twice";
        found[place] = flat;
      }
    }
    EXPECT_EQ(want, found) << ShapeText(shape);
  }
  EXPECT_GT(seen, 30000);
}

TEST(Reshard, AnyStoredRegionIntoAnyWantedOne) {
  Random random;
  SCOPED_TRACE("TRIREME_SEED=" + std::to_string(random.seed()));
  int64_t moved = 0;
  for (int round = 0; round < 20000 && !HasFailure(); ++round) {
    const std::vector<int64_t> shape = RandomShape(random);
    const Region stored = RandomRegion(random, shape), wanted = RandomRegion(random, shape);
    const int64_t size = int64_t{1} << random.Between(0, 3), offset = random.Between(0, 5);
    const std::vector<int64_t> held = Elements(shape, stored), needed = Elements(shape, wanted);
    const auto put = [size](std::vector<std::byte>& out, int64_t place, int64_t value) {
      std::memcpy(out.data() + place * size, &value, static_cast<size_t>(size));
    };
    std::vector<std::byte> source(static_cast<size_t>((offset + static_cast<int64_t>(held.size())) * size),
                                  std::byte{0xEE});
    for (size_t i = 0; i < held.size(); ++i) put(source, offset + static_cast<int64_t>(i), held[i]);
    std::vector<std::byte> want(needed.size() * static_cast<size_t>(size), std::byte{0xFF}), found = want;
    int64_t count = 0;
    for (size_t i = 0; i < needed.size(); ++i) {
      if (std::find(held.begin(), held.end(), needed[i]) == held.end()) continue;
      put(want, static_cast<int64_t>(i), needed[i]);
      ++count;
    }
    moved += count;
    EXPECT_EQ(count, ReadIntersection(shape, stored, offset, MemorySource(source), wanted, found, size));
    EXPECT_EQ(want, found) << ShapeText(shape);
  }
  EXPECT_GT(moved, 3000);
}

TEST(Reshard, CoverageProblemsAreFound) {
  Random random;
  SCOPED_TRACE("TRIREME_SEED=" + std::to_string(random.seed()));
  const auto name = [](size_t i) { return std::to_string(i); };
  int checked = 0;
  for (int round = 0; round < 5000 && !HasFailure(); ++round) {
    std::vector<int64_t> shape = RandomShape(random, 3);
    if (Numel(shape) < 2) continue;
    // Cut the first dim in two boxes, and each box into a few ranges, each box in an order of its own.
    const int64_t cut = random.Between(0, shape[0]);
    std::vector<Region> slabs;
    for (const auto& [low, high] : {std::pair{int64_t{0}, cut}, std::pair{cut, shape[0]}}) {
      Box box{std::vector<int64_t>(shape.size(), 0), shape};
      box.begin[0] = low;
      box.extent[0] = high - low;
      const Order order = shape.size() > 1 && random.Coin() ? Order::kTransposed : Order::kRowMajor;
      for (int64_t begin = 0, volume = Numel(box.extent); begin < volume;) {
        const int64_t count = random.Between(1, volume - begin);
        slabs.push_back({.boxes = {box}, .flat_begin = begin, .flat_count = count, .order = order});
        begin += count;
      }
    }
    EXPECT_EQ("", CoverageProblem(shape, slabs, name));
    std::vector<Region> broken = slabs;
    Region& victim = broken[static_cast<size_t>(random.Between(0, static_cast<int64_t>(slabs.size()) - 1))];
    if (random.Coin()) {
      --victim.flat_count;
    } else {
      broken.push_back(victim);
    }
    EXPECT_NE("", CoverageProblem(shape, broken, name));
    ++checked;
  }
  EXPECT_GT(checked, 1000);
}

// The whole way: save by `world` ranks, read by any other number of ranks, each its own cut, in either order.
TEST(RoundTrip, CKP_01_CKP_29_AnyWorldReadsAnyOther) {
  Random random;
  SCOPED_TRACE("TRIREME_SEED=" + std::to_string(random.seed()));
  for (int round = 0; round < 10 && !HasFailure(); ++round) {
    const testing::TemporaryRoot root;
    testing::SaveRequest request{.root = root.path(),
                                 .world = static_cast<int>(random.Between(1, 8)),
                                 .salt = random.seed() + static_cast<uint64_t>(round)};
    request.tensors.clear();
    for (int64_t i = random.Between(1, 6); i > 0; --i) {
      SavedTensor tensor{"t" + std::to_string(i), RandomShape(random), false};
      if (tensor.shape.size() == 2) tensor.transposed = random.Coin();
      request.tensors.push_back(tensor);
    }
    request.states.resize(static_cast<size_t>(random.Between(2, 4)));
    const auto defaults = testing::DefaultStates();
    std::copy_n(defaults.begin(), request.states.size(), request.states.begin());
    const auto folder = testing::Save(request);
    const auto reader = CheckpointReader::Open(folder);
    EXPECT_EQ("", testing::Difference(*reader, request));
    EXPECT_TRUE(VerifyCheckpoint(folder).ok());
    const int64_t world = random.Between(1, 8);
    for (const SavedTensor& tensor : request.tensors) {
      for (const SavedState& state : request.states) {
        const bool turned = tensor.shape.size() == 2 && random.Coin();
        const std::vector<std::byte> want = testing::BytesOf(tensor, state, request.salt, turned);
        std::vector<std::byte> found(want.size());
        const int64_t count = Numel(tensor.shape), shard = CeilDiv(std::max<int64_t>(count, 1), world),
                      size = SizeOf(state.dtype);
        for (int64_t begin = 0; begin < count; begin += shard) {
          const int64_t part = std::min(shard, count - begin);
          reader->ReadFlat(
              tensor.name, state.name, begin, part,
              std::span(found).subspan(static_cast<size_t>(begin * size), static_cast<size_t>(part * size)),
              turned ? Order::kTransposed : Order::kRowMajor);
        }
        EXPECT_EQ(want, found) << tensor.name << " " << state.name;
      }
    }
  }
}

// Slabs by tensor-parallel boxes, each box cut over data-parallel ranks: the format and the readers do not depend on
// the layout.
TEST(RoundTrip, CKP_03_BoxesCutOverRanks) {
  Random random;
  SCOPED_TRACE("TRIREME_SEED=" + std::to_string(random.seed()));
  for (int round = 0; round < 10 && !HasFailure(); ++round) {
    const testing::TemporaryRoot root;
    const int64_t rows = random.Between(1, 9), tp = random.Between(1, 4), columns = tp * random.Between(1, 5),
                  dp = random.Between(1, 3);
    const SavedTensor tensor{"w", {rows, columns}, false};
    const SavedState state{"master", DType::kFloat32};
    const std::vector<std::byte> whole = testing::BytesOf(tensor, state, 3, false);
    const Uuid uuid = NewUuid();
    BeginCheckpoint(root.path(), "t", uuid);
    std::vector<RankFileSummary> summaries;
    for (int64_t rank = 0; rank < tp * dp; ++rank) {
      const int64_t width = columns / tp, volume = rows * width, shard = CeilDiv(volume, dp);
      Region region;
      region.boxes = {{{0, rank / dp * width}, {rows, width}}};
      region.flat_begin = std::min(volume, rank % dp * shard);
      region.flat_count = std::min(volume, region.flat_begin + shard) - region.flat_begin;
      region.order = rank / dp % 2 == 0 ? Order::kTransposed : Order::kRowMajor;
      std::vector<std::byte> held;
      for (const int64_t element : Elements(tensor.shape, region)) {
        held.insert(held.end(), whole.begin() + element * 4, whole.begin() + element * 4 + 4);
      }
      RankWriter writer(TemporaryFolder(root.path(), "t", uuid), static_cast<int>(rank), uuid, 1);
      writer.Add({.tensor = "w", .state = "master", .dtype = DType::kFloat32, .shape = tensor.shape, .region = region},
                 held);
      summaries.push_back(RankFileSummary::FromJson(writer.Finish().ToJson()));
    }
    CommitCheckpoint(root.path(), "t", uuid, summaries, testing::MetadataFor(static_cast<int>(tp * dp)));
    const auto reader = CheckpointReader::Open(root.path());
    for (int i = 0; i < 20; ++i) {
      const Region wanted = RandomRegion(random, tensor.shape);
      std::vector<std::byte> want, found(static_cast<size_t>(wanted.flat_count * 4));
      for (const int64_t element : Elements(tensor.shape, wanted)) {
        want.insert(want.end(), whole.begin() + element * 4, whole.begin() + element * 4 + 4);
      }
      reader->ReadRegion("w", "master", wanted, found);
      EXPECT_EQ(want, found);
    }
  }
}

// Large enough that strided reads go through several buffers and many blocks.
TEST(RoundTrip, TurnedMatrixLargerThanABlock) {
  const testing::TemporaryRoot root;
  testing::SaveRequest request{.root = root.path(), .world = 3};
  request.tensors = {{"big", {2311, 1847}, true}};
  request.states = {{"master", DType::kFloat32}};
  testing::Save(request);
  EXPECT_EQ("", testing::Difference(*CheckpointReader::Open(root.path()), request));
}

}  // namespace
}  // namespace trireme::checkpoint
