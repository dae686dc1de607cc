#include <gtest/gtest.h>

#include <thread>

#include "checkpoint/find.h"
#include "checkpoint/reader.h"
#include "checkpoint/verify.h"
#include "checkpoint/writer.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "tests/unit/checkpoint/saved.h"

namespace trireme::checkpoint {
namespace {

using testing::Difference;
using testing::IdOf;
using testing::Save;
using testing::SaveRequest;
using testing::TemporaryRoot;

TEST(Native, CKP_03_RoundTripTellsTensorsStatesAndNotes) {
  const TemporaryRoot root;
  const SaveRequest request{.root = root.path(), .world = 3};
  Save(request);
  const auto reader = CheckpointReader::Open(root.path());
  EXPECT_EQ("", Difference(*reader, request));
  EXPECT_EQ("trireme", reader->info().format);
  EXPECT_EQ("global_step7", reader->info().tag);
  EXPECT_EQ(7, reader->info().step);
  EXPECT_EQ(3, reader->info().topology.dp);
  EXPECT_EQ(2, reader->info().topology.zero_stage);
  EXPECT_EQ((std::array<int, 5>{0, 2, 0, 0, 0}), reader->info().topology.ranks.at(2));
  EXPECT_EQ(R"({"consumed_samples":56})", reader->info().data_position);
  EXPECT_EQ(R"({"type":"AdamW","applied_steps":7})", reader->info().optimizer);
  ASSERT_EQ(7u, reader->tensors().size());
  const TensorInfo& wte = reader->Require("transformer.wte.weight");
  EXPECT_EQ((std::vector<int64_t>{13, 6}), wte.shape);
  EXPECT_EQ(DType::kBFloat16, wte.dtype);
  EXPECT_EQ(DType::kFloat64, wte.FindState("exp_avg_sq")->dtype);
  EXPECT_EQ((std::vector<std::byte>{std::byte{1}, std::byte{2}}), reader->ReadBlob(2, "rng/dropout"));
  EXPECT_TRUE(reader->ReadBlob(2, "rng/none").empty());
}

TEST(Native, BoxInBothOrders) {
  const TemporaryRoot root;
  const SaveRequest request{.root = root.path(), .world = 4};
  Save(request);
  const auto reader = CheckpointReader::Open(root.path());
  const std::string name = "transformer.h.0.attn.c_attn.weight";
  std::vector<uint32_t> box(3 * 5), turned(3 * 5);
  reader->Read(name, "master", {{2, 7}, {3, 5}}, std::as_writable_bytes(std::span(box)));
  reader->Read(name, "master", {{2, 7}, {3, 5}}, std::as_writable_bytes(std::span(turned)), Order::kTransposed);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < 5; ++c) {
      const auto want = static_cast<uint32_t>(testing::ValueOf(name, "master", (r + 2) * 18 + c + 7, request.salt));
      EXPECT_EQ(want, box[r * 5 + c]);
      EXPECT_EQ(want, turned[c * 3 + r]);
    }
  }
}

TEST(Native, RanksMayBeThreads) {
  const TemporaryRoot root;
  const SaveRequest request{.root = root.path(), .world = 6};
  const Uuid uuid = NewUuid();
  BeginCheckpoint(root.path(), request.tag, uuid);
  std::vector<RankFileSummary> summaries(6);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 6; ++rank) {
    threads.emplace_back([&, rank] {
      const testing::RankSave save(request.tensors, request.states, rank, 6, request.salt);
      RankWriter writer(TemporaryFolder(root.path(), request.tag, uuid), rank, uuid, request.step);
      save.AddTo(writer);
      summaries[rank] = writer.Finish();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CommitCheckpoint(root.path(), request.tag, uuid, summaries, testing::MetadataFor(6), {.reread_hashes = true});
  const auto reader = CheckpointReader::Open(root.path());
  std::vector<std::string> differences(4, "not run");
  threads.clear();
  for (std::string& difference : differences) threads.emplace_back([&] { difference = Difference(*reader, request); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::vector<std::string>(4), differences);
  EXPECT_TRUE(VerifyCheckpoint(root.path() / request.tag).ok());
}

// Bytes that come through a callback (from a device) equal bytes that are held, and a slab may span several 16 MiB
// blocks.
TEST(Native, PartsByCallbackOverSeveralBlocks) {
  const TemporaryRoot root;
  const int64_t count = (40 << 20) / 4 + 3;
  std::vector<uint32_t> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<uint32_t>(i * 2654435761u);
  const auto bytes = std::as_bytes(std::span(values));
  const Uuid uuid = NewUuid();
  BeginCheckpoint(root.path(), "t", uuid);
  RankWriter writer(TemporaryFolder(root.path(), "t", uuid), 0, uuid, 1);
  const Region all{.boxes = {}, .flat_begin = 0, .flat_count = count, .order = Order::kRowMajor};
  writer.Add(
      {.tensor = "small", .state = "master", .dtype = DType::kFloat32, .shape = {3}, .region = {.flat_count = 3}},
      bytes.first(12));
  writer.Add({.tensor = "held", .state = "master", .dtype = DType::kFloat32, .shape = {count}, .region = all}, bytes);
  int64_t next = 0;
  writer.AddPart("exp_avg", DType::kFloat32, count,
                 [&](int64_t begin, std::span<std::byte> out) {
                   EXPECT_EQ(next, begin);
                   next += static_cast<int64_t>(out.size());
                   std::memcpy(out.data(), bytes.data() + begin, out.size());
                 },
                 {{.tensor = "held", .shape = {count}, .region = all, .elem_offset = 0}});
  EXPECT_EQ(12 + 2 * count * 4, writer.bytes());
  const RankFileSummary summary = writer.Finish();
  EXPECT_EQ(summary.slabs[1].xxh3, Xxh3(bytes));
  EXPECT_EQ(summary.slabs[2].xxh3, Xxh3(bytes));
  EXPECT_LT(summary.bytes, (12 + 2 * count * 4) * 101 / 100) << "CKP-23: the file is hardly larger than its contents";
  CommitCheckpoint(root.path(), "t", uuid, std::span(&summary, 1), testing::MetadataFor(1), {.reread_hashes = true});
  const auto reader = CheckpointReader::Open(root.path());
  std::vector<uint32_t> found(count);
  for (const char* state : {"master", "exp_avg"}) {
    reader->ReadFlat("held", state, 0, count, std::as_writable_bytes(std::span(found)));
    EXPECT_EQ(values, found) << state;
  }
  std::vector<uint32_t> part(100);
  reader->ReadFlat("held", "master", (16 << 20) / 4 - 50, 100, std::as_writable_bytes(std::span(part)));
  EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + (16 << 20) / 4 - 50));
}

TEST(Native, CKP_09_TiedTensorIsAnAlias) {
  const TemporaryRoot root;
  const SaveRequest request{.root = root.path(), .world = 1};
  const Uuid uuid = NewUuid();
  BeginCheckpoint(root.path(), "t", uuid);
  const testing::RankSave save(request.tensors, request.states, 0, 1, request.salt);
  RankWriter writer(TemporaryFolder(root.path(), "t", uuid), 0, uuid, 1);
  save.AddTo(writer);
  const RankFileSummary summary = writer.Finish();
  CheckpointMetadata metadata = testing::MetadataFor(1);
  metadata.parameters["lm_head.weight"].alias_of = "transformer.wte.weight";
  metadata.parameter_order = {"scalar"};
  CommitCheckpoint(root.path(), "t", uuid, std::span(&summary, 1), metadata);
  const auto reader = CheckpointReader::Open(root.path() / "t");
  EXPECT_EQ("transformer.wte.weight", reader->info().aliases.at("lm_head.weight"));
  EXPECT_EQ("transformer.wte.weight", reader->Require("lm_head.weight").name);
  std::vector<std::byte> a(13 * 6 * 4), b(13 * 6 * 4);
  reader->ReadFlat("lm_head.weight", "master", 0, 78, a);
  reader->ReadFlat("transformer.wte.weight", "master", 0, 78, b);
  EXPECT_EQ(a, b);
}

TEST(Native, UnknownTensorStateAndRange) {
  const TemporaryRoot root;
  Save({.root = root.path()});
  const auto reader = CheckpointReader::Open(root.path());
  std::vector<std::byte> out(4);
  EXPECT_EQ("CKP009", IdOf([&] { reader->ReadFlat("transformer.wte.weigth", "master", 0, 1, out); }));
  EXPECT_EQ("CKP009", IdOf([&] { reader->ReadFlat("transformer.wte.weight", "momentum", 0, 1, out); }));
  EXPECT_EQ("CKP010", IdOf([&] { reader->ReadFlat("transformer.wte.weight", "master", 78, 1, out); }));
  EXPECT_EQ("CKP010", IdOf([&] { reader->Read("transformer.wte.weight", "master", {{0, 6}, {1, 1}}, out); }));
  EXPECT_EQ("CKP010", IdOf([&] { reader->ReadFlat("scalar", "master", 0, 1, out, Order::kTransposed); }));
  EXPECT_EQ("INT001", IdOf([&] { reader->ReadFlat("transformer.wte.weight", "master", 0, 2, out); }));
  try {
    reader->Require("transformer.wte.weigth");
  } catch (const Error& error) {
    EXPECT_EQ("did you mean transformer.wte.weight?", error.fix());
  }
}

TEST(Native, CKP_06_RequireTensorsReportsAllAtOnce) {
  const TemporaryRoot root;
  Save({.root = root.path()});
  const auto reader = CheckpointReader::Open(root.path());
  std::vector<ExpectedTensor> expected;
  for (const testing::SavedTensor& tensor : testing::DefaultTensors()) expected.push_back({tensor.name, tensor.shape});
  const std::vector<std::string> states{"master"};
  RequireTensors(*reader, expected, states);
  expected[0].shape = {13, 7};
  expected[1].name = "transformer.h.1.ln_1.bias";
  try {
    RequireTensors(*reader, expected, states);
    FAIL() << "nothing was reported";
  } catch (const Error& error) {
    EXPECT_EQ("CKP019", error.id());
    for (const char* part : {"3 differences", "wrong shape: transformer.wte.weight is [13, 6], the model needs [13, 7]",
                             "missing: transformer.h.1.ln_1.bias", "unexpected: transformer.h.0.ln_1.bias"}) {
      EXPECT_NE(std::string::npos, error.message().find(part)) << part;
    }
  }
}

// Commit refuses what would not load.
class Commit : public ::testing::Test {
 protected:
  void SetUp() override {
    BeginCheckpoint(root_.path(), "t", uuid_);
    for (int rank = 0; rank < 2; ++rank) {
      const testing::RankSave save(testing::DefaultTensors(), testing::DefaultStates(), rank, 2, 1);
      RankWriter writer(Folder(), rank, uuid_, 5);
      save.AddTo(writer);
      summaries_.push_back(writer.Finish());
    }
  }
  std::filesystem::path Folder() const { return TemporaryFolder(root_.path(), "t", uuid_); }
  std::string Id(CommitOptions options = {}) {
    const std::string id =
        IdOf([&] { CommitCheckpoint(root_.path(), "t", uuid_, summaries_, testing::MetadataFor(2), options); });
    EXPECT_FALSE(std::filesystem::exists(Folder())) << "the temporary folder is gone, either way";
    EXPECT_EQ(id.empty(), std::filesystem::exists(root_.path() / "t" / "manifest.json"));
    EXPECT_EQ(id.empty(), std::filesystem::exists(root_.path() / "latest"));
    return id;
  }
  const TemporaryRoot root_;
  const Uuid uuid_ = NewUuid();
  std::vector<RankFileSummary> summaries_;
};

TEST_F(Commit, Complete) { EXPECT_EQ("", Id({.reread_hashes = true})); }
TEST_F(Commit, RankMissing) {
  summaries_.pop_back();
  EXPECT_EQ("CKP022", Id());
}
TEST_F(Commit, RankTwice) {
  summaries_[1] = summaries_[0];
  EXPECT_EQ("CKP022", Id());
}
TEST_F(Commit, OtherStep) {
  summaries_[1].step = 6;
  EXPECT_EQ("CKP022", Id());
}
TEST_F(Commit, CKP_15_RankFailed) {
  summaries_[1] = RankFileSummary::Failed(1, "disk full");
  EXPECT_EQ("CKP012", Id());
}
TEST_F(Commit, FileShorter) {
  std::filesystem::resize_file(Folder() / summaries_[1].path, static_cast<uintmax_t>(summaries_[1].bytes - 1));
  EXPECT_EQ("CKP004", Id());
}
TEST_F(Commit, HashDiffers) {
  summaries_[1].hash.low ^= 1;
  EXPECT_EQ("CKP005", Id({.reread_hashes = true}));
}
TEST_F(Commit, SlabMissing) {
  std::erase_if(summaries_[1].slabs,
                [](const SlabRecord& s) { return s.spec.tensor == "transformer.h.0.attn.c_attn.weight"; });
  EXPECT_EQ("CKP011", Id());
}
TEST_F(Commit, StateMissing) {
  std::erase_if(summaries_[1].slabs,
                [](const SlabRecord& s) { return s.spec.tensor == "scalar" && s.spec.state == "master"; });
  EXPECT_EQ("CKP022", Id());
}
TEST_F(Commit, SlabTwice) {
  summaries_[1].slabs.push_back(summaries_[1].slabs.back());
  summaries_[1].slabs.push_back(summaries_[0].slabs.front());
  EXPECT_EQ("CKP011", Id());
}
TEST_F(Commit, ShapesDiffer) {
  for (SlabRecord& slab : summaries_[1].slabs) {
    if (slab.spec.tensor == "transformer.h.0.attn.c_attn.weight") slab.spec.shape = {18, 6};
  }
  EXPECT_EQ("CKP022", Id());
}
TEST_F(Commit, SameTagAgainReplacesTheOldFolder) {
  EXPECT_EQ("", Id());
  Save({.root = root_.path(), .tag = "t", .step = 9, .world = 3, .salt = 4});
  const auto reader = CheckpointReader::Open(root_.path());
  EXPECT_EQ(9, reader->info().step);
  EXPECT_EQ("", Difference(*reader, {.root = root_.path(), .salt = 4}));
  EXPECT_EQ(2, std::distance(std::filesystem::directory_iterator(root_.path()), {}));  // t, latest
}
TEST_F(Commit, BadTags) {
  AbortCheckpoint(root_.path(), "t", uuid_);
  for (const char* tag : {"", ".", "..", "a/b", "latest", "x.tmp.1", "x.old.1"}) {
    EXPECT_EQ("CKP016", IdOf([&] { BeginCheckpoint(root_.path(), tag, uuid_); })) << tag;
  }
}

TEST(Find, CKP_12_ExplicitResumeThatCannotBeMetListsTheTags) {
  const TemporaryRoot root;
  EXPECT_FALSE(FindLatestComplete(root.path()).found);
  EXPECT_FALSE(FindLatestComplete(root.path() / "absent").found);
  EXPECT_EQ("CKP002", IdOf([&] { RequireCheckpoint(root.path() / "absent"); }));
  EXPECT_EQ("CKP002", IdOf([&] { RequireCheckpoint(root.path()); }));
  EXPECT_EQ("CKP001", IdOf([&] { CheckpointReader::Open(root.path()); }));
  Save({.root = root.path(), .tag = "global_step7"});
  EXPECT_EQ(7, RequireCheckpoint(root.path(), "global_step7").found->step);
  try {
    RequireCheckpoint(root.path(), "global_step8");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string::npos, error.message().find("global_step7 (step 7)"));
  }
}

TEST(Find, LatestIsGoneDamagedOrOlder) {
  const TemporaryRoot root;
  Save({.root = root.path(), .tag = "a", .step = 1});
  Save({.root = root.path(), .tag = "b", .step = 2});
  EXPECT_EQ("b", FindLatestComplete(root.path()).found->tag);
  WriteFileDurably(root.path() / "latest", "a\n",
                   ErrorCode::kCheckpoint);  // killed between renaming b and moving `latest`
  FindResult result = FindLatestComplete(root.path());
  EXPECT_EQ("a", result.found->tag);
  ASSERT_EQ(1u, result.warnings.size());
  EXPECT_NE(std::string::npos, result.warnings[0].find("newer complete checkpoint"));
  std::filesystem::remove(root.path() / "latest");
  EXPECT_EQ("b", FindLatestComplete(root.path()).found->tag);
  WriteFileDurably(root.path() / "latest", " c \n", ErrorCode::kCheckpoint);
  result = FindLatestComplete(root.path());
  EXPECT_EQ("b", result.found->tag);
  EXPECT_NE(std::string::npos, result.warnings.at(0).find("names \"c\""));
  std::filesystem::remove(root.path() / "b" / "data" / "rank_00001.h5");
  WriteFileDurably(root.path() / "latest", "b", ErrorCode::kCheckpoint);
  result = FindLatestComplete(root.path());
  EXPECT_EQ("a", result.found->tag);
  EXPECT_NE(std::string::npos, result.warnings.at(0).find("CKP004"));
  std::filesystem::remove(root.path() / "a" / "index.h5");
  EXPECT_EQ("CKP002", IdOf([&] { FindLatestComplete(root.path()); }));
}

TEST(Find, CrashBetweenTheTwoRenamesOfASwap) {
  const TemporaryRoot root;
  Save({.root = root.path(), .tag = "a", .step = 1});
  std::filesystem::rename(root.path() / "a", root.path() / "a.old.01234567");
  std::filesystem::create_directories(root.path() / "a.tmp.89abcdef" / "data");
  const FindResult result = FindLatestComplete(root.path());
  EXPECT_EQ("a", result.found->tag);
  EXPECT_EQ("", Difference(*CheckpointReader::Open(result.found->directory), {.root = root.path()}));
  EXPECT_NE(std::string::npos, result.warnings.at(0).find("a.tmp.89abcdef"));
}

TEST(FreeSpace, CKP_15_AskedForBeforeAnythingIsWritten) {
  const TemporaryRoot root;
  RequireFreeSpace(root.path() / "not" / "yet", 1 << 20);
  EXPECT_EQ("CKP013", IdOf([&] { RequireFreeSpace(root.path(), int64_t{1} << 60); }));
}

}  // namespace
}  // namespace trireme::checkpoint
