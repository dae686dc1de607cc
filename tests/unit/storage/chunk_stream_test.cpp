#include "engine/storage/chunk_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "engine/base/error.h"
#include "tests/unit/storage/storage_cases.h"

namespace trireme {
namespace {

using testing::Breaking;
using testing::Folder;

constexpr int64_t kChunk = kStorageAlignment;

// Jobs of two states of 4 and 2 bytes; job j has the sections 2j and 2j + 1.
class ChunkStreamTest : public ::testing::Test {
 protected:
  void Make(const std::vector<int64_t>& elements, testing::BrokenEngine::Result result = nullptr) {
    std::vector<int64_t> sections;
    jobs_.clear();
    for (const int64_t count : elements) {
      const int first = static_cast<int>(sections.size());
      sections.insert(sections.end(), {4 * count, 2 * count});
      jobs_.push_back({.states = {{.section = first, .element_bytes = 4}, {.section = first + 1, .element_bytes = 2}},
                       .elements = count});
    }
    StoreOptions options{.folder = folder_.path(), .aio = {.block_size = 8192, .queue_depth = 4}};
    if (result) options.wrap_engine = Breaking(std::move(result));
    store_ = StateStore::Create(options, sections);
  }
  static StreamOptions Options(int64_t buffers, bool read, bool write) {
    return {.chunk_elements = kChunk,
            .bytes_per_element = 6,
            .buffer_count = buffers,
            .pipeline_read = read,
            .pipeline_write = write};
  }
  // wide += step * (index + 1), narrow = low half of wide.
  static void Step(const StreamChunk& chunk, uint32_t step) {
    auto* wide = reinterpret_cast<uint32_t*>(chunk.states[0]);
    auto* narrow = reinterpret_cast<uint16_t*>(chunk.states[1]);
    for (int64_t i = 0; i < chunk.count; ++i) {
      wide[i] += step * static_cast<uint32_t>(chunk.first + i + 1);
      narrow[i] = static_cast<uint16_t>(narrow[i] + wide[i]);
    }
  }
  void ExpectState(const StreamJob& job, uint32_t steps) {
    std::vector<uint32_t> wide(static_cast<size_t>(job.elements));
    std::vector<uint16_t> narrow(wide.size());
    store_->Read(job.states[0].section, 0, std::as_writable_bytes(std::span(wide))).Wait();
    store_->Read(job.states[1].section, 0, std::as_writable_bytes(std::span(narrow))).Wait();
    for (size_t i = 0; i < wide.size(); ++i) {
      uint32_t sum = 0, sums = 0;
      for (uint32_t step = 1; step <= steps; ++step) sums += sum += step * static_cast<uint32_t>(i + 1);
      ASSERT_EQ(sum, wide[i]) << i;
      ASSERT_EQ(static_cast<uint16_t>(sums), narrow[i]) << i;
    }
  }

  Folder folder_;
  std::unique_ptr<StateStore> store_;
  std::vector<StreamJob> jobs_;
};

TEST_F(ChunkStreamTest, StepsOverJobsOfUnevenSizes) {
  for (const int64_t buffers : {1, 2, 3, 5}) {
    for (const bool read : {false, true}) {
      for (const bool write : {false, true}) {
        Make({5 * kChunk + 17, 1, 0, kChunk, 3 * kChunk - 1});
        ChunkStream stream(*store_, Options(buffers, read, write));
        for (uint32_t step = 1; step <= 2; ++step) {
          for (size_t j = 0; j < jobs_.size(); ++j) {
            stream.Run(
                jobs_[j], [&](const StreamChunk& chunk) { Step(chunk, step); }, &jobs_[(j + 1) % jobs_.size()]);
          }
        }
        stream.Finish();
        for (const StreamJob& job : jobs_) ExpectState(job, 2);
      }
    }
  }
}

TEST_F(ChunkStreamTest, WhatWasReadAheadIsDroppedIfAnotherJobComes) {
  Make({2 * kChunk, 2 * kChunk, 2 * kChunk});
  ChunkStream stream(*store_, Options(4, true, true));
  const auto step = [&](uint32_t number) { return [number](const StreamChunk& chunk) { Step(chunk, number); }; };
  stream.Run(jobs_[0], step(1), &jobs_[1]);
  stream.Run(jobs_[2], step(1), &jobs_[0]);
  stream.Run(jobs_[2], step(2), &jobs_[1]);
  stream.Finish();
  stream.Run(jobs_[1], step(1));
  stream.Finish();
  ExpectState(jobs_[0], 1);
  ExpectState(jobs_[1], 1);
  ExpectState(jobs_[2], 2);
}

TEST_F(ChunkStreamTest, StatesThatAreOnlyReadOrOnlyWritten) {
  Make({kChunk + 5});
  StreamJob read_only = jobs_[0], write_only = jobs_[0];
  for (StreamedState& state : read_only.states) state.write = false;
  for (StreamedState& state : write_only.states) state.read = false;
  ChunkStream stream(*store_, Options(2, true, true));
  stream.Run(write_only, [](const StreamChunk& chunk) {
    std::memset(chunk.states[0], 0, static_cast<size_t>(4 * chunk.count));
    std::memset(chunk.states[1], 0, static_cast<size_t>(2 * chunk.count));
    Step(chunk, 1);
  });
  stream.Run(read_only, [](const StreamChunk& chunk) { Step(chunk, 7); });
  stream.Finish();
  ExpectState(jobs_[0], 1);
}

TEST_F(ChunkStreamTest, ChunksAreReadAheadAndWrittenBehind) {
  // Blocks under way while the caller works: none without pipelining.
  for (const bool pipelined : {false, true}) {
    std::mutex mutex;
    std::set<int64_t> reads;
    Make({8 * kChunk}, [&](const BlockTask& task, int64_t result) {
      const std::lock_guard lock(mutex);
      if (!task.write) reads.insert(task.offset);
      return result;
    });
    ChunkStream stream(*store_, Options(4, pipelined, pipelined));
    size_t read_by_the_first = 0;
    stream.Run(jobs_[0], [&](const StreamChunk& chunk) {
      Step(chunk, 1);
      if (chunk.first != 0) return;
      const size_t wanted = pipelined ? 12 : 3;  // blocks of 8192 bytes: 3 a chunk
      for (int wait = 0; wait < 2000; ++wait) {
        {
          const std::lock_guard lock(mutex);
          read_by_the_first = reads.size();
        }
        if (read_by_the_first >= wanted) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    stream.Finish();
    EXPECT_EQ(pipelined ? 12U : 3U, read_by_the_first);
  }
}

TEST_F(ChunkStreamTest, ErrorsComeOutAndTheStreamGoesOn) {
  std::atomic<bool> broken = false;
  for (const bool write : {false, true}) {
    for (const bool pipelined : {false, true}) {
      broken = false;
      Make({6 * kChunk}, [&](const BlockTask& task, int64_t result) {
        return broken && task.write == write && task.offset == 8192 * 5 ? -EIO : result;
      });
      ChunkStream stream(*store_, Options(3, pipelined, pipelined));
      const auto step = [](const StreamChunk& chunk) { Step(chunk, 1); };
      broken = true;
      EXPECT_THROW(
          {
            stream.Run(jobs_[0], step, &jobs_[0]);
            stream.Finish();
          },
          Error);
      broken = false;
      StreamJob fresh = jobs_[0];
      for (StreamedState& state : fresh.states) state.read = false;
      stream.Run(fresh, [](const StreamChunk& chunk) {
        std::memset(chunk.states[0], 0, static_cast<size_t>(4 * chunk.count));
        std::memset(chunk.states[1], 0, static_cast<size_t>(2 * chunk.count));
      });
      stream.Run(jobs_[0], step);
      stream.Finish();
      ExpectState(jobs_[0], 1);
    }
  }
}

TEST_F(ChunkStreamTest, AnUpdateThatThrowsLeavesNothingUnderWay) {
  Make({6 * kChunk});
  ChunkStream stream(*store_, Options(4, true, true));
  EXPECT_THROW(stream.Run(jobs_[0],
                          [](const StreamChunk& chunk) {
                            if (chunk.first > 0) throw std::runtime_error("no");
                          }),
               std::runtime_error);
  stream.Run(jobs_[0], [](const StreamChunk& chunk) { Step(chunk, 1); });
  stream.Finish();
  ExpectState(jobs_[0], 1);
}

}  // namespace
}  // namespace trireme
