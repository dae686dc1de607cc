#include "engine/data/indexed_dataset.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "tests/unit/data/dataset_files.h"

namespace trireme::data {
namespace {

// An index written by hand, so that what the writer would refuse can be tried.
std::string Index(uint8_t code, const std::vector<int32_t>& lengths, const std::vector<int64_t>& offsets,
                  const std::vector<int64_t>& documents) {
  std::string out("MMIDIDX\0\0", 9);
  const auto append = [&](const auto& value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); };
  append(uint64_t{1});
  append(code);
  append(static_cast<uint64_t>(lengths.size()));
  append(static_cast<uint64_t>(documents.size()));
  for (const auto value : lengths) append(value);
  for (const auto value : offsets) append(value);
  for (const auto value : documents) append(value);
  return out;
}

TEST(IndexedDataset, WritesAndReadsDocuments) {
  const TestFolder folder;
  {
    IndexedWriter writer(folder / "a", TokenType::kUInt16);
    writer.AddSequence(std::vector<int32_t>{1, 2, 65535});
    writer.EndDocument();
    writer.EndDocument();  // empty
    writer.AddSequence(std::vector<int32_t>{4});
    writer.AddSequence(std::vector<int32_t>{5, 6});
    writer.EndDocument();
    writer.Finish();
  }
  const IndexedDataset data(folder / "a.bin");
  EXPECT_EQ(data.type(), TokenType::kUInt16);
  EXPECT_EQ(data.num_sequences(), 3);
  EXPECT_EQ(data.num_documents(), 3);
  EXPECT_EQ(data.num_tokens(), 6);
  EXPECT_EQ(data.Length(2), 2);
  EXPECT_EQ(data.FirstToken(2), 4);
  EXPECT_EQ(data.FirstToken(3), 6);
  std::vector<int32_t> all(6);
  data.Read(0, all);
  EXPECT_EQ(all, (std::vector<int32_t>{1, 2, 65535, 4, 5, 6}));
  EXPECT_EQ(data.Locate(2).document, 0);
  EXPECT_EQ(data.Locate(2).position, 2);
  EXPECT_EQ(data.Locate(5).document, 2);
  EXPECT_EQ(data.Locate(5).position, 2);
  EXPECT_FALSE(std::filesystem::exists(folder / "a.bin.tmp"));
}

TEST(IndexedDataset, TokenTypesAndIdsBeyondInt32) {
  const TestFolder folder;
  const int64_t ids[] = {7, -3, int64_t{1} << 40};
  WriteAll(folder / "a.bin", std::string(reinterpret_cast<const char*>(ids), sizeof ids));
  WriteAll(folder / "a.idx", Index(5, {3}, {0}, {0, 1}));
  const IndexedDataset data(folder / "a");
  std::vector<int32_t> read(3);
  data.Read(0, read);
  EXPECT_EQ(read, (std::vector<int32_t>{7, -1, INT32_MAX}));
  EXPECT_EQ(data.TokenAt(1), -3);
  EXPECT_EQ(data.TokenAt(2), int64_t{1} << 40);
}

TEST(IndexedDataset, CodesOfDeepSpeedOnlyWhenAsked) {
  const TestFolder folder;
  WriteAll(folder / "a.bin", std::string("\x01\x00\xff\xff", 4));
  WriteAll(folder / "a.idx", Index(6, {2}, {0}, {0, 1}));
  const Error error = ErrorOf([&] { IndexedDataset data(folder / "a"); });
  EXPECT_EQ(error.id(), "DAT004");
  ExpectContains(error.what(), {"code 6", "DeepSpeed"});
  EXPECT_EQ(IndexedDataset(folder / "a", CodeTable::kDeepSpeed).TokenAt(1), 65535);
}

TEST(IndexedDataset, DAT_07_TokenFileShorterThanItsIndex) {
  const TestFolder folder;
  CountingDataset(folder / "a", {600, 400});
  std::filesystem::resize_file(folder / "a.bin", 3600);
  const Error cut = ErrorOf([&] { IndexedDataset data(folder / "a"); });
  EXPECT_EQ(cut.id(), "DAT003");
  EXPECT_EQ(cut.code(), ErrorCode::kData);
  ExpectContains(cut.what(), {"a.bin", "3600 bytes", "900 tokens", "expects 4000 bytes", "1000 tokens", "fix:"});
  std::filesystem::resize_file(folder / "a.bin", 0);
  ExpectContains(ErrorOf([&] { IndexedDataset data(folder / "a"); }).what(), {"0 bytes", "expects 4000 bytes"});
  std::filesystem::resize_file(folder / "a.bin", 4004);
  ExpectContains(ErrorOf([&] { IndexedDataset data(folder / "a"); }).what(), {"4004 bytes", "too many"});
}

// 5 GiB that take no room on the disk: tokens lie beyond every 32-bit offset.
TEST(IndexedDataset, DAT_07_OffsetsAre64Bits) {
  const TestFolder folder;
  constexpr int32_t kLong = 1'200'000'000;
  constexpr int32_t kRest = 142'177'280;  // 5 GiB of int32 together
  constexpr int64_t kBytes = (int64_t{kLong} + kRest) * 4;
  static_assert(kBytes == int64_t{5} << 30);
  WriteAll(folder / "a.bin", "");
  if (::truncate((folder / "a.bin").c_str(), kBytes) != 0)
    GTEST_SKIP() << "this file system has no room for a sparse file of 5 GiB";
  const int descriptor = ::open((folder / "a.bin").c_str(), O_WRONLY | O_CLOEXEC);
  const int32_t marks[] = {11, 22};
  ASSERT_EQ(::pwrite(descriptor, &marks[0], 4, int64_t{kLong} * 4), 4);
  ASSERT_EQ(::pwrite(descriptor, &marks[1], 4, kBytes - 4), 4);
  ::close(descriptor);
  WriteAll(folder / "a.idx", Index(4, {kLong, kRest}, {0, int64_t{kLong} * 4}, {0, 1, 2}));
  const IndexedDataset data(folder / "a");
  EXPECT_EQ(data.num_tokens(), kBytes / 4);
  EXPECT_EQ(data.TokenAt(data.FirstToken(1)), 11);
  std::vector<int32_t> last(2);
  data.Read(data.num_tokens() - 2, last);
  EXPECT_EQ(last, (std::vector<int32_t>{0, 22}));
  EXPECT_EQ(data.Locate(kBytes / 4 - 1).document, 1);

  // An offset that a 32-bit sum would have made.
  WriteAll(folder / "a.idx",
           Index(4, {kLong, kRest}, {0, static_cast<int32_t>(int64_t{kLong} * 4 & 0xffffffff)}, {0, 1, 2}));
  EXPECT_EQ(ErrorOf([&] { IndexedDataset wrapped(folder / "a"); }).code(), ErrorCode::kData);
}

TEST(IndexedDataset, RefusesWhatIsNoIndex) {
  const TestFolder folder;
  const Error missing = ErrorOf([&] { IndexedDataset data(folder / "none"); });
  EXPECT_EQ(missing.id(), "DAT017");
  ExpectContains(missing.what(), {"none.idx", "trireme data build"});
  WriteAll(folder / "a.bin", "abcd");
  WriteAll(folder / "a.idx", "");
  EXPECT_EQ(ErrorOf([&] { IndexedDataset data(folder / "a"); }).id(), "DAT001");
  WriteAll(folder / "a.idx", "In the beginning God created the heaven and the earth.");
  EXPECT_EQ(ErrorOf([&] { IndexedDataset data(folder / "a"); }).id(), "DAT001");
  std::string version = Index(4, {1}, {0}, {0, 1});
  version[9] = 2;
  WriteAll(folder / "a.idx", version);
  ExpectContains(ErrorOf([&] { IndexedDataset data(folder / "a"); }).what(), {"DAT001", "version 2"});
}

TEST(IndexedDataset, RefusesAnInconsistentIndex) {
  const TestFolder folder;
  WriteAll(folder / "a.bin", std::string(12, 'x'));
  const auto id_with = [&](const std::string& index) {
    WriteAll(folder / "a.idx", index);
    return ErrorOf([&] { IndexedDataset data(folder / "a"); }).id();
  };
  WriteAll(folder / "a.idx", Index(4, {1, 2}, {0, 4}, {0, 1, 2}));
  EXPECT_EQ(IndexedDataset(folder / "a").num_tokens(), 3);
  EXPECT_EQ(id_with(Index(4, {1, 2}, {0, 8}, {0, 1, 2})), "DAT003");
  EXPECT_EQ(id_with(Index(4, {2, 2}, {0, 4}, {0, 1, 2})), "DAT005");   // overlap
  EXPECT_EQ(id_with(Index(4, {1, 2}, {4, 4}, {0, 1, 2})), "DAT005");   // does not begin at 0
  EXPECT_EQ(id_with(Index(4, {-1, 3}, {4, 0}, {0, 1, 2})), "DAT005");  // negative length
  EXPECT_EQ(id_with(Index(4, {1, 2}, {0, 4}, {})), "DAT005");
  EXPECT_EQ(id_with(Index(4, {1, 2}, {0, 4}, {1, 2})), "DAT005");
  EXPECT_EQ(id_with(Index(4, {1, 2}, {0, 4}, {0, 2, 1, 2})), "DAT005");
  EXPECT_EQ(id_with(Index(4, {1, 2}, {0, 4}, {0, 1})), "DAT005");
  EXPECT_EQ(id_with(Index(4, {1, 2}, {0, int64_t{1} << 62}, {0, 1, 2})), "DAT003");
  EXPECT_EQ(id_with(Index(4, {1, INT32_MAX}, {0, INT64_MAX - 4}, {0, 1, 2})), "DAT005");
  EXPECT_EQ(id_with(Index(4, {1, 2}, {0, 4}, {0, 1, 2}) + "x"), "DAT002");
  WriteAll(folder / "a.idx", Index(4, {1, 2}, {0, 4}, {0, 1, 2}) + "mm");  // modes of a multimodal writer
  EXPECT_EQ(IndexedDataset(folder / "a").num_tokens(), 3);
}

TEST(IndexedWriter, LeavesAnOlderDatasetAloneUntilFinish) {
  const TestFolder folder;
  CountingDataset(folder / "a", {3});
  const std::string bin = ReadAll(folder / "a.bin"), idx = ReadAll(folder / "a.idx");
  {
    IndexedWriter writer(folder / "a", TokenType::kInt32);
    writer.AddSequence(std::vector<int32_t>{9});
  }
  EXPECT_EQ(ReadAll(folder / "a.bin"), bin);
  EXPECT_EQ(ReadAll(folder / "a.idx"), idx);
  EXPECT_FALSE(std::filesystem::exists(folder / "a.bin.tmp"));
}

TEST(IndexedWriter, RefusesWrongIdsAndFolders) {
  const TestFolder folder;
  IndexedWriter writer(folder / "a", TokenType::kUInt16);
  EXPECT_EQ(ErrorOf([&] { writer.AddSequence(std::vector<int32_t>{65536}); }).id(), "DAT016");
  EXPECT_EQ(ErrorOf([&] { writer.AddSequence(std::vector<int32_t>{-1}); }).id(), "DAT016");
  const Error error = ErrorOf([&] { IndexedWriter none(folder / "no/such", TokenType::kUInt16); });
  EXPECT_EQ(error.id(), "DAT012");
  ExpectContains(error.what(), {"does not exist", "mkdir -p"});
}

TEST(TokenType, WritersChoiceByVocabulary) {
  EXPECT_EQ(TokenTypeForVocab(257), TokenType::kUInt16);
  EXPECT_EQ(TokenTypeForVocab(65499), TokenType::kUInt16);
  EXPECT_EQ(TokenTypeForVocab(65500), TokenType::kInt32);
}

}  // namespace
}  // namespace trireme::data
