// Random sections, parts, blocks and faults against a copy in memory.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <random>

#include "engine/base/bytes.h"
#include "engine/storage/chunk_stream.h"
#include "tests/unit/storage/storage_cases.h"

namespace trireme {
namespace {

using testing::Backend;
using testing::Folder;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t UpTo(int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(engine_); }
  int64_t Size() { return UpTo(3) == 0 ? UpTo(20) : UpTo(1 << UpTo(17)); }  // often small, often near a page
  bool Coin() { return UpTo(1) == 0; }
  AioConfig Aio() {
    return {.block_size = 1 + UpTo(1 << UpTo(16)),
            .queue_depth = 1 + UpTo(9),
            .intra_op_parallelism = 1 + UpTo(2),
            .single_submit = Coin(),
            .overlap_events = Coin()};
  }

 private:
  std::mt19937_64 engine_;
};

// Now and then a call is interrupted, or moves only a part.
auto SometimesShort(uint64_t seed) {
  auto calls = std::make_shared<std::atomic<uint64_t>>(seed);
  return testing::Breaking([calls](const BlockTask&, int64_t result) {
    const uint64_t call = ++*calls;
    if (call % 5 == 0) return static_cast<int64_t>(-EAGAIN);
    return call % 3 == 0 && result > 8192 ? result / 2 : result;
  });
}

class StorePropertyTest : public ::testing::TestWithParam<Backend> {};

TEST_P(StorePropertyTest, EveryPartReadsAsLastWritten) {
  const Folder folder;
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    std::vector<int64_t> sections;
    std::vector<std::vector<std::byte>> expected;
    for (int64_t i = random.UpTo(4); i >= 0; --i) {
      sections.push_back(random.Size());
      expected.emplace_back(static_cast<size_t>(sections.back()));
    }
    StoreOptions options{.folder = folder.path(), .aio = random.Aio(), .backend = GetParam()};
    if (random.Coin()) options.wrap_engine = SometimesShort(seed);
    const auto store = StateStore::Create(options, sections);
    std::vector<std::byte> memory((1 << 17) + 5000);
    for (int i = 0; i < 20; ++i) {
      const int section = static_cast<int>(random.UpTo(store->num_sections() - 1));
      auto& whole = expected[static_cast<size_t>(section)];
      const int64_t size = store->section_bytes(section);
      const int64_t begin = random.UpTo(size / kStorageAlignment) * kStorageAlignment;
      const int64_t end = std::min(size, begin + random.UpTo(size / kStorageAlignment + 1) * kStorageAlignment);
      const auto part = std::span(whole).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
      const auto moved = std::span(memory).subspan(static_cast<size_t>(random.UpTo(4500)), part.size());
      testing::Fill(moved, seed * 1000 + static_cast<uint64_t>(i));
      if (random.Coin()) {
        std::ranges::copy(moved, part.begin());
        store->Write(section, begin, moved).Wait();
      } else {
        store->Read(section, begin, moved).Wait();
        ASSERT_TRUE(std::ranges::equal(moved, part)) << "bytes " << begin << " to " << end << " of " << size;
      }
    }
  }
}

TEST_P(StorePropertyTest, ManyTransfersAtOnceDoNotMix) {
  const Folder folder;
  constexpr int64_t kParts = 40, kBytes = 3 * kStorageAlignment;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Random random(seed);
    const int64_t bytes = kParts * kBytes;
    const auto store = StateStore::Create(
        {.folder = folder.path(), .aio = random.Aio(), .backend = GetParam(), .wrap_engine = SometimesShort(seed)},
        std::span(&bytes, 1));
    AlignedMemory written(bytes), read(bytes);
    testing::Fill(written.span(), seed);
    const auto part = [&](const AlignedMemory& memory, int64_t i) {
      return memory.span().subspan(static_cast<size_t>(i * kBytes), kBytes);
    };
    std::vector<DiskTransfer> transfers;
    for (int64_t i = 0; i < kParts; ++i) transfers.push_back(store->Write(0, i * kBytes, part(written, i)));
    for (DiskTransfer& transfer : transfers) transfer.Wait();
    transfers.clear();
    for (int64_t i = kParts - 1; i >= 0; --i) transfers.push_back(store->Read(0, i * kBytes, part(read, i)));
    for (DiskTransfer& transfer : transfers) transfer.Wait();
    EXPECT_TRUE(std::ranges::equal(written.span(), read.span())) << "seed " << seed;
  }
}

// Counters that are streamed again and again, in random order and cut: each ends at the number of its visits.
TEST_P(StorePropertyTest, StreamsVisitEveryElementOnce) {
  const Folder folder;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    std::vector<StreamJob> jobs;
    std::vector<int64_t> sections;
    for (int64_t i = random.UpTo(3); i >= 0; --i) {
      const int64_t elements = random.UpTo(4) * 4096 + random.UpTo(3) - 1;
      jobs.push_back({.states = {{.section = static_cast<int>(jobs.size()), .element_bytes = 8}},
                      .elements = std::max<int64_t>(0, elements)});
      sections.push_back(8 * jobs.back().elements);
    }
    StoreOptions options{.folder = folder.path(), .aio = random.Aio(), .backend = GetParam()};
    if (random.Coin()) options.wrap_engine = SometimesShort(seed);
    const auto store = StateStore::Create(options, sections);
    std::vector<int64_t> visits(jobs.size());
    {
      ChunkStream stream(*store, {.chunk_elements = 4096 * (1 + random.UpTo(1)),
                                  .bytes_per_element = 8,
                                  .buffer_count = 1 + random.UpTo(4),
                                  .pipeline_read = random.Coin(),
                                  .pipeline_write = random.Coin()});
      size_t job = 0;
      for (int i = 0; i < 12; ++i) {
        const size_t next = static_cast<size_t>(random.UpTo(static_cast<int64_t>(jobs.size()) - 1));
        ++visits[job];
        stream.Run(
            jobs[job],
            [](const StreamChunk& chunk) {
              auto* counts = reinterpret_cast<int64_t*>(chunk.states[0]);
              for (int64_t e = 0; e < chunk.count; ++e) counts[e] += chunk.first + e;
            },
            random.Coin() ? &jobs[next] : nullptr);
        job = random.UpTo(3) > 0 ? next : static_cast<size_t>(random.UpTo(static_cast<int64_t>(jobs.size()) - 1));
      }
      stream.Finish();
    }
    for (size_t job = 0; job < jobs.size(); ++job) {
      std::vector<int64_t> counts(static_cast<size_t>(jobs[job].elements));
      store->Read(static_cast<int>(job), 0, std::as_writable_bytes(std::span(counts))).Wait();
      for (size_t e = 0; e < counts.size(); ++e) ASSERT_EQ(visits[job] * static_cast<int64_t>(e), counts[e]) << job;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, StorePropertyTest, ::testing::ValuesIn(testing::Backends()),
                         [](const auto& test) { return testing::Name(test.param); });

}  // namespace
}  // namespace trireme
