#include "checkpoint/safetensors/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/huggingface.h"
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

// --- Hugging Face GPT-2 names ---

std::unique_ptr<CheckpointReader> Gpt2(const std::filesystem::path& folder, const std::string& prefix, bool with_head,
                                       bool tied, float head_first = 0) {
  const std::vector<float> wte = Sequence(6, 0), head = Sequence(6, head_first), mask = Sequence(4, 9);
  std::vector<TensorToWrite> tensors{
      Held(prefix + "wte.weight", DType::kFloat32, {3, 2}, std::as_bytes(std::span(wte))),
      Held(prefix + "h.0.ln_1.bias", DType::kFloat32, {4}, std::as_bytes(std::span(mask))),
      Held(prefix + "h.0.attn.bias", DType::kFloat32, {1, 1, 2, 2}, std::as_bytes(std::span(mask))),
      Held(prefix + "h.0.attn.masked_bias", DType::kFloat32, {}, std::as_bytes(std::span(mask)).first(4)),
      Held(prefix + "h.0.attn.c_attn.bias", DType::kFloat32, {4}, std::as_bytes(std::span(mask)))};
  if (with_head) tensors.push_back(Held("lm_head.weight", DType::kFloat32, {3, 2}, std::as_bytes(std::span(head))));
  WriteFolder(folder, tensors);
  return checkpoint::WithGpt2Names(CheckpointReader::Open(folder), tied);
}

TEST(Gpt2Names, WithAndWithoutPrefix) {
  for (const char* prefix : {"", "transformer."}) {
    const TemporaryRoot root;
    const auto reader = Gpt2(root.path(), prefix, false, true);
    std::vector<std::string> names;
    for (const auto& tensor : reader->tensors()) names.push_back(tensor.name);
    EXPECT_EQ((std::vector<std::string>{"transformer.h.0.attn.c_attn.bias", "transformer.h.0.ln_1.bias",
                                        "transformer.wte.weight"}),
              names);
    std::vector<float> row(2);
    reader->Read("lm_head.weight", "model", {{2, 0}, {1, 2}}, std::as_writable_bytes(std::span(row)));
    EXPECT_EQ((std::vector<float>{4, 5}), row);
  }
}

TEST(Gpt2Names, CKP_09_TiedHead) {
  const TemporaryRoot root;
  EXPECT_EQ(3u, Gpt2(root.path(), "", true, true)->tensors().size()) << "an equal head is the embedding";
  EXPECT_EQ("CKP020", IdOf([&] { Gpt2(root.path(), "", true, true, 1); }));
  const auto untied = Gpt2(root.path(), "", true, false, 1);
  EXPECT_EQ(4u, untied->tensors().size());
  std::vector<float> head(6);
  untied->ReadFlat("lm_head.weight", "model", 0, 6, std::as_writable_bytes(std::span(head)));
  EXPECT_EQ(Sequence(6, 1), head);
}

TEST(Gpt2Names, Transposed) {
  EXPECT_TRUE(checkpoint::IsGpt2Transposed("transformer.h.11.attn.c_attn.weight"));
  EXPECT_TRUE(checkpoint::IsGpt2Transposed("transformer.h.0.mlp.c_proj.weight"));
  EXPECT_FALSE(checkpoint::IsGpt2Transposed("transformer.h.0.mlp.c_proj.bias"));
  EXPECT_FALSE(checkpoint::IsGpt2Transposed("transformer.wte.weight"));
  EXPECT_FALSE(checkpoint::IsGpt2Transposed("lm_head.weight"));
}

}  // namespace
}  // namespace trireme::safetensors
