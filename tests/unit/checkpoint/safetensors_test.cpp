#include "checkpoint/safetensors/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/verify.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "tests/unit/checkpoint/saved.h"

namespace trireme::safetensors {
namespace {

using checkpoint::CheckpointReader;
using checkpoint::Order;
using checkpoint::testing::IdOf;
using checkpoint::testing::TemporaryRoot;

std::vector<float> Sequence(size_t count, float first) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = first + static_cast<float>(i);
  return out;
}

// A file of the reference implementation's layout, written by hand.
std::string FileOf(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + header + std::string(data_bytes, '\x01');
}

void ExpectRefused(const std::string& header, size_t data_bytes, const std::string& part) {
  const std::string text = FileOf(header, data_bytes);
  try {
    ParseHeader(std::as_bytes(std::span(text)), static_cast<int64_t>(text.size()), "f");
    ADD_FAILURE() << "accepted: " << header;
  } catch (const Error& error) {
    EXPECT_EQ("CKP017", error.id());
    EXPECT_NE(std::string::npos, error.message().find(part)) << error.message();
  }
}

TEST(Safetensors, SingleFile) {
  const TemporaryRoot root;
  const std::vector<float> a = Sequence(12, 0), c = Sequence(1, 5);
  const std::vector<uint16_t> b{0x3F80, 0x4000};
  const std::vector<TensorToWrite> tensors{Held("b", DType::kBFloat16, {2}, std::as_bytes(std::span(b))),
                                           Held("a", DType::kFloat32, {3, 4}, std::as_bytes(std::span(a))),
                                           Held("scalar", DType::kFloat32, {}, std::as_bytes(std::span(c))),
                                           Held("none", DType::kFloat32, {0, 7}, {})};
  WriteFolder(root.path(), tensors);
  const std::string text = trireme::ReadFile(root.path() / "model.safetensors", ErrorCode::kCheckpoint);
  uint64_t length = 0;
  std::memcpy(&length, text.data(), 8);
  EXPECT_EQ(0u, length % 8);
  EXPECT_EQ(8 + length + 12 * 4 + 4 + 2 * 2, text.size()) << "CKP-23: no byte more than header and tensors";
  EXPECT_NE(std::string::npos, text.find(R"("__metadata__":{"format":"pt"})"));
  const auto reader = CheckpointReader::Open(root.path());
  EXPECT_EQ("safetensors", reader->info().format);
  ASSERT_EQ(4u, reader->tensors().size());
  std::vector<float> turned(12), box(4);
  reader->ReadFlat("a", "model", 0, 12, std::as_writable_bytes(std::span(turned)), Order::kTransposed);
  EXPECT_EQ((std::vector<float>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}), turned);
  reader->Read("a", "model", {{1, 1}, {2, 2}}, std::as_writable_bytes(std::span(box)));
  EXPECT_EQ((std::vector<float>{5, 6, 9, 10}), box);
  std::vector<uint16_t> b_found(2);
  reader->ReadFlat("b", "model", 0, 2, std::as_writable_bytes(std::span(b_found)));
  EXPECT_EQ(b, b_found);
  EXPECT_EQ("CKP009", IdOf([&] { reader->ReadFlat("a", "master", 0, 12, std::as_writable_bytes(std::span(turned))); }));
  EXPECT_TRUE(checkpoint::VerifyCheckpoint(root.path()).ok());
}

TEST(Safetensors, ShardsAndWhatCanBeWrongWithThem) {
  const TemporaryRoot root;
  const std::vector<float> values = Sequence(10, 0);
  std::vector<TensorToWrite> tensors;
  for (const char* name : {"x", "y", "z"})
    tensors.push_back(Held(name, DType::kFloat32, {10}, std::as_bytes(std::span(values))));
  WriteFolder(root.path(), tensors, 90);
  EXPECT_TRUE(std::filesystem::exists(root.path() / "model-00002-of-00002.safetensors"));
  const auto reader = CheckpointReader::Open(root.path());
  EXPECT_EQ(3u, reader->tensors().size());
  EXPECT_EQ(120, reader->info().stored_bytes);
  std::vector<float> found(3);
  reader->ReadFlat("z", "model", 4, 3, std::as_writable_bytes(std::span(found)));
  EXPECT_EQ((std::vector<float>{4, 5, 6}), found);

  const std::filesystem::path index = root.path() / "model.safetensors.index.json";
  const auto with = [&](const std::string& map) {
    WriteFileDurably(index, R"({"weight_map":{)" + map + "}}", ErrorCode::kCheckpoint);
    return IdOf([&] { CheckpointReader::Open(root.path()); });
  };
  const std::string x = R"("x":"model-00001-of-00002.safetensors")", y = R"("y":"model-00001-of-00002.safetensors")";
  EXPECT_EQ("CKP018", with(x));  // one of two shards is named
  EXPECT_EQ("CKP018", with(x + "," + y + R"(,"w":"model-00002-of-00002.safetensors")"));
  EXPECT_EQ("CKP018", with(x + "," + x));
  EXPECT_EQ("CKP018", with(R"("x":"../model.safetensors")"));
  EXPECT_EQ("CKP018", with(R"("x":3)"));
  EXPECT_EQ("", with(x + "," + y + R"(,"z":"model-00002-of-00002.safetensors")"));
  std::filesystem::remove(root.path() / "model-00002-of-00002.safetensors");
  EXPECT_EQ("CKP018", IdOf([&] { CheckpointReader::Open(root.path()); }));
}

TEST(Safetensors, DamagedHeaders) {
  ExpectRefused("", 0, "does not begin with {");
  ExpectRefused("[]", 0, "does not begin with {");
  ExpectRefused("{", 0, "");
  ExpectRefused(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      4, "occurs twice");
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[1]}})", 4, "lacks");
  ExpectRefused(R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4, "unknown dtype");
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "extent");
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "extent");
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "bytes");
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "4 bytes");
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "lies at");
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3, "lies at");
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8, "tensors end at");
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "begins at");
  ExpectRefused(R"({"__metadata__":{"a":1}})", 0, "more than texts");
  ExpectRefused(R"({"a":)" + std::string(100, '[') + std::string(100, ']') + "}", 0, "64 levels");
  std::string pointer = "version https://git-lfs.github.com/spec/v1";
  EXPECT_EQ("CKP017", IdOf([&] { ParseHeader(std::as_bytes(std::span(pointer)), 42, "f"); }));
  EXPECT_EQ("CKP017", IdOf([&] { ParseHeader(std::as_bytes(std::span(pointer)).first(5), 5, "f"); }));
}

TEST(Safetensors, TypesWithoutANameAreLeftOutWithAWarning) {
  const TemporaryRoot root;
  WriteFileDurably(
      root.path() / "m.safetensors",
      FileOf(
          R"({"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"BOOL","shape":[1],"data_offsets":[2,3]}})",
          3),
      ErrorCode::kCheckpoint);
  const auto reader = CheckpointReader::Open(root.path() / "m.safetensors");
  ASSERT_EQ(1u, reader->tensors().size());
  EXPECT_EQ("b", reader->tensors()[0].name);
  ASSERT_EQ(1u, reader->info().warnings.size());
  EXPECT_NE(std::string::npos, reader->info().warnings[0].find("F8_E4M3"));
}

TEST(Safetensors, PiecesInAnyOrderAndNothingUntilTheEnd) {
  const TemporaryRoot root;
  const std::vector<float> a = Sequence(6, 0), b = Sequence(4, 50);
  const auto bytes = [](const std::vector<float>& v) { return std::as_bytes(std::span(v)); };
  {
    FolderWriter writer(root.path(), {{"a", DType::kFloat32, {2, 3}}, {"b", DType::kFloat32, {4}}}, 30);
    EXPECT_EQ(40, writer.total_bytes());
    writer.Write("b", 8, bytes(b).subspan(8));
    writer.Write("a", 0, bytes(a));
    EXPECT_FALSE(IsSafetensors(root.path()));
    EXPECT_THROW(writer.Finish(), Error) << "half of b is missing";
    writer.Write("b", 0, bytes(b).first(8));
    writer.Finish();
  }
  const auto reader = CheckpointReader::Open(root.path());
  std::vector<float> got(4);
  reader->ReadFlat("b", "model", 0, 4, std::as_writable_bytes(std::span(got)));
  EXPECT_EQ(b, got);
  EXPECT_TRUE(std::filesystem::exists(root.path() / "model-00002-of-00002.safetensors"));
  { const FolderWriter abandoned(root.path() / "..", {{"a", DType::kFloat32, {1}}}); }
  EXPECT_FALSE(std::filesystem::exists(root.path() / "../model.safetensors.tmp"));
}

}  // namespace
}  // namespace trireme::safetensors
