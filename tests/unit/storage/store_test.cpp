#include "engine/storage/store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "engine/base/error.h"
#include "tests/unit/storage/storage_cases.h"

namespace trireme {
namespace {

using testing::Backend;
using testing::Breaking;
using testing::Fill;
using testing::Folder;

constexpr AioConfig kSmallBlocks{.block_size = 8192, .queue_depth = 3};

class StoreTest : public ::testing::TestWithParam<Backend> {
 protected:
  std::unique_ptr<StateStore> Make(std::vector<int64_t> sections, const AioConfig& aio = kSmallBlocks,
                                   testing::BrokenEngine::Result result = nullptr) {
    StoreOptions options{.folder = folder_.path(), .rank = 3, .aio = aio, .backend = GetParam()};
    if (result) options.wrap_engine = Breaking(std::move(result));
    return StateStore::Create(options, sections);
  }
  // Id of the error that f throws, "" if none.
  template <typename F>
  static std::string IdOf(F&& f, std::string* text = nullptr) {
    try {
      f();
    } catch (const Error& error) {
      if (text != nullptr) *text = error.what();
      return error.id();
    }
    return "";
  }

  Folder folder_;
};

TEST_P(StoreTest, WhatIsWrittenIsReadAndOtherSectionsStay) {
  const auto store = Make({10000, 0, 40961, 1});
  EXPECT_EQ(12288 + 0 + 45056 + 4096, store->file_bytes());
  AlignedMemory written(40961), read(40961), other(10000);
  Fill(written.span(), 1);
  Fill(read.span(), 2);
  store->Write(2, 0, written.span()).Wait();
  store->Read(2, 0, read.span()).Wait();
  EXPECT_TRUE(std::ranges::equal(written.span(), read.span()));
  Fill(other.span(), 3);
  store->Read(0, 0, other.span()).Wait();
  for (const std::byte byte : other.span()) ASSERT_EQ(std::byte{0}, byte) << "a section that was never written";
  std::byte last{7};
  store->Read(3, 0, std::span(&last, 1)).Wait();
  EXPECT_EQ(std::byte{0}, last);
  EXPECT_TRUE(store->Read(1, 0, {}).Ended());
}

TEST_P(StoreTest, PartsAtOffsetsAndMemoryThatIsNotAligned) {
  const auto store = Make({50000});
  AlignedMemory memory(50000 + 4096);
  const auto odd = memory.span().subspan(13, 50000);
  Fill(odd, 4);
  store->Write(0, 8192, odd.subspan(8192)).Wait();
  store->Write(0, 0, odd.first(8192)).Wait();
  std::vector<std::byte> back(50000);
  {
    DiskTransfer end = store->Read(0, 45056, std::span(back).subspan(45056));
    DiskTransfer begin = store->Read(0, 0, std::span(back).first(45056));
  }  // the destructors wait
  EXPECT_TRUE(std::ranges::equal(odd, back));
}

TEST_P(StoreTest, EveryValueOfTheAioKeysMovesTheSame) {
  AlignedMemory written(300001), read(300001);
  Fill(written.span(), 5);
  for (const AioConfig& aio : {AioConfig{}, AioConfig{.block_size = 1, .queue_depth = 1},
                               AioConfig{.block_size = 5000, .queue_depth = 7, .intra_op_parallelism = 3},
                               AioConfig{.block_size = 4096, .queue_depth = 2, .single_submit = true},
                               AioConfig{.block_size = 4096, .queue_depth = 5, .overlap_events = false},
                               AioConfig{.block_size = 4096, .single_submit = true, .overlap_events = false}}) {
    const auto store = Make({300001}, aio);
    store->Write(0, 0, written.span()).Wait();
    Fill(read.span(), 6);
    store->Read(0, 0, read.span()).Wait();
    EXPECT_TRUE(std::ranges::equal(written.span(), read.span())) << aio.block_size << " " << aio.queue_depth;
  }
}

TEST_P(StoreTest, NothingIsSeenInTheFolderAndManyStoresShareIt) {
  const auto one = Make({4096}), two = Make({4096});
  AlignedMemory a(4096), b(4096);
  Fill(a.span(), 1);
  Fill(b.span(), 2);
  one->Write(0, 0, a.span()).Wait();
  two->Write(0, 0, b.span()).Wait();
  one->Read(0, 0, b.span()).Wait();
  EXPECT_TRUE(std::ranges::equal(a.span(), b.span()));
  EXPECT_EQ(0, folder_.Entries());
}

TEST_P(StoreTest, ShortTransfersGoOn) {
  // Of each block the engine moves all, and says that it was a page, or a page and a half.
  int calls = 0;
  const auto store = Make({100000}, kSmallBlocks, [&](const BlockTask& task, int64_t result) {
    return task.bytes > 4096 ? (++calls % 2 ? 4096 : 6000) : result;
  });
  AlignedMemory written(100000), read(100000);
  Fill(written.span(), 8);
  store->Write(0, 0, written.span()).Wait();
  store->Read(0, 0, read.span()).Wait();
  EXPECT_TRUE(std::ranges::equal(written.span(), read.span()));
  EXPECT_GE(calls, 24);
}

TEST_P(StoreTest, InterruptedAndBusyCallsAreRepeated) {
  int calls = 0;
  const auto store = Make({20000}, kSmallBlocks, [&](const BlockTask&, int64_t result) {
    ++calls;
    return calls % 3 == 0 ? -EAGAIN : (calls % 3 == 1 ? -EINTR : result);
  });
  AlignedMemory written(20000), read(20000);
  Fill(written.span(), 9);
  store->Write(0, 0, written.span()).Wait();
  store->Read(0, 0, read.span()).Wait();
  EXPECT_TRUE(std::ranges::equal(written.span(), read.span()));
}

TEST_P(StoreTest, ErrorsNameRankPlaceAndReason) {
  for (const bool write : {false, true}) {
    const auto store = Make({4096, 32768}, kSmallBlocks, [&](const BlockTask& task, int64_t result) {
      return task.offset == 4096 + 16384 ? -EIO : result;
    });
    AlignedMemory memory(32768);
    std::string text;
    EXPECT_EQ("STO003", IdOf(
                            [&] {
                              if (write) store->Write(1, 0, memory.span()).Wait();
                              if (!write) store->Read(1, 0, memory.span()).Wait();
                            },
                            &text));
    for (const char* part : {"rank 3", write ? "writing" : "reading", "at 16384 of section 1", "nput/output error",
                             folder_.path().c_str(), "fix: "}) {
      EXPECT_NE(std::string::npos, text.find(part)) << part << " is not in " << text;
    }
    store->Read(0, 0, memory.span().first(4096)).Wait();  // the store goes on
  }
}

TEST_P(StoreTest, AFileThatWasCutIsAnError) {
  const auto store = Make({65536});
  AlignedMemory memory(65536);
  // The file has no name; this process's list of open files leads to it.
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    if (std::filesystem::read_symlink(entry.path(), none).string().starts_with(folder_.path().string())) {
      ASSERT_EQ(0, ::truncate(entry.path().c_str(), 20000));
    }
  }
  EXPECT_EQ("", IdOf([&] { store->Read(0, 0, memory.span().first(16384)).Wait(); }));
  EXPECT_EQ("STO004", IdOf([&] { store->Read(0, 16384, memory.span().first(8192)).Wait(); }));
  EXPECT_EQ("STO004", IdOf([&] { store->Read(0, 32768, memory.span().first(8192)).Wait(); }));
}

TEST_P(StoreTest, AFolderThatIsNotThereIsAnError) {
  const int64_t bytes = 1;
  std::string text;
  EXPECT_EQ("STO001", IdOf(
                          [&] {
                            StateStore::Create({.folder = folder_.path() / "none", .rank = 1, .backend = GetParam()},
                                               std::span(&bytes, 1));
                          },
                          &text));
  EXPECT_NE(std::string::npos, text.find("rank 1")) << text;
  std::ofstream(folder_.path() / "file") << "x";
  EXPECT_EQ("STO001", IdOf([&] { StateStore::Create({.folder = folder_.path() / "file"}, std::span(&bytes, 1)); }));
}

TEST_P(StoreTest, TooMuchIsRefusedAtTheStartWithNumbers) {
  std::string text;
  EXPECT_EQ("STO002", IdOf([&] { Make({int64_t{1} << 42}); }, &text));
  EXPECT_NE(std::string::npos, text.find("4.00 TiB")) << text;
  EXPECT_NE(std::string::npos, text.find(" are free")) << text;
  EXPECT_EQ(0, folder_.Entries());
}

INSTANTIATE_TEST_SUITE_P(, StoreTest, ::testing::ValuesIn(testing::Backends()),
                         [](const auto& test) { return testing::Name(test.param); });

}  // namespace
}  // namespace trireme
